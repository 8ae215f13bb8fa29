"""What goes into a scheduler and what comes out: plain messages, ready for a wire.

The scheduler answers every `NewRequest` with exactly one `Verdict`, and every accepted request with `Output`s of which
exactly one, the last, carries a `Finish`.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from rtk.cache.explain import Explanation, Search
from rtk.cache.key import DEFAULT_NAMESPACE, Namespace
from rtk.observe.histogram import Distribution
from rtk.plugin.grammar import WHITESPACE
from rtk.schedule.params import SamplingParams
from rtk.schedule.timeline import Timeline

FinishReason = Literal["stop", "length", "abort", "error"]


class GrammarOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must look like, and who sees to it."""

    backend: str
    """The grammar plugin, which has judged the spec and did not refuse it."""
    kind: str
    """This, the text and the white space are those of `rtk.plugin.grammar.Spec`, in normal form."""
    text: str
    whitespace: int = WHITESPACE
    unique_keys: bool = False
    """Of a JSON text: the grammar leaves keys open, and whoever masks sees to it that no object has one twice."""
    after: bytes = b""
    """What the answer must have said before the grammar begins, such as the end of its thinking; empty: nothing."""


class NewRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Work for the scheduler. The sender has validated the parameters and picked an id that is not in use."""

    rid: str
    tokens: bytes
    """The prompt, as `rtk.cache.key.pack` makes it."""
    params: SamplingParams
    namespace: Namespace = DEFAULT_NAMESPACE
    priority: int = 0
    """Higher is more important, for policies that read it; the cached tokens are raised to it."""
    tenant: str = ""
    """Whose request it is, for policies that share the engine among tenants. Never a client's to choose."""
    routing_key: str = ""
    """Requests with the same key like to run together, for policies that read it; empty: no key."""
    deadline_s: float | None = None
    """Seconds from its arrival; one that has not ended by then ends with an error."""
    arrival_s: float | None = None
    """When it was handed over, by the scheduler's clock; None: when the scheduler takes it in."""
    name: str = ""
    """The id that the client knows the request by, for whoever asks about it later."""
    grammar: GrammarOrder | None = None
    """None: the answer is free."""
    leader: str | None = None
    """Another request with the same prompt: this one starts when that has computed it, and finds it in the cache."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request, queued or running. Unknown ids are ignored: the request may just have ended by itself."""

    rid: str


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the scheduler beside requests. Answered once: by its own kind of answer, or by `Refused`."""

    id: int


class Flush(Question, frozen=True, tag=True):
    """Empty the prefix cache. Answered by `Flushed`."""


class GetStats(Question, frozen=True, tag=True):
    """Answered by `Stats`."""


class GetCache(Question, frozen=True, tag=True):
    """Answered by `CacheReport`."""


class Explain(Question, frozen=True, tag=True):
    """Why a prompt hits as much as it does. Answered by `Explained`."""

    tokens: bytes
    namespace: Namespace = DEFAULT_NAMESPACE
    elsewhere: bool = False
    """Look at other namespaces too."""


class ExplainRequest(Question, frozen=True, tag=True):
    """What became of a request, and why. Answered by `RequestExplained`."""

    name: str
    """The client's id; of several, the newest request."""
    tenant: str = ""
    """Whose it is: tenants choose ids without knowing each other's."""


class Pin(Question, frozen=True, tag=True):
    """Compute a prefix, cached or not, and keep it. Answered by `Pinned` once it is there."""

    name: str
    tokens: bytes
    namespace: Namespace = DEFAULT_NAMESPACE
    ttl_s: float | None = None
    """Seconds to keep it; None until it is unpinned."""


class Unpin(Question, frozen=True, tag=True):
    """Answered by `Pinned`, with what was pinned."""

    name: str


Inbound = NewRequest | Abort | Flush | GetStats | GetCache | Explain | ExplainRequest | Pin | Unpin


class Verdict(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Whether a request was accepted; if not, why, with a stable code and the offending field where there is one."""

    rid: str
    accepted: bool
    code: str = ""
    problem: str = ""
    field: str | None = None
    status: int = 400


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended."""

    reason: FinishReason
    matched: str | int | None = None
    """The stop string or stop token that ended it."""
    problem: str = ""
    """What went wrong, for `error`; the next three are of `error` too."""
    field: str | None = None
    """The parameter that is at fault."""
    code: str = "generation_failed"
    """Stable for clients."""
    status: int = 500
    """HTTP's."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """What the model made of one position."""

    token: int
    """The one that stands there."""
    logprob: float | None
    """Of that token; None: there is none, since nothing comes before the first token of a prompt. May be infinite."""
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens there, the best first, of equals the lowest id, and their log-probabilities."""


class Output(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """New tokens of a request, in order; with `finish`, the last of it."""

    rid: str
    tokens: tuple[int, ...]
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of the tokens, where they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's tokens from `prompt_logprobs_start`, in the first output, where they were asked for."""
    finish: Finish | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """To the question with this id."""

    id: int


class Refused(Answer, frozen=True, tag=True):
    """The question could not be answered, or what it asks for not be done."""

    problem: str
    code: str
    field: str | None = None
    status: int = 409


class Flushed(Answer, frozen=True, tag=True):
    """The answer to `Flush`."""

    tokens: int
    """Given back."""


class Stats(Answer, frozen=True, tag=True):
    """The answer to `GetStats`."""

    values: dict[str, int | float]
    """Counters and gauges by name."""
    counts: Mapping[str, Mapping[str, int | float]] = {}
    """Counters by name, and then by what tells them apart."""
    histograms: dict[str, Distribution] = {}


class PinState(msgspec.Struct, frozen=True, kw_only=True):
    """One pin."""

    name: str
    tokens: int
    """Whole pages."""
    namespace: Namespace
    expires_in_s: float | None
    """None: never."""


class Pinned(Answer, frozen=True, tag=True):
    """The answer to `Pin`, and to `Unpin` with what was pinned."""

    pin: PinState


class CacheReport(Answer, frozen=True, tag=True):
    """The answer to `GetCache`. Tokens; the first four add up to the pool."""

    free: int
    evictable: int
    protected: int
    held: int
    pool: int
    namespaces: int
    """Namespaces that something is cached of."""
    pinned: int
    """Part of `protected`."""
    pin_budget: int
    pins: tuple[PinState, ...]


class Explained(Answer, frozen=True, tag=True):
    """The answer to `Explain`."""

    explanation: Explanation
    evicted_ago_s: float | None = None
    """How long ago the eviction was that ends the match, where one does."""
    elsewhere: Search | None = None
    """Set where the question asks for it."""


class RequestExplained(Answer, frozen=True, tag=True):
    """The answer to `ExplainRequest`."""

    timeline: Timeline


Outbound = Verdict | Output | Refused | Flushed | Stats | Pinned | CacheReport | Explained | RequestExplained
