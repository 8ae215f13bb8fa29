import pytest

from rtk.errors import RequestError
from rtk.schedule.params import (
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    SamplingParams,
    check_prompt_logprobs,
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
        ("min_p", 0), ("min_p", 1), ("min_p", 0.2),
        ("repetition_penalty", 2), ("repetition_penalty", 1e-300), ("repetition_penalty", 1.0),
        ("presence_penalty", -2), ("presence_penalty", 2.0), ("frequency_penalty", -2.0), ("frequency_penalty", 2),
        ("n", 1), ("n", 128),
        ("logprobs", None), ("logprobs", 0), ("logprobs", 20),
        ("prompt_logprobs", None), ("prompt_logprobs", 0), ("prompt_logprobs", 20),
        ("prompt_logprobs_start", 0), ("prompt_logprobs_start", 10**9),
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
        ("min_p", 1.0000001), ("min_p", -0.1), ("min_p", None), ("min_p", True),
        ("repetition_penalty", 0), ("repetition_penalty", 2.0000001), ("repetition_penalty", -1),
        ("repetition_penalty", float("nan")),
        ("presence_penalty", 2.0000001), ("presence_penalty", "1"), ("frequency_penalty", -2.0000001),
        ("frequency_penalty", None),
        ("n", 0), ("n", 129), ("n", 2.0), ("n", True), ("n", None), ("n", "3"),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("logprobs", 1.0),
        ("prompt_logprobs", -1), ("prompt_logprobs", 21), ("prompt_logprobs_start", -1),
        ("prompt_logprobs_start", None),
        ("logit_bias", 5), ("logit_bias", [[3, 1.0]]), ("logit_bias", "3"),
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


def test_a_bias_is_by_token_id_in_order_without_those_that_change_nothing():
    given = {"7": 1, 3: -100, "0": 100.0, "99": 0}
    assert build(logit_bias=given).logit_bias == ((0, 100.0), (3, -100.0), (7, 1.0))
    assert build(logit_bias=None).logit_bias == build(logit_bias={}).logit_bias == ()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"100": 5}, "logit_bias['100']: its key must be a token id from 0 to 99"),
        ({"-1": 5}, "logit_bias['-1']: its key must be a token id from 0 to 99"),
        ({"x": 5}, "logit_bias['x']: its key must be a token id from 0 to 99"),
        ({"": 5}, "logit_bias['']: its key must be a token id from 0 to 99"),
        ({" 3": 5}, "logit_bias[' 3']: its key must be a token id from 0 to 99"),
        ({"²": 5}, "logit_bias['²']: its key must be a token id from 0 to 99"),
        ({True: 5}, "logit_bias[True]: its key must be a token id from 0 to 99"),
        ({3.0: 5}, "logit_bias[3.0]: its key must be a token id from 0 to 99"),
        ({"3": 1e9}, "logit_bias['3'] = 1000000000.0: must be a number from -100 to 100"),
        ({"3": -100.0001}, "logit_bias['3'] = -100.0001: must be a number from -100 to 100"),
        ({"3": float("nan")}, "logit_bias['3'] = nan: must be a number from -100 to 100"),
        ({"3": None}, "logit_bias['3'] = None: must be a number from -100 to 100"),
        ({"3": True}, "logit_bias['3'] = True: must be a number from -100 to 100"),
        ({"3": 1, 3: 2}, "logit_bias[3]: token 3 is there twice"),
        (dict.fromkeys(range(301), 1), "logit_bias: 301 entries; at most 300"),
    ],
)
def test_a_bias_is_refused_by_its_id(given, problem):
    with pytest.raises(RequestError) as refused:
        build(logit_bias=given, min_new_tokens=5)
    assert (str(refused.value), refused.value.field) == (problem, "logit_bias")


def test_as_many_biases_as_there_may_be():
    given = {str(i): 1 for i in range(300)}
    assert len(sampling_params({"logit_bias": given}, vocab_size=300).logit_bias) == 300


def test_a_very_long_key_is_no_number_and_shortened():
    with pytest.raises(RequestError) as refused:
        build(logit_bias={"9" * 10_000: 1})
    assert len(str(refused.value)) < 150


def test_who_penalises():
    assert not build(logit_bias={"3": 5}, min_p=0.5).penalises
    assert all(build(**{f"{name}_penalty": 0.5}).penalises for name in ("repetition", "presence", "frequency"))


def test_scoring_begins_within_the_prompt_or_at_its_end():
    params = build(prompt_logprobs=0, prompt_logprobs_start=4)
    check_prompt_logprobs(params, 4, names={})
    with pytest.raises(RequestError, match=r"^prompt_logprobs_start = 4: must be at most 3"):
        check_prompt_logprobs(params, 3, names={})
    check_prompt_logprobs(build(prompt_logprobs_start=4), 3, names={})
