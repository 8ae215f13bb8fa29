"""What clients of an engine ask and get: the words of the one client protocol, see `rtk.serve.tokenizer_manager`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtk.errors import ModelError, RequestError
from rtk.grammar.forms import ServedForm
from rtk.observe.vitals import ProcessReport
from rtk.schedule.messages import Finish, TokenLogprobs
from rtk.schedule.params import sampling_params
from rtk.serve.limits import NO_CEILINGS, UNLIMITED, Account, Ceilings

log = logging.getLogger(__name__)

_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_NEUTRAL = {"typical_p": 1, "no_repeat_ngram_size": 0, "num_beams": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What clients may know of the served model, and of what it is served with."""

    served_name: str
    vocab_size: int
    """Token ids that both the tokenizer and the model know are smaller."""
    context_length: int
    attention: str = ""
    """Name of the attention backend."""
    page_size: int = 1
    """Tokens in a page of the KV pool: the granularity in which prefixes are shared."""
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    """By field of `SamplingParams`: what a request gets that gives none, see `sampling_defaults`."""
    reads_priority: bool = False
    """Whether the priority of requests changes anything: whether a configured policy reads it."""
    reads_routing_key: bool = False
    """The same of their routing keys."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """How the engine is."""

    turn_s: float = 0.0
    """For how long its thread has been in the turn that it is in; 0 while it waits for something to do."""
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The plugins that failed, with their `faults`, and what the host used `instead`."""
    observers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What observers missed."""
    process: ProcessReport | None = None
    """The process that it runs in."""
    processes: Mapping[str, ProcessReport] = field(default_factory=dict)
    """The processes of the server beside the main one, by name."""
    unwell: str = ""
    """What is wrong with a process that does not answer; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt as messages. `options` are variables of the model's chat template."""

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False
    """The answer goes on with the last message, instead of being one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What a client asks for, not validated yet."""

    prompt: str | Sequence[int] | Chat
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """By field of `SamplingParams`."""
    rid: str | None = None
    """The client's own id of the request, unique among those in flight; None: a random one."""
    cache_salt: str | None = None
    """Cached K/V is shared among requests with the same salt only."""
    extra_key: str | None = None
    """The same, beside the salt."""
    priority: int = 0
    """How important the request is, for policies that read it (see `ModelFacts`); higher is more."""
    routing_key: str | None = None
    """Requests with the same key like to run together, for policies that read it."""
    deadline_ms: float | None = None
    """Milliseconds after which the request ends with an error, wherever it is."""
    tenant: str | None = None
    """Whose request it is: tenants share no cached K/V and no ids, and policies may share the engine among them.

    No field of HTTP: the key that a client brings decides.
    """
    account: Account = UNLIMITED
    """What the tenant has taken of the engine, and may."""
    ceilings: Ceilings = NO_CEILINGS
    """How long prompt and answer may be, beside what model and pool allow."""
    form: ServedForm | None = None
    """What the answer must look like, see `TokenizerManager.form`; None: anything."""
    prompt_name: str = "prompt"
    """What the client calls the prompt, for messages."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the client calls the fields of `SamplingParams`, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What is new of one request. The last one has a `finish`; counts run from the start of the request."""

    index: int
    """Which answer of its batch: `n` of the first request, then those of the next."""
    rid: str
    """The request's, for its first answer; the others have their numbers behind it: `mine`, `mine-1`, `mine-2`."""
    text: str
    """All that is new: `thought`, what marks its end, and `content`."""
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the cache. What a request found there is its first answer's; others find its own."""
    completion_tokens: int
    finish: Finish | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token id, where they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt, in the first delta of a request's first answer, where they were asked for."""
    offsets: tuple[int, ...] = ()
    """How many characters of the text come before each token id, where there are `logprobs`.

    A token that goes on with a character counts from that character's beginning. Those of a stop string that is cut off
    count on, behind the text."""
    thought: str = ""
    """Of the text: what the model thinks before it answers."""
    content: str = ""
    """Of the text: the answer."""
    aside: str = ""
    """Of the text: all before the answer, marks and thoughts as they were written."""
    repeated: str = ""
    """Of the text: the prompt, where the answer begins with it (`echo`)."""
    verified: bool | None = None
    """Of the last one, where the text was to be checked: whether it is as its form says; None: it cannot be told."""


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's `generation_config.json` says for requests that say nothing.

    That is temperature, top_p, top_k, min_p and repetition_penalty.

    `do_sample` is not read: without a temperature from the model or the client, it is 1. Settings that rtk does not
    have yet are named in the log, since outputs will differ from those that the model's author had.
    """
    missing = [name for name, neutral in _NEUTRAL.items() if generation_config.get(name) not in (None, neutral)]
    if missing:
        log.warning("generation_config.json: not supported yet, so without effect: %s", ", ".join(missing))
    return {name: value for name in _DEFAULTED if (value := generation_config.get(name)) is not None}


def check_defaults(facts: ModelFacts) -> None:
    """Raises `ModelError` where the model's default sampling parameters are none."""
    try:
        sampling_params(facts.default_sampling, vocab_size=facts.vocab_size)
    except RequestError as error:
        raise ModelError(f"the model's generation_config.json cannot be used: {error}") from error
