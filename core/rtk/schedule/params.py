"""Sampling parameters and their one validator: HTTP and `Engine` both come through here."""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rtk.errors import RequestError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: the softmax would be a step function in float32 anyway."""

MAX_TEMPERATURE = 1000.0
"""Above it the distribution is flat anyway, and float32 has to hold it."""

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""Of one stop string."""

MAX_STOP_TOKENS = 64
MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_REPETITION_PENALTY = 2.0
MAX_PENALTY = 2.0
"""Of presence and frequency, either way."""

MAX_ANSWERS = 128
MAX_TOP_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1
"""Of numbers of tokens, which have to fit an int32."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is sampled and when it ends. Build through `sampling_params`, which validates."""

    temperature: float = 1.0
    """0 (or below `GREEDY_BELOW`) is greedy: the highest logit, ties to the lowest id."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 0 keeps one."""
    top_k: int = -1
    """Keep this many of the most probable tokens; -1 and 0 keep all."""
    min_p: float = 0.0
    """Keep tokens at least this probable, as a share of the most probable one's probability."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or output are divided by it where positive, and multiplied where negative."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Taken off the logits of tokens in the output, for each time that they are there."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of token ids, after penalties."""
    seed: int | None = None
    """The same seed gives the same text, whatever the batch; None draws one."""
    max_new_tokens: int | None = None
    """None: as many as context length and pool allow. 0: prefill only."""
    min_new_tokens: int = 0
    """No stop token can be sampled, and no stop string ends the text, before this many tokens."""
    ignore_eos: bool = False
    """The model's own end tokens do not end the text; `stop_token_ids` still do."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are cut off. The earliest match wins, at one place the one named first."""
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    """The stop string, or stop token, that ended the text stays in it."""
    skip_special_tokens: bool = True
    """Special tokens have no text; else they have their name's."""
    n: int = 1
    """Answers to the prompt, each with draws of its own; the client's side makes a request of each."""
    logprobs: int | None = None
    """Log-probabilities: of each sampled token, and of so many that were most probable there; None: none.

    Those of the model's own distribution, before temperature, penalties, bias and masks.
    """
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""
    prompt_logprobs_start: int = 0
    """The first token of the prompt whose log-probability is told; the cache is used up to there."""

    @property
    def greedy(self) -> bool:
        """Whether the highest logit is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        """Whether what the text holds already changes the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _integer(value)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any, lowest: int = 0) -> bool:
    return _integer(value) and lowest <= value <= MAX_COUNT


def _top(value: Any) -> bool:
    return value is None or (_integer(value) and 0 <= value <= MAX_TOP_LOGPROBS)


def _strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(s, str) for s in value)


_FLAG: tuple[Callable[[Any], bool], str] = (lambda v: isinstance(v, bool), "true or false")
_PENALTY: tuple[Callable[[Any], bool], str] = (
    lambda v: _number(v) and abs(v) <= MAX_PENALTY,
    f"a number from -{MAX_PENALTY:g} to {MAX_PENALTY:g}",
)
_TOP: tuple[Callable[[Any], bool], str] = (_top, f"an integer from 0 to {MAX_TOP_LOGPROBS}, or null")

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (
        lambda v: _number(v) and 0 <= v <= MAX_TEMPERATURE,
        f"a number from 0 (greedy) to {MAX_TEMPERATURE:g}",
    ),
    "top_p": (lambda v: _number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "top_k": (lambda v: _count(v, -1), f"an integer from -1 to {MAX_COUNT}; -1 and 0 keep every token"),
    "min_p": (lambda v: _number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "repetition_penalty": (
        lambda v: _number(v) and 0 < v <= MAX_REPETITION_PENALTY,
        f"a number above 0, up to {MAX_REPETITION_PENALTY:g}; 1 changes nothing",
    ),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": (lambda v: isinstance(v, Mapping), "an object of token ids with numbers"),
    "seed": (
        lambda v: v is None or (_integer(v) and abs(v) <= MAX_SEED),
        "an integer from -(2^63 - 1) to 2^63 - 1, or null",
    ),
    "max_new_tokens": (lambda v: v is None or _count(v), f"an integer from 0 to {MAX_COUNT}, or null"),
    "min_new_tokens": (_count, f"an integer from 0 to {MAX_COUNT}"),
    "ignore_eos": _FLAG,
    "stop": (_strings, "a string or a list of strings"),
    "stop_token_ids": (lambda v: isinstance(v, list | tuple), "a list of token ids"),
    "include_stop_str_in_output": _FLAG,
    "skip_special_tokens": _FLAG,
    "n": (lambda v: _count(v, 1) and v <= MAX_ANSWERS, f"an integer from 1 to {MAX_ANSWERS}"),
    "logprobs": _TOP,
    "prompt_logprobs": _TOP,
    "prompt_logprobs_start": (_count, f"an integer from 0 to {MAX_COUNT}"),
}


def sampling_params(
    given: Mapping[str, Any], *, vocab_size: int, names: Mapping[str, str] | None = None
) -> SamplingParams:
    """Validate a request's parameters, keyed by `SamplingParams`' field names; a missing one takes its default.

    `names` maps field names to what the caller calls them, for messages. Raises `RequestError` naming the field, the
    value and what is allowed.
    """
    public = names or {}
    values = {name: _listed(name, value) for name, value in given.items()}
    check_names(values)
    for name, value in values.items():
        _check(name, value, field=public.get(name, name))
    if values.get("stop"):
        check_stop_strings(values["stop"], field=public.get("stop", "stop"))
    if values.get("stop_token_ids"):
        _check_stop_tokens(values["stop_token_ids"], vocab_size, field=public.get("stop_token_ids", "stop_token_ids"))
    if "logit_bias" in values:
        field = public.get("logit_bias", "logit_bias")
        values["logit_bias"] = _biases(values["logit_bias"], vocab_size, field=field)
    params = SamplingParams(**values)
    if params.max_new_tokens is not None and params.min_new_tokens > params.max_new_tokens:
        low, high = (public.get(n, n) for n in ("min_new_tokens", "max_new_tokens"))
        raise RequestError(
            f"{low} = {params.min_new_tokens}: must be at most {high} = {params.max_new_tokens}", field=low
        )
    return params


def answers_wanted(given: Mapping[str, Any], names: Mapping[str, str]) -> int:
    """How many answers parameters ask for, before anything else of them is looked at. Raises `RequestError`."""
    wanted: int = given.get("n", 1)
    _check("n", wanted, field=names.get("n", "n"))
    return wanted


def check_prompt_logprobs(params: SamplingParams, prompt_len: int, *, names: Mapping[str, str]) -> None:
    """Raises `RequestError` where the prompt ends before the tokens whose log-probabilities are wanted."""
    if params.prompt_logprobs is not None and params.prompt_logprobs_start > prompt_len:
        field, start = names.get("prompt_logprobs_start", "prompt_logprobs_start"), params.prompt_logprobs_start
        raise RequestError(f"{field} = {start}: must be at most {prompt_len}, the tokens of the prompt", field=field)


def _check(name: str, value: Any, *, field: str) -> None:
    valid, allowed = _RULES[name]
    if not valid(value):
        raise RequestError(f"{field} = {shown(value)}: must be {allowed}", field=field)


def check_names(given: Iterable[str], *others: str) -> None:
    """Raises `RequestError` for a name that no parameter has, and none of `others` is."""
    known = (*_RULES, *others)
    for name in given:
        if name not in known:
            raise RequestError(f"unknown parameter {shown(name)}; there are {', '.join(known)}", field=shown(name))


def _listed(name: str, value: Any) -> Any:
    """`stop` may be one string or null, `logit_bias` null; lists become tuples."""
    if name == "stop" and isinstance(value, str):
        return (value,)
    if name == "logit_bias" and value is None:
        return {}
    if name in ("stop", "stop_token_ids"):
        return () if value is None else tuple(value) if isinstance(value, list) else value
    return value


def shown(value: Any) -> str:
    """A client's value as a message shows it: short, whatever its size and depth."""
    return _BRIEF.repr(value)


class _Brief(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"


_BRIEF = _Brief()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxtuple, _BRIEF.maxdict = 2, 3, 3, 2
_BRIEF.maxstring = _BRIEF.maxother = 40


def check_stop_strings(stops: Sequence[str], *, field: str) -> None:
    """Raises `RequestError` for an empty, too long, unencodable or superfluous stop string."""
    if len(stops) > MAX_STOP_STRINGS:
        raise RequestError(f"{field}: {len(stops)} stop strings; at most {MAX_STOP_STRINGS}", field=field)
    for i, stop in enumerate(stops):
        if not stop:
            raise RequestError(f"{field}[{i}] is empty: a stop string has at least one character", field=field)
        if len(stop) > MAX_STOP_CHARACTERS:
            raise RequestError(f"{field}[{i}]: {len(stop)} characters; at most {MAX_STOP_CHARACTERS}", field=field)
        check_text(stop, field=f"{field}[{i}]")


def check_text(text: str, *, field: str) -> None:
    """Raises `RequestError` where `text` holds an unpaired surrogate, which no tokenizer can encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{field}: unpaired surrogate U+{ord(text[error.start]):04X} at character {error.start}", field=field
        ) from None


def _check_stop_tokens(ids: Sequence[int], vocab_size: int, *, field: str) -> None:
    if len(ids) > MAX_STOP_TOKENS:
        raise RequestError(f"{field}: {len(ids)} ids; at most {MAX_STOP_TOKENS}", field=field)
    check_token_ids(ids, vocab_size, field=field)


def _biases(given: Mapping[Any, Any], vocab_size: int, *, field: str) -> tuple[tuple[int, float], ...]:
    """By token id, without those that change nothing. JSON's keys are strings."""
    if len(given) > MAX_BIASES:
        raise RequestError(f"{field}: {len(given)} entries; at most {MAX_BIASES}", field=field)
    biases: dict[int, float] = {}
    for key, value in given.items():
        token, place = _token_of(key), f"{field}[{shown(key)}]"
        if not _is_token(token, vocab_size):
            raise RequestError(f"{place}: its key must be a token id from 0 to {vocab_size - 1}", field=field)
        if not _number(value) or abs(value) > MAX_BIAS:
            problem = f"must be a number from -{MAX_BIAS:g} to {MAX_BIAS:g}"
            raise RequestError(f"{place} = {shown(value)}: {problem}", field=field)
        if token in biases:
            raise RequestError(f"{place}: token {token} is there twice", field=field)
        biases[token] = float(value)
    return tuple(sorted((token, bias) for token, bias in biases.items() if bias))


def _token_of(key: Any) -> Any:
    """A key as the number that it is, where it is one."""
    digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= len(str(MAX_COUNT))
    return int(key) if digits else key


def check_token_ids(ids: Sequence[Any], vocab_size: int, *, field: str) -> None:
    """Raises `RequestError` naming the first entry that is no token id of a vocabulary of `vocab_size`. O(n)."""
    for i, token in enumerate(ids):
        if not _is_token(token, vocab_size):
            raise RequestError(
                f"{field}[{i}] = {shown(token)}: must be a token id from 0 to {vocab_size - 1}", field=field
            )


def _is_token(token: Any, vocab_size: int) -> bool:
    return _integer(token) and 0 <= token < vocab_size
