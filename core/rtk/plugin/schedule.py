"""The schedule contract: a policy orders the waiting requests; the host keeps queue, budgets and admission."""

import math
import random
from abc import ABC
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ORDER_LIMIT = 1000
"""`order` sees at most this many requests, the earliest arrivals; the rest keep their place behind them."""

HOLD_LIMIT_S = 10.0
"""While nothing runs, everybody may be held until the first arrival has waited this long."""


class RequestView(NamedTuple):
    """What a policy sees of one request. Lengths are in tokens.

    Of a request that runs, `matched_len` is what it has computed of its prompt, and `output_len` what it has generated:
    what is left of its prompt is `prompt_len - matched_len`, and `uncached_len` says nothing.
    """

    id: int
    """Arrival number: unique, ascending, from 1."""
    arrival_s: float
    """Injected clock at arrival, in seconds."""
    prompt_len: int
    max_new_tokens: int
    """What was asked for; a retraction does not change it."""
    matched_len: int
    """Tokens that the prefix cache has on the device now; 0 unless the plugin requires `prefix_match`."""
    prefilled_since_arrival: int
    """Tokens that the engine has prefilled, for anybody, since this request arrived."""
    priority: int
    """What the client gave, higher is more important; a plugin that reads it requires `priority`."""
    output_len: int = 0
    """Tokens that it had generated when it was retracted; it computes them again, as if they were prompt."""
    stored_len: int = 0
    """Tokens that follow the matched ones and lie in a lower tier; 0 unless the plugin requires `prefix_match`."""
    shares_prefix: bool = False
    """Whether an earlier waiting request begins with the same `in_batch_len` tokens; requires `in_batch_check`."""
    tenant: int = 0
    """Whose it is: an index of `ScheduleContext.tenants`; requires `tenant`."""
    running_with_key: int = 0
    """Running requests with the same routing key, 0 for a request without; requires `routing_key`."""
    retractions: int = 0
    """How often it had to make room for others."""
    deadline_s: float = math.inf
    """When it must have ended, by the clock of `arrival_s`; infinite where the client set no deadline."""

    @property
    def hit_len(self) -> int:
        """Tokens matched in all tiers."""
        return self.matched_len + self.stored_len

    @property
    def uncached_len(self) -> int:
        """Tokens that would have to be computed now before it decodes, of a request that waits."""
        return self.prompt_len + self.output_len - self.hit_len


def _absent() -> NDArray[Any]:
    return np.zeros(0, dtype=np.int64)


def _make_read_only(arrays: object, names: Iterable[str]) -> None:
    for name in names:
        array = getattr(arrays, name)
        array.flags.writeable = False
        object.__setattr__(arrays, name, array.view())  # what does not own its data cannot be resized


@dataclass(frozen=True, slots=True)
class Columns:
    """The waiting requests as arrays of one length n: `RequestView`'s fields, one array each.

    In order of arrival, those that were retracted before all others. The arrays are read-only. A column that is not
    given is all zeros, or infinite for `deadline_s`.
    """

    id: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    max_new_tokens: NDArray[np.int64]
    matched_len: NDArray[np.int64]
    prefilled_since_arrival: NDArray[np.int64]
    priority: NDArray[np.int64]
    output_len: NDArray[np.int64] = field(default_factory=_absent)
    stored_len: NDArray[np.int64] = field(default_factory=_absent)
    shares_prefix: NDArray[np.bool_] = field(default_factory=_absent)
    tenant: NDArray[np.int64] = field(default_factory=_absent)
    running_with_key: NDArray[np.int64] = field(default_factory=_absent)
    retractions: NDArray[np.int64] = field(default_factory=_absent)
    deadline_s: NDArray[np.float64] = field(default_factory=_absent)

    def __post_init__(self) -> None:
        for name, kind in RequestView.__annotations__.items():
            if len(getattr(self, name)) < len(self.id):
                usual = RequestView._field_defaults.get(name, 0)
                object.__setattr__(self, name, np.full(len(self.id), usual, dtype=kind))
        _make_read_only(self, RequestView._fields)

    @property
    def hit_len(self) -> NDArray[np.int64]:
        """Tokens matched in all tiers, [n]."""
        return self.matched_len + self.stored_len

    @property
    def uncached_len(self) -> NDArray[np.int64]:
        """Tokens that would have to be computed now before each decodes, [n]."""
        return self.prompt_len + self.output_len - self.hit_len

    def deferred(self, hit_at_most: int) -> NDArray[np.bool_]:
        """The in-batch prefix check, [n]: who shares its first tokens with an earlier waiting request and hits little.

        Once the earlier one has run, the later finds them cached. Requires `prefix_match` and `in_batch_check`.
        """
        return self.shares_prefix & (self.hit_len <= hit_at_most)

    def __len__(self) -> int:
        return len(self.id)

    def views(self) -> list[RequestView]:
        """The same facts, one view per request. O(n)."""
        columns = (getattr(self, name).tolist() for name in RequestView._fields)
        return [RequestView(*row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class TreeView:
    """The part of the prefix tree in which matches of waiting requests end, as read-only arrays.

    m nodes, each after its parent. The root of every namespace is among them, also of one that nothing is cached of.
    """

    parent: NDArray[np.int64]
    """[m] the index of each node's parent; -1 for a root."""
    size: NDArray[np.int64]
    """[m] tokens of each node; 0 for a root."""
    node: NDArray[np.int64]
    """[n] the index of the node in which the match of each waiting request ends."""

    def __post_init__(self) -> None:
        _make_read_only(self, ("parent", "size", "node"))


class Progress(NamedTuple):
    """What a step has computed for one request."""

    id: int
    tenant: int
    """An index of `ScheduleContext.tenants`; 0 unless the plugin requires `tenant`."""
    prefill: int
    """Tokens of its prompt, or of what it had generated before a retraction."""
    decode: int
    """Tokens after that."""


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """What else a policy may use. `now` and `rng` are injected, so a replay gives the same order."""

    now: float
    rng: random.Random
    running: int
    """Requests that decode at the moment."""
    prefilled_total: int = 0
    """Tokens that the engine has prefilled since its start."""
    page_size: int = 1
    tenants: Sequence[str] = ()
    """Names of tenants by their number; empty unless the plugin requires `tenant`."""
    tree: TreeView | None = None
    """There for `rank` and `order` if the plugin requires `tree`."""
    chunked: RequestView | None = None
    """The request of which a part is computed; there for `chunk_reserve`."""
    fallbacks: list[str] = field(default_factory=list)
    """A policy that orders by another rule than its own adds one line that says so: the host counts and reports it.

    Without numbers that change from step to step: explanations have a few of the lines that differ.
    """


class SchedulePolicy(ABC):
    """Orders the waiting requests, once a step. A policy overrides `rank` (any length) or `order` (short queues)."""

    in_batch_len: int = 32
    """Tokens that two prompts must begin with for `shares_prefix`, at least 1. Read once, after construction."""

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        """Sort keys over all waiting requests: arrays of shape [n], the most important first, smaller goes first.

        Arrays of real numbers or booleans, infinite ones too, without NaN. The host appends the place in `columns`: the
        order is total.
        """
        raise NotImplementedError

    def order(self, views: Sequence[RequestView], ctx: ScheduleContext) -> Sequence[int]:
        """The ids of `views`, each exactly once, first to run first. At most `ORDER_LIMIT` views are given."""
        raise NotImplementedError

    def hold(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.bool_] | None:
        """Requests that must not start in this step, as a mask of shape [n]; None holds nobody.

        Asked again in the next step. Where everybody is held and nothing runs, that is as soon as a message arrives and
        at the latest after a pause, which doubles from 1 to 50 ms; and once the first arrival has waited `HOLD_LIMIT_S`
        there, the hold counts as a fault and everybody may start.
        """
        return None

    def prefer_decode(self, ctx: ScheduleContext) -> bool:
        """True keeps new requests waiting in this step and lets the running ones decode. Asked only while some run."""
        return False

    def chunk_reserve(self, columns: Columns, ctx: ScheduleContext) -> int:
        """Tokens of the step that the next piece of `ctx.chunked` leaves to waiting requests.

        Asked only while a prompt is computed in pieces. The piece keeps a page at least.
        """
        return 0

    def on_progress(self, deltas: Sequence[Progress]) -> None:
        """Told once a step, when its results are taken in, what was computed for whom.

        Prompts count also where the request has ended meanwhile, as by an abort; a decode row that was launched before
        the end was known does not.
        """

    def retract_key(self, view: RequestView) -> tuple[Any, ...]:
        """The place of a running request in the order of retraction: smaller goes first.

        The host's order, which is `schedule.retraction`, breaks ties.

        Its parts are of type bool, int, float (no NaN) or str: as many in every key, and strings at the same places.
        """
        return ()

    def preempts(self, waiting: RequestView, running: RequestView) -> bool:
        """Whether `running` is retracted so that `waiting`, which does not fit beside it, can start."""
        return False
