"""Between the host and a policy: one that raises or answers nonsense is replaced by the host's own order.

The host's orders: eviction falls back to least recently used and stays there (keys of two orders must not meet in one
heap); scheduling falls back to order of arrival for that step and asks the policy again in the next. A policy that does
not return is interrupted, and not asked again: each time would cost as much.
"""

import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.errors import MAX_REASON, one_line, printable
from rtk.plugin.eviction import FACTS, EvictionPolicy, NodeView
from rtk.plugin.foreign import Overran, contained
from rtk.plugin.ordering import Keys, Ordering
from rtk.plugin.schedule import (
    HOLD_LIMIT_S,
    ORDER_LIMIT,
    Columns,
    Progress,
    RequestView,
    ScheduleContext,
    SchedulePolicy,
)
from rtk.plugin.watchdog import EVERY_S, PATIENCE, Watchdog

log = logging.getLogger(__name__)

HOST_EVICTION = "least recently used"
HOST_SCHEDULE = "order of arrival"
EXACT_TYPES = frozenset({bool, int, str})
KEY_TYPES = EXACT_TYPES | {float, np.float64}
"""What keys of single things are made of: exactly these types; comparisons of a subclass's may fail.

So may NumPy's with a huge int: its floats become Python's.
"""


FALLBACK_LIMIT = 16
"""Lines that a policy may add in one ranking; more are passed over."""


class Health:
    """Counts the faults of one scheduler's plugins, the first of each is logged; and watches them."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.plugins: list[str] = []
        """Those that are known to be there, as faults name them."""
        self.instead: dict[str, str] = {}
        """What the host used at the latest fault of each."""
        self.watchdog = Watchdog()

    @property
    def degraded(self) -> bool:
        """Whether any plugin's answer had to be replaced since the start."""
        return bool(self.faults)

    def fault(self, plugin: str, problem: str, instead: str) -> None:
        """Record that `plugin` failed, and what the host does instead."""
        if not self.faults[plugin]:
            log.error("%s: %s; the host uses %s instead", plugin, problem, instead)
        self.instead[plugin] = instead
        self.faults[plugin] += 1

    def said(self, error: BaseException) -> str | None:
        """What a policy's exception says, in one line; None where the policy, or saying it, had to be interrupted.

        Its text is code of the policy's too.
        """
        if type(error) is Overran:
            return None
        try:
            return self.watchdog.watched(one_line, error)
        except BaseException as unreadable:
            if not contained(unreadable):
                raise
            return None if type(unreadable) is Overran else "what it raised cannot be read"

    def report(self) -> dict[str, dict[str, int | str]]:
        """By plugin: how often it failed, and what the host used in its place at the latest fault. From any thread."""
        return {
            plugin: {"faults": faults, "instead": self.instead[plugin]} for plugin, faults in dict(self.faults).items()
        }


class GuardedEviction:
    """An eviction policy whose keys are safe to sort. One fault switches it to LRU for good."""

    def __init__(self, policy: EvictionPolicy, name: str, health: Health) -> None:
        self._policy = policy
        self._name = name
        self._health = health
        self._watchdog = health.watchdog
        health.plugins.append(f"eviction plugin {name!r}")
        self._kinds: tuple[bool, ...] | None = None
        self._plain: set[tuple[type, ...]] = set()  # types of keys that need no second look
        self.facts = FACTS
        self.faulted = False
        """Set once: every key given before is void and the heap must be rebuilt."""
        try:
            if isinstance(declared := policy.facts, Set):
                self.facts = frozenset(declared)
            else:
                self.fault("its facts are no set")
        except BaseException as error:
            if not contained(error):
                raise
            self.fault(f"its facts cannot be had: {one_line(error)}")
        self.on_insert: Callable[[NodeView], None] | None = self._teller("on_insert")
        self.on_hit: Callable[[NodeView], None] | None = self._teller("on_hit")
        self.on_evict: Callable[[NodeView, tuple[Any, ...]], None] | None = self._teller("on_evict")
        self.remembers = any((self.on_insert, self.on_hit, self.on_evict))
        """Whether keys may depend on more than a node's facts."""

    @property
    def name(self) -> str:
        """Who picks the victims now."""
        return f"{HOST_EVICTION}, in place of {self._name}" if self.faulted else self._name

    def key(self, node: NodeView) -> tuple[Any, ...]:
        """The policy's key for `node`, or the host's own `(last_use,)`. O(1)."""
        if not self.faulted:
            watchdog = self._watchdog
            try:
                try:  # `Watchdog.watched`, written out: it would cost as much as most keys
                    watchdog.call = node  # whoever asks makes a new view for each call
                    key = self._policy.key(node)
                finally:
                    watchdog.call = None
                    if watchdog.alarm and watchdog.settle():
                        raise Overran
                if type(key) is tuple and tuple(map(type, key)) in self._plain:
                    return key
                return self._checked(key)
            except BaseException as error:
                watchdog.disarm()
                if not contained(error):
                    raise
                self.fault(problem_of("key", self._health.said(error)))
        return (node.last_use,)

    def _checked(self, key: Any) -> tuple[Any, ...]:
        checked, self._kinds = _comparable(key, self._kinds)
        types = tuple(map(type, key))
        if EXACT_TYPES.issuperset(types):
            self._plain.add(types)
        return checked

    def fault(self, problem: str) -> None:
        """Give the policy up."""
        self._health.fault(f"eviction plugin {self._name!r}", problem, HOST_EVICTION)
        self.faulted = True

    def _teller(self, event: str) -> Callable[..., None] | None:
        """Passes an event on to the policy; None if the policy does not care for it."""
        try:
            method = getattr(self._policy, event)
        except BaseException as error:
            if not contained(error):
                raise
            self.fault(f"{event} cannot be had: {one_line(error)}")
            return None
        if getattr(method, "__func__", None) is getattr(EvictionPolicy, event):
            return None

        def tell(*args: Any) -> None:
            if self.faulted:
                return
            try:
                watched(method, *args)
            except BaseException as error:
                if not contained(error):
                    raise
                self.fault(problem_of(event, self._health.said(error)))

        watched = self._watchdog.watched
        return tell


def problem_of(method: str, said: str | None) -> str:
    """What to say of a method that raised, or (None) had to be interrupted."""
    if said is None:
        return f"{method}() did not return within {PATIENCE * EVERY_S:g} s, and is not called again"
    return f"{method}() failed: {said}"


def _comparable(key: Any, kinds: tuple[bool, ...] | None) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """A key that compares with others of the kinds (which parts are text), and its own kinds. Raises `TypeError`."""
    if type(key) is not tuple or not key:
        raise TypeError(f"answered a {type(key).__name__}, not a non-empty tuple")
    types = tuple(map(type, key))
    if not KEY_TYPES.issuperset(types) or any(part != part for part in key):
        named = ", ".join(kind.__name__ for kind in types)
        raise TypeError(f"answered a tuple of {named}: parts must be bool, int, float or str, and no NaN")
    own = tuple(kind is str for kind in types)
    if own != (kinds or own):
        raise TypeError(f"answered {key!r}, which cannot be compared with its earlier keys")
    return tuple(float(part) if type(part) is np.float64 else part for part in key), own


class GuardedSchedule:
    """A schedule policy whose answers are permutations, masks, numbers and keys of the right shape.

    What the host needs afterwards is read before the policy sees it, and an answer is used as a plain array.
    """

    def __init__(self, policy: SchedulePolicy, name: str, health: Health) -> None:
        self._policy = policy
        self._name = f"schedule plugin {name!r}"
        self._health = health
        health.plugins.append(self._name)
        self._given_up = False
        self._ranks = type(policy).rank is not SchedulePolicy.rank
        self._retract_kinds: tuple[bool, ...] | None = None
        self._prefers = self._overrides("prefer_decode")
        self.reserves = self._overrides("chunk_reserve")
        """Whether the policy cares for these: the host need not ask one that does not."""
        self.listens = self._overrides("on_progress")
        self.has_retract_key = self._overrides("retract_key")
        self.may_preempt = self._overrides("preempts")
        self.in_batch_len: int = self._try("in_batch_len", self._in_batch_len) or SchedulePolicy.in_batch_len
        """Tokens that two prompts must begin with to be told as sharing a prefix."""

    def _overrides(self, method: str) -> bool:
        return getattr(type(self._policy), method) is not getattr(SchedulePolicy, method)

    def order(self, columns: Columns, ctx: ScheduleContext) -> Ordering:
        """Positions of `columns`, the first to run first, without those on hold. O(n), more as more are asked for."""
        count, idle = len(columns), not ctx.running
        waited = ctx.now - columns.arrival_s.min() if count else 0.0
        what, ask = ("rank", self._ranked) if self._ranks else ("order", self._listed)
        keys: Keys = self._try(what, ask, columns, ctx) or ()
        held: NDArray[np.bool_] | None = self._try("hold", self._held, columns, ctx)
        if held is not None and idle and held.all() and waited >= HOLD_LIMIT_S:
            problem = f"hold() keeps everybody from an idle engine, the first for {waited:.0f} s"
            self._health.fault(self._name, problem, INSTEAD["hold"])
            held = None
        return Ordering(count, keys, held)

    def prefer_decode(self, ctx: ScheduleContext) -> bool:
        """Whether new requests wait in this step. Never while nothing runs."""
        if not (self._prefers and ctx.running):
            return False
        own = dataclasses.replace(ctx)  # the host goes on with the one it has
        return bool(self._try("prefer_decode", lambda: bool(self._policy.prefer_decode(own))))

    def chunk_reserve(self, columns: Columns, ctx: ScheduleContext) -> int:
        """Tokens that the next piece of `ctx.chunked` leaves to others, 0 or more."""
        return self._try("chunk_reserve", self._reserved, columns, ctx) or 0 if self.reserves else 0

    def on_progress(self, deltas: Sequence[Progress]) -> None:
        """Tell the policy what was computed for whom."""
        if self.listens:
            self._try("on_progress", lambda: self._policy.on_progress(deltas))

    def retract_key(self, view: RequestView) -> tuple[Any, ...]:
        """The policy's key of a running request, comparable with all others; () where it has none."""
        return self._try("retract_key", self._retract_key, view) or () if self.has_retract_key else ()

    def preempts(self, waiting: RequestView, running: RequestView) -> bool:
        """Whether `running` is to make room for `waiting`."""
        if not self.may_preempt:
            return False
        return bool(self._try("preempts", lambda: bool(self._policy.preempts(waiting, running))))

    def fallbacks(self, ctx: ScheduleContext) -> list[str]:
        """What the policy has said of ordering by another rule than its own, at most `FALLBACK_LIMIT` lines."""
        return self._try("fallbacks", lambda: list(map(_line, itertools.islice(ctx.fallbacks, FALLBACK_LIMIT)))) or []

    def _try(self, what: str, ask: Callable[..., Any], *args: Any) -> Any:
        """What `ask` answers, or None where the policy failed."""
        if self._given_up:
            return None
        try:
            return self._health.watchdog.watched(ask, *args)
        except BaseException as error:
            if not contained(error):
                raise
            said = self._health.said(error)
            self._given_up = said is None
            instead = HOST_SCHEDULE if self._given_up else INSTEAD[what]
            self._health.fault(self._name, problem_of(what, said), instead)
            return None

    def _ranked(self, columns: Columns, ctx: ScheduleContext) -> Keys:
        count = len(columns)
        answer = self._policy.rank(columns, ctx)
        if not isinstance(answer, tuple):
            raise TypeError(f"answered a {type(answer).__name__}, not a tuple of arrays")
        keys = tuple(_array(key, "biuf", count) for key in answer)
        if any(key.dtype.kind == "f" and np.isnan(key).any() for key in keys):
            raise ValueError("answered NaN")
        return keys

    def _listed(self, columns: Columns, ctx: ScheduleContext) -> Keys:
        views, count = columns.views()[:ORDER_LIMIT], len(columns)
        place = {view.id: i for i, view in enumerate(views)}
        ids = list(itertools.islice(self._policy.order(views, ctx), len(place) + 1))
        if len(ids) != len(place) or set(ids) != set(place):
            raise ValueError(f"did not answer each of the {len(place)} ids it was given once, and no other")
        order = np.arange(count)
        order[[place[i] for i in ids]] = np.arange(len(ids))
        return (order,)

    def _held(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.bool_] | None:
        count = len(columns)
        held = self._policy.hold(columns, ctx)
        return None if held is None else _array(held, "b", count)

    def _reserved(self, columns: Columns, ctx: ScheduleContext) -> int:
        return max(0, _integer(self._policy.chunk_reserve(columns, ctx)))

    def _retract_key(self, view: RequestView) -> tuple[Any, ...]:
        key, self._retract_kinds = _comparable(self._policy.retract_key(view), self._retract_kinds)
        return key

    def _in_batch_len(self) -> int:
        length = _integer(self._policy.in_batch_len)
        if length < 1:
            raise ValueError(f"is {length}, not a number of tokens from 1 up")
        return length


INSTEAD = {
    "rank": HOST_SCHEDULE,
    "order": HOST_SCHEDULE,
    "hold": "no hold",
    "prefer_decode": "prefill first",
    "chunk_reserve": "no reserve",
    "on_progress": "nothing",
    "retract_key": "its own order",
    "preempts": "no preemption",
    "fallbacks": "no note",
    "in_batch_len": f"{SchedulePolicy.in_batch_len}",
}
"""What the host does where a method of a schedule policy fails."""


def _array(answer: Any, kinds: str, count: int) -> NDArray[Any]:
    """A policy's answer as a plain array of shape [count] and a dtype of one of the kinds.

    A copy: it is read later, when the policy may have written into its own.
    """
    if not isinstance(answer, np.ndarray):
        raise TypeError(f"answered a {type(answer).__name__}, not an array")
    array = np.asarray(answer)
    if array.shape != (count,) or array.dtype.kind not in kinds:
        raise ValueError(f"answered an array of {array.dtype} and shape {array.shape} for {count} requests")
    return array.copy()


def _integer(answer: Any) -> int:
    """A policy's answer as a plain integer."""
    if type(answer) is not int and not isinstance(answer, np.integer):
        raise TypeError(f"answered a {type(answer).__name__}, not an integer")
    return int(answer)


def _line(said: Any) -> str:
    if type(said) is not str:
        raise TypeError(f"a fallback is named by a {type(said).__name__}, not by a line of text")
    return printable(said)[:MAX_REASON]
