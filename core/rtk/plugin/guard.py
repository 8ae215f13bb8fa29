"""Between the host and a policy: one that raises or answers nonsense is replaced by the host's own order.

The host's orders: eviction falls back to least recently used and stays there (keys of two orders must not meet in one
heap); scheduling falls back to order of arrival for that step and asks the policy again in the next.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.errors import one_line
from rtk.plugin.eviction import FACTS, EvictionPolicy, NodeView
from rtk.plugin.foreign import contained
from rtk.plugin.schedule import HOLD_LIMIT_S, ORDER_LIMIT, Columns, ScheduleContext, SchedulePolicy

log = logging.getLogger(__name__)

HOST_EVICTION = "least recently used"
EXACT_TYPES = frozenset({bool, int, str})
KEY_TYPES = EXACT_TYPES | {float, np.float64}
"""What eviction keys are made of: exactly these types; comparisons of a subclass's may fail.

So may NumPy's with a huge int: its floats become Python's.
"""


class Health:
    """Counts the faults of plugins; the first of each is logged."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()

    @property
    def degraded(self) -> bool:
        """Whether any plugin's answer had to be replaced since the start."""
        return bool(self.faults)

    def fault(self, plugin: str, problem: str, instead: str) -> None:
        """Record that `plugin` failed, and what the host does instead."""
        if not self.faults[plugin]:
            log.error("%s: %s; the host uses %s instead", plugin, problem, instead)
        self.faults[plugin] += 1


class GuardedEviction:
    """An eviction policy whose keys are safe to sort. One fault switches it to LRU for good."""

    def __init__(self, policy: EvictionPolicy, name: str, health: Health) -> None:
        self._policy = policy
        self._name = name
        self._health = health
        self._kinds: tuple[bool, ...] | None = None
        self._plain: set[tuple[type, ...]] = set()  # types of keys that need no second look
        self.facts = FACTS
        self.faulted = False
        """Set once: every key given before is void and the heap must be rebuilt."""
        if isinstance(policy.facts, Set):
            self.facts = frozenset(policy.facts)
        else:
            self.fault("its facts are no set")
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
            try:
                key = self._policy.key(node)
                if type(key) is tuple and tuple(map(type, key)) in self._plain:
                    return key
                return self._checked(key)
            except BaseException as error:
                if not contained(error):
                    raise
                self.fault(f"key() failed: {one_line(error)}")
        return (node.last_use,)

    def _checked(self, key: Any) -> tuple[Any, ...]:
        if type(key) is not tuple or not key:
            raise TypeError(f"answered a {type(key).__name__}, not a non-empty tuple")
        types = tuple(map(type, key))
        if not KEY_TYPES.issuperset(types) or any(part != part for part in key):
            named = ", ".join(kind.__name__ for kind in types)
            raise TypeError(f"answered a tuple of {named}: parts must be bool, int, float or str, and no NaN")
        kinds = tuple(kind is str for kind in types)
        if self._kinds is None:
            self._kinds = kinds
        elif kinds != self._kinds:
            raise TypeError(f"answered {key!r}, which cannot be compared with its earlier keys")
        if EXACT_TYPES.issuperset(types):
            self._plain.add(types)
        return tuple(float(part) if type(part) is np.float64 else part for part in key)

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
                method(*args)
            except BaseException as error:
                if not contained(error):
                    raise
                self.fault(f"{event}() failed: {one_line(error)}")

        return tell


class GuardedSchedule:
    """A schedule policy whose answers are permutations and masks of the right shape.

    What the host needs afterwards is read before the policy sees it, and an answer is used as a plain array.
    """

    def __init__(self, policy: SchedulePolicy, name: str, health: Health) -> None:
        self._policy = policy
        self._name = f"schedule plugin {name!r}"
        self._health = health
        self._ranks = type(policy).rank is not SchedulePolicy.rank

    def order(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.int64]:
        """Positions of `columns`, the first to run first, without those on hold. O(n log n)."""
        count, idle = len(columns), not ctx.running
        waited = ctx.now - columns.arrival_s[0] if count else 0.0
        what, ask = ("rank", self._ranked) if self._ranks else ("order", self._listed)
        order = self._try(what, ask, columns, ctx)
        order = np.arange(count) if order is None else order
        held: NDArray[np.bool_] | None = self._try("hold", self._held, columns, ctx)
        if held is None:
            return order
        if idle and held.all() and waited >= HOLD_LIMIT_S:
            problem = f"hold() keeps everybody from an idle engine, the first for {waited:.0f} s"
            self._health.fault(self._name, problem, INSTEAD["hold"])
            return order
        return order[~held[order]]

    def prefer_decode(self, ctx: ScheduleContext) -> bool:
        """Whether new requests wait in this step. Never while nothing runs."""
        return bool(ctx.running and self._try("prefer_decode", lambda: bool(self._policy.prefer_decode(ctx))))

    def _try(self, what: str, ask: Callable[..., Any], *args: Any) -> Any:
        """What `ask` answers, or None where the policy failed."""
        try:
            return ask(*args)
        except BaseException as error:
            if not contained(error):
                raise
            self._health.fault(self._name, f"{what}() failed: {one_line(error)}", INSTEAD[what])
            return None

    def _ranked(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.int64]:
        count = len(columns)
        answer = self._policy.rank(columns, ctx)
        if not isinstance(answer, tuple):
            raise TypeError(f"answered a {type(answer).__name__}, not a tuple of arrays")
        keys = [_array(key, "biuf", count) for key in answer]
        if any(key.dtype.kind == "f" and np.isnan(key).any() for key in keys):
            raise ValueError("answered NaN")
        return np.lexsort((np.arange(count), *reversed(keys)))

    def _listed(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.int64]:
        views, count = columns.views()[:ORDER_LIMIT], len(columns)
        place = {view.id: i for i, view in enumerate(views)}
        ids = list(itertools.islice(self._policy.order(views, ctx), len(place) + 1))
        if len(ids) != len(place) or set(ids) != set(place):
            raise ValueError(f"did not answer each of the {len(place)} ids it was given once, and no other")
        return np.array([*(place[i] for i in ids), *range(len(place), count)], dtype=np.int64)

    def _held(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.bool_] | None:
        count = len(columns)
        held = self._policy.hold(columns, ctx)
        return None if held is None else _array(held, "b", count)


INSTEAD = {
    "rank": "order of arrival",
    "order": "order of arrival",
    "hold": "no hold",
    "prefer_decode": "prefill first",
}
"""What the host does where a method of a schedule policy fails."""


def _array(answer: Any, kinds: str, count: int) -> NDArray[Any]:
    """A policy's answer as a plain array of shape [count] and a dtype of one of the kinds."""
    if not isinstance(answer, np.ndarray):
        raise TypeError(f"answered a {type(answer).__name__}, not an array")
    array = np.asarray(answer)
    if array.shape != (count,) or array.dtype.kind not in kinds:
        raise ValueError(f"answered an array of {array.dtype} and shape {array.shape} for {count} requests")
    return array
