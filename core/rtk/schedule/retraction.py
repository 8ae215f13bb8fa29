"""Who makes room when the running requests need more slots than there are, and when a more important one waits."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from rtk.schedule.admission import Lack, reserve
from rtk.schedule.request import Request
from rtk.schedule.settings import Retraction

OFTEN = 10
"""Retractions within `WINDOW` steps that are called frequent."""
WINDOW = 1000

PolicyKey = Callable[[Request], tuple[Any, ...]]


def retraction_order(
    requests: Iterable[Request], how: Retraction, policy_key: PolicyKey | None = None, last: int = 0
) -> list[Request]:
    """The requests, first to be retracted first: by the policy's key if it has one, then by the host's order.

    That is: the least important (where `how` is priority), the fewest generated tokens, the longest input, the latest
    arrival. `last`, the arrival number of who was retracted last, comes after everybody of its class: those whom
    neither the policy nor their importance sets apart. Where the policy has no key for one of them, `()`, its keys are
    not used: they compare with no other order. O(n log n).
    """
    listed = list(requests)
    told = {r.id: policy_key(r) for r in listed} if policy_key else {}
    if not all(told.values()):
        told = {}

    def key(r: Request) -> tuple[Any, ...]:
        importance = r.priority if how == "priority" else 0
        return (*told.get(r.id, ()), importance, r.id == last, r.sampled, -r.prompt_len, -r.id)

    return sorted(listed, key=key)


def sufficient(order: Iterable[Request], lack: Lack, ratio: float) -> list[Request]:
    """The first of `order` whose retraction gives a candidate what it lacks; nobody where that of all does not.

    A cached node is given back by the last who holds it, except for what the candidate locks of it. O(nodes held).
    """
    current, total, locked = lack
    victims: list[Request] = []
    holders: Counter[int] = Counter()
    for victim in order:
        victims.append(victim)
        slots = victim.capacity
        for node in victim.lease.nodes() if victim.lease else ():
            holders[node.id] += 1
            slots -= node.size
            if holders[node.id] == node.locks:
                slots += node.size - locked.get(node.id, 0)
        current, total = current - slots, total - slots - ratio * reserve(victim)
        if current <= 0 and total < 0:
            return victims
    return []


class RetractionWatch:
    """Notices when retractions are frequent."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque()
        self._advised = -WINDOW

    def happened(self, step: int) -> bool:
        """One more in this step. True where it is time to say that they are frequent: at most once in a window."""
        self._steps.append(step)
        if not self.frequent(step) or step - self._advised < WINDOW:
            return False
        self._advised = step
        return True

    def frequent(self, step: int) -> bool:
        """Whether there were many in the last `WINDOW` steps. O(1) amortised."""
        while self._steps and self._steps[0] <= step - WINDOW:
            self._steps.popleft()
        return len(self._steps) >= OFTEN
