"""Answers what is asked of the cache beside requests: what is in it, why a prompt hits or misses, and pins."""

from collections.abc import Callable, Iterable

from rtk.cache.explain import explain, search
from rtk.cache.key import TOKEN_BYTES, Key
from rtk.cache.lease import Lease
from rtk.cache.pins import Pin as PinnedPrefix
from rtk.cache.pins import Pins
from rtk.cache.pools import Pools
from rtk.errors import RequestError
from rtk.schedule.budget import Limits, charge
from rtk.schedule.messages import CacheReport, Explain, Explained, Flushed, Pin, Pinned, PinState, Refused
from rtk.schedule.request import Request

NAMED = 16
"""Pins that a refusal names, where there are many."""

_DISABLED = "the prefix cache is switched off (cache.disable)"


class CacheDesk:
    """The cache's books beyond requests. What is refused raises `RequestError`.

    A pin is *ordered* from its acceptance until its prefix is computed.
    """

    def __init__(self, pools: Pools, pins: Pins, limits: Limits, clock: Callable[[], float]) -> None:
        self._pools = pools
        self._pins = pins
        self._limits = limits
        self._clock = clock
        self._ordered: dict[str, Pin] = {}
        self._takes: dict[str, int] = {}  # tokens that each order takes beyond what is pinned,
        self._as_of = 0  # as of so many changes of the pins

    @property
    def pinned(self) -> int:
        """Tokens that are pinned, all of them protected."""
        return self._pins.tokens

    @property
    def spoken_for(self) -> int:
        """Tokens that are pinned or ordered: no request can count on them. O(orders), and what `_orders` costs."""
        return self._pins.tokens + sum(self._orders().values())

    def _orders(self) -> dict[str, int]:
        """`_more` of each order. O(1); after the pins changed, O(nodes pinned) and a look-up for each order."""
        if self._as_of != self._pins.changes:
            self._takes = {name: self._more(pin) for name, pin in self._ordered.items()}
            self._as_of = self._pins.changes
        return self._takes

    def _more(self, pin: Pin) -> int:
        """Tokens that an order takes beyond what is pinned now; the pins it shares with may go before it is there."""
        tokens = self._whole_pages(pin)
        match = self._pools.cache.peek(Key(pin.namespace, pin.tokens), limit=tokens)
        return tokens - self._pins.shared(match)

    def _whole_pages(self, pin: Pin) -> int:
        length = len(pin.tokens) // TOKEN_BYTES
        return length - length % self._limits.page_size

    def expire(self) -> None:
        """Take off the pins whose time is over. O(1), and O(nodes pinned) where there are any."""
        self._pins.expire()

    # --- reading ------------------------------------------------------------------------------------------------

    def report(self, id: int, held: int) -> CacheReport:
        """Every slot by its state, and the pins."""
        cache, allocator = self._pools.cache, self._pools.allocator
        return CacheReport(
            id=id,
            free=allocator.free,
            evictable=cache.evictable,
            protected=cache.protected,
            held=held,
            pool=allocator.capacity,
            namespaces=cache.namespaces,
            pinned=self._pins.tokens,
            pin_budget=self._pins.budget,
            pins=tuple(map(self._state, self._pins)),
        )

    def explain(self, question: Explain) -> Explained:
        """See `rtk.cache.explain`."""
        cache, key = self._pools.cache, Key(question.namespace, question.tokens)
        if not cache.enabled:
            raise _refusal(_DISABLED, code="cache_disabled")
        explanation = explain(cache, key)
        evicted = explanation.evicted
        return Explained(
            id=question.id,
            explanation=explanation,
            evicted_ago_s=None if evicted is None else self._clock() - evicted.time_s,
            elsewhere=search(cache, key) if question.elsewhere else None,
        )

    def flush(self, id: int, requests: int) -> Flushed:
        """Empty the cache, unless `requests` run or wait."""
        if requests:
            busy = f"the cache stays as it is: {requests} requests are running or waiting; try again when idle"
            raise _refusal(busy, code="cache_busy")
        return Flushed(id=id, tokens=self._pools.cache.flush())

    def _state(self, pin: PinnedPrefix) -> PinState:
        left = None if pin.expires_s is None else max(0.0, pin.expires_s - self._clock())
        return PinState(name=pin.name, tokens=pin.tokens, namespace=pin.namespace, expires_in_s=left)

    # --- pins ---------------------------------------------------------------------------------------------------

    def order(self, pin: Pin, accepted: Iterable[Request]) -> None:
        """Accept a pin, whose prefix is then to be computed. O(accepted), and what `spoken_for` costs.

        Raises `RequestError`, with the numbers: over budget, or some accepted request could never run beside it.
        """
        length, page = len(pin.tokens) // TOKEN_BYTES, self._limits.page_size
        if not self._pools.cache.enabled:
            raise _refusal(_DISABLED, code="cache_disabled")
        if not self._whole_pages(pin):
            problem = f"its {length} tokens do not fill a page of {page}"
            raise _refusal(problem, code="pin_too_short", field="prompt", status=400)
        if pin.name in self._ordered:
            raise _refusal(self._being_computed(pin.name), code="duplicate_pin", field="name")
        if pin.name in self._pins:
            problem = f"there is a pin {pin.name!r} already; unpin it first"
            raise _refusal(problem, code="duplicate_pin", field="name")
        taken, more = self.spoken_for, self._more(pin)
        if taken + more > self._pins.budget:
            raise _refusal(
                f"pin {pin.name!r} takes {more} tokens, {taken} are taken, and the budget is "
                f"{self._pins.budget}; unpin something, or raise cache.pins.budget",
                code="pin_over_budget",
            )
        self._check_room(pin.name, self._limits.pool_tokens - taken - more, accepted)
        self._ordered[pin.name], self._takes[pin.name] = pin, more

    def _check_room(self, name: str, left: int, accepted: Iterable[Request]) -> None:
        """Refuse what would leave too few tokens for a request that was accepted, those that compute pins included."""
        page = self._limits.page_size
        for request in accepted:
            least = charge(request.prompt_len, request.max_new_tokens, page) + 1
            needs = max(least, request.prompt_len + request.max_new_tokens)
            if request.pin is not None:
                needs -= self._whole_pages(request.pin)  # which are spoken for already
            if needs > left:
                raise _refusal(
                    f"pin {name!r} would leave {left} tokens of the pool, and a request that was accepted needs "
                    f"{needs}; try again later",
                    code="pin_no_room",
                )

    def settle(self, pin: Pin, lease: Lease | None, problem: str) -> Pinned | Refused:
        """The order is done: keep the lease, or say why there is none."""
        del self._ordered[pin.name], self._takes[pin.name]
        if lease is None:
            return Refused(id=pin.id, problem=problem or "the engine failed on this pin", code="pin_failed", status=500)
        return Pinned(id=pin.id, pin=self._state(self._pins.add(pin.name, lease, pin.ttl_s)))

    def unpin(self, id: int, name: str) -> Pinned:
        """Take a pin off."""
        if name in self._pins:
            return Pinned(id=id, pin=self._state(self._pins.remove(name)))
        if name in self._ordered:
            raise _refusal(self._being_computed(name), code="pin_not_ready", field="name")
        names = sorted(repr(pin.name) for pin in self._pins)
        there = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        raise _refusal(
            f"there is no pin {name!r}; pins: {there or 'none'}", code="unknown_pin", field="name", status=404
        )

    def _being_computed(self, name: str) -> str:
        return f"the prefix of pin {name!r} is being computed; try again when it is there"


def _refusal(problem: str, *, code: str, field: str | None = None, status: int = 409) -> RequestError:
    return RequestError(problem, field=field, code=code, status=status)
