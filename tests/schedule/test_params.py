import pytest

from rtk.errors import RequestError
from rtk.schedule.params import (
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    SamplingParams,
    check_text,
    check_token_ids,
    sampling_params,
)

VOCAB = 100


def build(**given):
    return sampling_params(given, vocab_size=VOCAB)


def test_nothing_given_is_the_defaults():
    assert build() == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0), ("temperature", 1e-30), ("temperature", 2.5),
        ("top_p", 0), ("top_p", 1), ("top_p", 0.3),
        ("top_k", -1), ("top_k", 0), ("top_k", VOCAB + 5),
        ("seed", 0), ("seed", None), ("seed", -5), ("seed", 2**63 - 1),
        ("max_new_tokens", 0), ("max_new_tokens", None), ("max_new_tokens", 10**9),
        ("min_new_tokens", 3), ("ignore_eos", True),
    ],
)  # fmt: skip
def test_accepted(field, value):
    assert getattr(build(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "1"),
        ("temperature", None), ("temperature", True),
        ("top_p", 1.0000001), ("top_p", -0.1), ("top_p", "0.5"), ("top_p", [0.5]),
        ("top_k", -2), ("top_k", 1.5), ("top_k", True),
        ("seed", 2**63), ("seed", 1.5), ("seed", "5"),
        ("max_new_tokens", -1), ("max_new_tokens", "5"), ("max_new_tokens", 1.0),
        ("min_new_tokens", -1), ("min_new_tokens", None),
        ("ignore_eos", "yes"), ("ignore_eos", 1),
        ("stop", 5), ("stop", [5]), ("stop", ["ok", None]), ("stop", {}),
        ("stop_token_ids", 5), ("stop_token_ids", "7"),
    ],
)  # fmt: skip
def test_refused_with_field_value_and_what_is_allowed(field, value):
    with pytest.raises(RequestError, match=rf"^{field} = .*: must be ") as refused:
        build(**{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("given", [{"stop": ""}, {"stop": ["a", ""]}])
def test_an_empty_stop_string_is_refused(given):
    with pytest.raises(RequestError, match=r"stop\[\d\] is empty"):
        build(**given)


def test_stop_takes_one_string_a_list_or_null():
    assert build(stop="ab").stop == ("ab",)
    assert build(stop=["ab", "c"]).stop == ("ab", "c")
    assert build(stop=None).stop == ()


def test_too_many_stops_are_refused_with_the_limit():
    with pytest.raises(RequestError, match=f"at most {MAX_STOP_STRINGS}"):
        build(stop=["x"] * (MAX_STOP_STRINGS + 1))
    with pytest.raises(RequestError, match=f"at most {MAX_STOP_TOKENS}"):
        build(stop_token_ids=[1] * (MAX_STOP_TOKENS + 1))


@pytest.mark.parametrize("token", [VOCAB, -1, 1.5, "7", None, True, [2]])
def test_a_stop_token_outside_the_vocabulary_is_refused(token):
    with pytest.raises(RequestError, match=r"stop_token_ids\[1\] = .*from 0 to 99") as refused:
        build(stop_token_ids=[5, token], min_new_tokens=5)
    assert refused.value.field == "stop_token_ids"
    assert build(stop_token_ids=[VOCAB - 1]).stop_token_ids == (VOCAB - 1,)


def test_the_callers_own_names_are_used_in_messages():
    with pytest.raises(RequestError, match=r"^max_tokens = -1: ") as refused:
        sampling_params({"max_new_tokens": -1}, vocab_size=VOCAB, names={"max_new_tokens": "max_tokens"})
    assert refused.value.field == "max_tokens"


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(RequestError, match="min_new_tokens = 6: must be at most max_new_tokens = 5"):
        build(min_new_tokens=6, max_new_tokens=5)


def test_long_values_are_shortened_in_messages():
    with pytest.raises(RequestError) as refused:
        build(top_p="x" * 10_000)
    assert len(str(refused.value)) < 150


def test_an_unpaired_surrogate_is_named_with_its_place():
    with pytest.raises(RequestError, match=r"stop\[0\]: unpaired surrogate U\+D800 at character 1"):
        build(stop="a\ud800")
    check_text("a😀", field="text")


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-30])
def test_tiny_temperatures_are_greedy(temperature):
    assert build(temperature=temperature).greedy
    assert not build(temperature=1e-4).greedy


@pytest.mark.parametrize("ids", [[VOCAB], [-1], [1.5], ["7"], [None]])
def test_token_ids_are_checked_one_by_one(ids):
    with pytest.raises(RequestError, match=r"prompt\[0\] = "):
        check_token_ids(ids, VOCAB, field="prompt")
    check_token_ids([0, VOCAB - 1], VOCAB, field="prompt")
