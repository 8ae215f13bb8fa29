"""What one client may take of the engine: tokens by the minute, requests at a time, lengths of prompt and answer."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from rtk.errors import RequestError
from rtk.schedule.params import SamplingParams

MINUTE_S = 60.0


class _Bounds(Protocol):
    """The section of the configuration, as far as it is read here."""

    @property
    def max_requests(self) -> int | None: ...
    @property
    def tokens_per_minute(self) -> int | None: ...
    @property
    def limits(self) -> Mapping[str, Mapping[Any, int | None]]: ...


class Account:
    """What a tenant takes of the engine. Belongs to one event loop.

    Tokens are paid when they are there, prompts when they are encoded, so that nothing has to be estimated: a tenant
    that still has some may overdraw, and waits until the minutes have paid for it.
    """

    def __init__(
        self,
        max_requests: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """None: any number."""
        self._max_requests = max_requests
        self._rate = None if tokens_per_minute is None else tokens_per_minute / MINUTE_S
        self._most = float(tokens_per_minute or 0)
        self._clock = clock
        self._left, self._as_of = self._most, clock()
        self.requests = 0
        """That wait or run."""

    def take(self, requests: int) -> None:
        """Begin so many requests; `give_back` follows, whether this refuses or not. Raises `RequestError`."""
        self.requests += requests
        if self._max_requests is not None and requests > self._max_requests:
            raise RequestError(
                f"asks for {requests} answers; you may have {self._max_requests} at a time: "
                "send fewer prompts in one request, or a lower n"
            )
        if self._max_requests is not None and self.requests > self._max_requests:
            already = self.requests - requests
            raise _exceeded(
                f"{already} of your requests wait or run, and with {requests} more they are over the "
                f"{self._max_requests} that you may have",
                1,
            )
        if self._rate is not None and self._refilled() < 1:
            limit = f"you have used up your {self._most:,.0f} tokens per minute"
            raise _exceeded(limit, (1 - self._left) / self._rate)

    def give_back(self, requests: int) -> None:
        """So many requests are over."""
        self.requests -= requests

    def spend(self, tokens: int) -> None:
        """Pay for tokens."""
        if self._rate is not None:
            self._left = self._refilled() - tokens

    def _refilled(self) -> float:
        now = self._clock()
        if self._rate is not None:
            self._left = min(self._most, self._left + (now - self._as_of) * self._rate)
        self._as_of = now
        return self._left


UNLIMITED = Account()


class Accounts:
    """The accounts of all tenants."""

    def __init__(self, bounds: _Bounds | None = None) -> None:
        """None: nobody has limits."""
        self._bounds = bounds
        self._accounts: dict[str, Account] = {}

    def of(self, tenant: str) -> Account:
        """The account of a tenant; of those that the configuration names there is a bounded number."""
        if self._bounds is None:
            return UNLIMITED
        if tenant not in self._accounts:
            own = self._bounds.limits.get(tenant, {})
            self._accounts[tenant] = Account(
                own.get("max_requests", self._bounds.max_requests),
                own.get("tokens_per_minute", self._bounds.tokens_per_minute),
            )
        return self._accounts[tenant]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """How long prompts and answers may be, beside what model and pool allow; None: as long as they are."""

    prompt_tokens: int | None = None
    new_tokens: int | None = None

    def applied(
        self, params: SamplingParams, prompt_tokens: int, *, prompt_name: str, names: Mapping[str, str]
    ) -> SamplingParams:
        """The parameters, with a length where there was none. Raises `RequestError` for what is too long.

        The last two: what the client calls its prompt, and its parameters.
        """
        if self.prompt_tokens is not None and prompt_tokens > self.prompt_tokens:
            raise RequestError(
                f"{prompt_name}: {prompt_tokens:,} tokens; this server takes prompts of {self.prompt_tokens:,} at most",
                field=prompt_name,
                code="prompt_too_long",
            )
        if self.new_tokens is None:
            return params
        name = names.get("max_new_tokens", "max_new_tokens")
        if params.max_new_tokens is None:
            low = names.get("min_new_tokens", "min_new_tokens")
            if params.min_new_tokens > self.new_tokens:
                raise _too_many(low, params.min_new_tokens, self.new_tokens)
            return replace(params, max_new_tokens=self.new_tokens)
        if params.max_new_tokens > self.new_tokens:
            raise _too_many(name, params.max_new_tokens, self.new_tokens)
        return params


NO_CEILINGS = Ceilings()


def _too_many(name: str, value: int, most: int) -> RequestError:
    return RequestError(f"{name} = {value}: this server's answers have {most:,} tokens at most", field=name)


def _exceeded(limit: str, wait_s: float) -> RequestError:
    retry_after_s = max(1, math.ceil(wait_s))
    return RequestError(
        f"{limit}; try again in {retry_after_s} s",
        code="rate_limit_exceeded",
        status=429,
        retry_after_s=retry_after_s,
    )
