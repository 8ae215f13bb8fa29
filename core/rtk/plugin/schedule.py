"""The schedule contract: a policy orders the waiting requests; the host keeps queue, budgets and admission."""

import random
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ORDER_LIMIT = 1000
"""`order` sees at most this many requests, the earliest arrivals; the rest keep their place behind them."""


class RequestView(NamedTuple):
    """What a policy sees of one waiting request. Lengths are in tokens."""

    id: int
    """Arrival number: unique, ascending."""
    arrival_s: float
    """Injected clock at arrival, in seconds."""
    prompt_len: int
    max_new_tokens: int
    matched_len: int
    """Tokens that the prefix cache holds now; 0 unless the plugin requires `prefix_match`."""
    prefilled_since_arrival: int
    """Tokens that the engine has prefilled, for anybody, since this request arrived."""
    priority: int
    """What the client gave, higher is more important; a plugin that reads it requires `priority`."""

    @property
    def uncached_len(self) -> int:
        """Prompt tokens that would have to be computed now."""
        return self.prompt_len - self.matched_len


HOLD_LIMIT_S = 10.0
"""While nothing runs, everybody may be held until the first arrival has waited this long."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The waiting requests as arrays of one length n, in order of arrival: `RequestView`'s fields, one array each.

    The arrays are read-only.
    """

    id: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    max_new_tokens: NDArray[np.int64]
    matched_len: NDArray[np.int64]
    prefilled_since_arrival: NDArray[np.int64]
    priority: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in RequestView._fields:
            array = getattr(self, name)
            array.flags.writeable = False
            object.__setattr__(self, name, array.view())  # what does not own its data cannot be resized

    @property
    def uncached_len(self) -> NDArray[np.int64]:
        """Prompt tokens that would have to be computed now, [n]."""
        return self.prompt_len - self.matched_len

    def __len__(self) -> int:
        return len(self.id)

    def views(self) -> list[RequestView]:
        """The same facts, one view per request. O(n)."""
        columns = (getattr(self, name).tolist() for name in RequestView._fields)
        return [RequestView(*row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """What else a policy may use. `now` and `rng` are injected, so a replay gives the same order."""

    now: float
    rng: random.Random
    running: int
    """Requests that decode at the moment."""


class SchedulePolicy(ABC):
    """Orders the waiting requests, once a step. A policy overrides `rank` (any length) or `order` (short queues)."""

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        """Sort keys over all waiting requests: arrays of shape [n], the most important first, smaller goes first.

        Arrays of real numbers or booleans, without NaN. The host appends the arrival number: the order is total.
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
