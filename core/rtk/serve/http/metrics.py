"""GET /metrics: what is counted and measured, for Prometheus."""

import asyncio
from collections.abc import Callable
from time import monotonic

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.observe.render import rendered
from rtk.observe.series import UNASKED, Snapshot
from rtk.observe.vitals import process_report
from rtk.schedule.messages import Stats
from rtk.serve.http.endpoints import Endpoints, HttpSettings
from rtk.serve.http.watch import Tally
from rtk.serve.tokenizer_manager import TokenizerManager

PATIENCE_S = 3.0
"""How long a scrape waits for the engine; whoever scrapes waits longer, mostly 10 s."""


class Measured:
    """What the engine said last of itself. Asks once at a time, however many want to know."""

    def __init__(self, manager: TokenizerManager, clock: Callable[[], float] = monotonic) -> None:
        self._manager = manager
        self._clock = clock
        self._asking: asyncio.Task[bool] | None = None
        self._at = clock()
        self.stats: Stats = UNASKED

    @property
    def age_s(self) -> float:
        """How old that is."""
        return self._clock() - self._at

    async def renew(self, patience_s: float) -> bool:
        """Ask; answers whether the engine did in time. If not, the question stays open, and is the next one's too."""
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait((asking,), timeout=patience_s)
        return bool(done) and asking.result()

    async def _ask(self) -> bool:
        try:
            self.stats = await self._manager.measured()
        except RequestError:
            return False
        self._at = self._clock()
        return True


class Metrics(Endpoints):
    """The handler of /metrics."""

    def __init__(
        self, manager: TokenizerManager, settings: HttpSettings, measured: Measured, tally: Tally, version: str
    ) -> None:
        super().__init__(manager, settings)
        self._measured = measured
        self._tally = tally
        self._version = version
        self._began = monotonic()

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: in bounded time, also where the engine says nothing."""
        known_ill = self.manager.vitals().unwell
        up = await self._measured.renew(0 if known_ill else PATIENCE_S)
        text, content_type = rendered(self._snapshot(up), request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    def _snapshot(self, up: bool) -> Snapshot:
        vitals = self.manager.vitals()
        return Snapshot(
            stats=self._measured.stats,
            up=up,
            age_s=self._measured.age_s,
            uptime_s=monotonic() - self._began,
            version=self._version,
            model=self.manager.facts.served_name,
            in_flight=self.manager.in_flight,
            early_aborts=self.manager.early_aborts,
            dropped={name: one["dropped"] for name, one in vitals.observers.items()},
            responses=self._tally.responses,
            errors=self._tally.errors,
            processes={"main": process_report(), **vitals.processes},
        )
