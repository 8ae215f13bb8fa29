import pytest

from rtk.errors import RequestError
from rtk.schedule.budget import Limits, ceil_page, charge, resolve_max_new_tokens


def limits(context=128, pool=10_000, page=1):
    return Limits(context_length=context, pool_tokens=pool, page_size=page, max_running=4, max_prefill_tokens=512)


@pytest.mark.parametrize(("tokens", "page", "pages"), [(0, 16, 0), (1, 16, 16), (16, 16, 16), (17, 16, 32), (5, 1, 5)])
def test_ceil_page(tokens, page, pages):
    assert ceil_page(tokens, page) == pages


def test_charge_clips_the_answer():
    assert charge(2000, 1024, 1) == 3025
    assert charge(100, 10**9, 16) == 112 + 4096 + 16


@pytest.mark.parametrize("asked", [None, 1])
def test_a_prompt_one_short_of_the_context_gets_one_token(asked):
    assert resolve_max_new_tokens(127, asked, limits()) == 1


@pytest.mark.parametrize("asked", [None, 1])
@pytest.mark.parametrize("prompt", [128, 129])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(prompt, asked):
    with pytest.raises(RequestError, match=rf"\b{prompt}\b.*\b128\b") as refused:
        resolve_max_new_tokens(prompt, asked, limits())
    assert refused.value.code == "context_length_exceeded"


def test_an_answer_beyond_the_context_is_refused_with_the_numbers():
    with pytest.raises(RequestError, match=r"prompt \(100\) \+ max_new_tokens \(29\) = 129 exceeds 128"):
        resolve_max_new_tokens(100, 29, limits())
    assert resolve_max_new_tokens(100, 28, limits()) == 28


def test_what_can_never_fit_is_refused_with_the_numbers():
    with pytest.raises(RequestError, match=r"charge of 85 tokens reaches the pool of 64") as refused:
        resolve_max_new_tokens(60, 24, limits(pool=64))
    assert refused.value.code == "never_fits"


def test_a_huge_answer_is_measured_unclipped_against_the_pool():
    huge = limits(context=100_000, pool=10_000)
    with pytest.raises(RequestError, match=r"prompt \(1000\) \+ max_new_tokens \(9001\) exceeds the pool of 10000"):
        resolve_max_new_tokens(1000, 9001, huge)
    assert resolve_max_new_tokens(1000, 9000, huge) == 9000


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("pool", [192, 640, 8192])
@pytest.mark.parametrize("prompt", [1, 63, 64, 65, 100])
def test_an_absent_answer_length_is_the_largest_that_would_be_accepted(prompt, pool, page):
    sizes = limits(context=6000, pool=pool, page=page)
    try:
        allowed = resolve_max_new_tokens(prompt, None, sizes)
    except RequestError:
        with pytest.raises(RequestError):
            resolve_max_new_tokens(prompt, 1, sizes)
        return
    assert resolve_max_new_tokens(prompt, allowed, sizes) == allowed
    with pytest.raises(RequestError):
        resolve_max_new_tokens(prompt, allowed + 1, sizes)


@pytest.mark.parametrize(("pool", "answer"), [(4107, 4095), (4108, 4098), (4109, 4099)])
def test_an_open_request_is_clipped_where_its_charge_would_reach_the_pool(pool, answer):
    """From 4096 tokens of answer on, the charge counts no more of it, and only the pool itself is in the way."""
    assert resolve_max_new_tokens(10, None, limits(context=9000, pool=pool)) == answer
