"""Puts a scheduler together: allocator, table, tree, queue and policies around an executor."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from rtk.cache.pins import Pins
from rtk.cache.pools import Pools
from rtk.cache.req_table import ReqTable
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.errors import ConfigError
from rtk.plugin.eviction import EvictionPolicy
from rtk.plugin.guard import GuardedEviction, GuardedSchedule, Health
from rtk.plugin.info import NEED_CACHE
from rtk.plugin.schedule import SchedulePolicy
from rtk.schedule.arrivals import MatchStop
from rtk.schedule.budget import Limits, ceil_page
from rtk.schedule.cache_desk import CacheDesk
from rtk.schedule.compiling import Grammars
from rtk.schedule.executor import Executor
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.reports import Reports
from rtk.schedule.scheduler import Scheduler
from rtk.schedule.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of one scheduler, with the names that messages give them."""

    eviction: EvictionPolicy
    eviction_name: str
    schedule: SchedulePolicy
    schedule_name: str
    schedule_requires: frozenset[str]
    """What the schedule policy asks for, see `rtk.plugin.info.CAPABILITIES`."""
    read_priority: bool = False
    """Whether one of them, or the order of retraction, reads the priorities of requests."""
    read_routing_key: bool = False
    """Whether the schedule policy reads the routing keys of requests."""


def build_scheduler(
    policies: Policies,
    executor: Executor,
    limits: Limits,
    *,
    cache_enabled: bool,
    settings: Settings,
    pin_budget: int | None,
    end_tokens: frozenset[int],
    match_stop: MatchStop,
    clock: Callable[[], float],
    rng: random.Random,
    reports: Reports | None = None,
    grammars: Grammars | None = None,
) -> Scheduler:
    """A scheduler with an empty cache.

    `pin_budget` is in tokens, by default a quarter of the pool; `clock` answers seconds; `rng` is the source of all
    unseeded randomness. Raises `ConfigError` for a policy that needs what is switched off.
    """
    if not cache_enabled and (lacking := sorted(policies.schedule_requires & NEED_CACHE)):
        raise ConfigError(
            f"schedule policy {policies.schedule_name!r} requires {' and '.join(lacking)}, and the prefix cache is "
            "switched off (cache.disable); drop that, or choose another schedule plugin"
        )
    health = Health()
    allocator = SlotAllocator(limits.pool_tokens, limits.page_size)
    table = ReqTable(limits.max_running, ceil_page(limits.context_length, limits.page_size))
    eviction = GuardedEviction(policies.eviction, policies.eviction_name, health)
    cache = PrefixCache(allocator, eviction, enabled=cache_enabled, clock=clock)
    pools = Pools(allocator, table, cache)
    pins = Pins(limits.pool_tokens // 4 if pin_budget is None else pin_budget, clock)
    schedule = GuardedSchedule(policies.schedule, policies.schedule_name, health)
    return Scheduler(
        pools=pools,
        desk=CacheDesk(pools, pins, limits, clock),
        queue=WaitingQueue(schedule, cache, requires=policies.schedule_requires),
        executor=executor,
        limits=limits,
        settings=settings,
        end_tokens=end_tokens,
        match_stop=match_stop,
        health=health,
        clock=clock,
        rng=rng,
        reports=reports,
        grammars=grammars,
    )
