"""Between the host and a policy: one that raises or answers nonsense is replaced by the host's own order.

The host's orders: eviction falls back to least recently used and stays there (keys of two orders must not meet in one
heap); scheduling falls back to order of arrival for that step and asks the policy again in the next.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.errors import one_line
from rtk.plugin.eviction import EvictionPolicy, NodeView
from rtk.plugin.schedule import ORDER_LIMIT, Columns, ScheduleContext, SchedulePolicy

log = logging.getLogger(__name__)


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
        self._name = f"eviction plugin {name!r}"
        self._health = health
        self._shape: tuple[bool, ...] | None = None
        self.facts = policy.facts
        self.faulted = False
        """Set once: every key given before is void and the heap must be rebuilt."""

    def key(self, node: NodeView) -> tuple[Any, ...]:
        """The policy's key for `node`, or the host's own `(last_use,)`. O(1)."""
        if not self.faulted:
            try:
                return self._checked(self._policy.key(node))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
                self.fault(f"key() failed: {one_line(error)}")
        return (node.last_use,)

    def _checked(self, key: Any) -> tuple[Any, ...]:
        if type(key) is not tuple or not key:
            raise TypeError(f"answered {key!r}, not a non-empty tuple")
        for part in key:
            if not isinstance(part, int | float | str) or part != part:
                raise TypeError(f"answered {key!r}: parts must be numbers or strings, and no NaN")
        shape = tuple(isinstance(part, str) for part in key)
        if self._shape is None:
            self._shape = shape
        elif shape != self._shape:
            raise TypeError(f"answered {key!r}, which cannot be compared with its earlier keys")
        return key

    def fault(self, problem: str) -> None:
        """Give the policy up."""
        self._health.fault(self._name, problem, "least recently used")
        self.faulted = True

    def on_insert(self, node: NodeView) -> None:
        """Pass an insertion on."""
        self._tell(self._policy.on_insert, node)

    def on_hit(self, node: NodeView) -> None:
        """Pass a hit on."""
        self._tell(self._policy.on_hit, node)

    def on_evict(self, node: NodeView, key: tuple[Any, ...]) -> None:
        """Pass an eviction on."""
        self._tell(self._policy.on_evict, node, key)

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        if self.faulted:
            return
        try:
            method(*args)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
            self.fault(f"{method.__name__}() failed: {one_line(error)}")


class GuardedSchedule:
    """A schedule policy whose answers are permutations and masks of the right shape."""

    def __init__(self, policy: SchedulePolicy, name: str, health: Health) -> None:
        self._policy = policy
        self._name = f"schedule plugin {name!r}"
        self._health = health
        self._ranks = type(policy).rank is not SchedulePolicy.rank

    def order(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.int64]:
        """Positions of `columns`, the first to run first, without those on hold. O(n log n)."""
        order = self._try("rank" if self._ranks else "order", self._ordered, columns, ctx, "order of arrival")
        order = np.arange(len(columns)) if order is None else order
        held = self._try("hold", self._held, columns, ctx, "no hold")
        return order if held is None else order[~held[order]]

    def prefer_decode(self, ctx: ScheduleContext) -> bool:
        """Whether new requests wait in this step."""
        return bool(self._try("prefer_decode", lambda _, c: self._policy.prefer_decode(c), None, ctx, "prefill first"))

    def _try(self, what: str, ask: Callable[[Any, ScheduleContext], Any], columns: Any, ctx: Any, instead: str) -> Any:
        try:
            return ask(columns, ctx)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
            self._health.fault(self._name, f"{what}() failed: {one_line(error)}", instead)
            return None

    def _ordered(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.int64]:
        if not self._ranks:
            return self._listed(columns, ctx)
        keys = self._policy.rank(columns, ctx)
        for key in keys:
            if np.shape(key) != (len(columns),):
                raise ValueError(f"answered an array of shape {np.shape(key)} for {len(columns)} requests")
            if key.dtype.kind == "f" and np.isnan(key).any():
                raise ValueError("answered NaN")
        return np.lexsort((columns.id, *reversed(keys)))

    def _listed(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.int64]:
        views = columns.views()[:ORDER_LIMIT]
        place = {view.id: i for i, view in enumerate(views)}
        ids = list(self._policy.order(views, ctx))
        if len(ids) != len(place) or set(ids) != set(place):
            raise ValueError(f"answered {len(ids)} ids for {len(place)} requests, or ids it was not given")
        return np.array([*(place[i] for i in ids), *range(len(views), len(columns))], dtype=np.int64)

    def _held(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.bool_] | None:
        held = self._policy.hold(columns, ctx)
        if held is not None and (np.shape(held) != (len(columns),) or held.dtype != np.bool_):
            raise ValueError(f"answered {held!r}, not a mask of shape [{len(columns)}]")
        return held
