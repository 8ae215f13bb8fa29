"""Sampling parameters of OpenAI's endpoints and of /generate by the scheduler's names, and what answers are to tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtk.errors import RequestError
from rtk.schedule.params import MAX_ANSWERS, MAX_COUNT, answers_wanted
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.fields import FORM_NAMES, SAMPLING_NAMES, not_supported

_LENGTHS = ("max_tokens", "max_completion_tokens")
_PARAMETERS = (*SAMPLING_NAMES, "n")
_PLACE = "sampling_params."


@dataclass(slots=True)
class Asked:
    """What one request asks for."""

    sampling: dict[str, Any]
    """By field of `SamplingParams`, not validated yet."""
    names: dict[str, str]
    """What the client calls those."""
    answers: int = 1
    """To each prompt."""
    logprobs: int | None = None
    """Of new tokens, and of so many beside each."""
    prompt_logprobs: int | None = None
    """The same of the prompt, beside its answers."""
    echo: bool = False
    echo_logprobs: int | None = None
    """The same of the prompt that is repeated."""
    special: bool = False
    """Special tokens have text."""
    text_in_logprobs: bool = field(default=False, kw_only=True)
    """/generate: tokens beside log-probabilities have their text."""


def _is_count(value: Any, wanted: int) -> bool:
    """Whether a value is this integer: neither false nor 0.0 is 0."""
    return type(value) is int and value == wanted


def read_completions(values: Mapping[str, Any]) -> Asked:
    """What a body of /v1/completions asks for."""
    given = values.get("logprobs")
    return _openai(values, None if given is False else given, "logprobs")


def read_chat_completions(values: Mapping[str, Any], *, continues: bool) -> Asked:
    """What a body of /v1/chat/completions asks for. `continues`: whether the answer goes on with the last message."""
    wanted = typed(values, "logprobs", bool, False)
    top = values.get("top_logprobs", 0)
    if not wanted and not _is_count(top, 0):
        raise RequestError("top_logprobs: only allowed with logprobs = true", field="top_logprobs")
    asked = _openai(values, top if wanted else None, "top_logprobs")
    if asked.echo and not continues:
        raise RequestError("echo: in a chat only with continue_final_message = true", field="echo")
    return asked


def read_native(values: Mapping[str, Any], given: Mapping[str, Any]) -> Asked:
    """What a body of /generate asks for; `given` is its `sampling_params`."""
    names = {name: _PLACE + name for name in (*_PARAMETERS, "max_new_tokens", "min_new_tokens")}
    names |= dict.fromkeys(("logprobs", "prompt_logprobs"), "top_logprobs_num")
    names["prompt_logprobs_start"] = "logprob_start_len"
    asked = _asked({name: value for name, value in given.items() if name not in FORM_NAMES}, names, _PLACE)
    asked.text_in_logprobs = typed(values, "return_text_in_logprobs", bool, False)
    wanted = typed(values, "return_logprob", bool, False)
    for name, nothing in (("top_logprobs_num", 0), ("logprob_start_len", -1)):
        if not wanted and not _is_count(values.get(name, nothing), nothing):
            raise RequestError(f"{name}: only allowed with return_logprob = true", field=name)
    if wanted:
        asked.logprobs = asked.sampling["logprobs"] = values.get("top_logprobs_num", 0)
        start = values.get("logprob_start_len", -1)
        if not _is_count(start, -1):
            asked.prompt_logprobs = asked.sampling["prompt_logprobs"] = asked.logprobs
            asked.sampling["prompt_logprobs_start"] = start
    return asked


def _openai(values: Mapping[str, Any], logprobs: Any, called: str) -> Asked:
    names = {"min_new_tokens": "min_tokens", "max_new_tokens": "max_tokens", "logprobs": called}
    asked = _asked({name: values[name] for name in (*_PARAMETERS, "best_of", "no_stop_trim") if name in values}, names)
    asked.echo = typed(values, "echo", bool, False)
    if "min_tokens" in values:
        asked.sampling["min_new_tokens"] = values["min_tokens"]
    _read_length(values, asked)
    _read_logprobs(values, asked, logprobs, called)
    return asked


def _read_length(values: Mapping[str, Any], asked: Asked) -> None:
    lowest = 0 if asked.echo else 1
    for name in _LENGTHS:
        if name not in values:
            continue
        length = values[name]
        if not isinstance(length, int) or isinstance(length, bool) or not lowest <= length <= MAX_COUNT:
            hint = "; 0 only with echo = true" if length == 0 and not isinstance(length, bool) else ""
            raise must_be(f"an integer from {lowest} to {MAX_COUNT}, or null{hint}", name, length)
        if asked.sampling.setdefault("max_new_tokens", length) != length:
            raise RequestError(f"{' and '.join(_LENGTHS)} differ; send one of them", field=name)
        asked.names["max_new_tokens"] = name


def _read_logprobs(values: Mapping[str, Any], asked: Asked, logprobs: Any, called: str) -> None:
    """The log-probabilities of new tokens, and those of the prompt: for the echo of a text, and for vLLM's field."""
    asked.logprobs, asked.prompt_logprobs = logprobs, values.get("prompt_logprobs")
    if asked.prompt_logprobs is not None and values.get("stream") is True:
        raise RequestError("prompt_logprobs: not in a stream; use echo with logprobs there", field="prompt_logprobs")
    if logprobs is not None:
        asked.sampling["logprobs"] = logprobs
    if asked.echo and called == "logprobs":
        asked.echo_logprobs = logprobs
    # Values of a wrong kind are the validator's to refuse.
    wanted = [top for top in (asked.echo_logprobs, asked.prompt_logprobs) if top is not None]
    if wanted:
        asked.sampling["prompt_logprobs"] = max(wanted) if all(type(top) is int for top in wanted) else wanted[-1]
        if asked.prompt_logprobs is None:
            asked.names["prompt_logprobs"] = called


def _asked(given: dict[str, Any], names: dict[str, str], place: str = "") -> Asked:
    """Parameters that all endpoints read alike."""
    if typed(given, "no_stop_trim", bool, False, prefix=place):
        given.setdefault("include_stop_str_in_output", True)
    given.pop("no_stop_trim", None)
    answers = answers_wanted(given, names)
    best_of = given.pop("best_of", answers)
    if not isinstance(best_of, int) or isinstance(best_of, bool) or not 1 <= best_of <= MAX_ANSWERS:
        raise must_be(f"an integer from 1 to {MAX_ANSWERS}", f"{place}best_of", best_of)
    if best_of != answers:
        raise not_supported(f"{place}best_of", instead="leave it out: all answers that are sampled, n, are returned")
    return Asked(given, names, answers, special=given.get("skip_special_tokens") is False)
