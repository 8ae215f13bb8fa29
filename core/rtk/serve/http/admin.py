"""Running the server: /health, /ready, /server_info, /abort."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.schedule.params import check_text
from rtk.serve.http.body import typed
from rtk.serve.http.endpoints import Endpoints, HttpSettings
from rtk.serve.http.errors import error_body, json_response
from rtk.serve.http.fields import Scope
from rtk.serve.http.metrics import Measured
from rtk.serve.protocol import Vitals
from rtk.serve.tokenizer_manager import TokenizerManager

STUCK_S = 60.0
"""How long one turn of the scheduler may take before /health tells of it: longer than any step."""
PATIENCE_S = 0.5
"""How long /ready waits for the engine: probes do for a second, mostly."""


class Admin(Endpoints):
    """Handlers for whoever runs the server."""

    def __init__(
        self,
        manager: TokenizerManager,
        settings: HttpSettings,
        version: str,
        config: Mapping[str, Any],
        measured: Measured,
    ) -> None:
        """`version` and `config` are what /server_info tells beside what the manager knows."""
        super().__init__(manager, settings)
        self._version = version
        self._config = dict(config)
        self._measured = measured

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while requests can be served, else 503; names the plugins that failed."""
        vitals = self._checked()
        if vitals.plugins:
            instead = {name: one["instead"] for name, one in vitals.plugins.items()}
            return json_response({"status": "degraded", "instead": instead})
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200 while one more request would be taken, else 503."""
        self._checked()
        self.manager.check_open()
        await self._measured.renew(PATIENCE_S)  # an engine that is busy is well: what it said before will do
        if self._measured.stats.values.get("queue_is_full"):
            raise RequestError("the queue is full (schedule.max_queue)", code="queue_full", status=503)
        return json_response({"status": "ready"})

    def _checked(self) -> Vitals:
        """How the engine is. Raises `RequestError` unless it is well."""
        self.manager.check_healthy()
        vitals = self.manager.vitals()
        if vitals.unwell:
            raise RequestError(vitals.unwell, code="engine_unwell", status=503)
        if vitals.turn_s > STUCK_S:
            raise RequestError(
                f"the engine's thread has been in one turn for {vitals.turn_s:.0f} s: it computes a very long step, or "
                "is caught in code that cannot be interrupted; see the log, and restart the server if it stays so",
                code="engine_stuck",
                status=503,
            )
        return vitals

    async def server_info(self, request: Request) -> Response:
        """GET /server_info: the model, the engine's counters and gauges, version and configuration."""
        facts, refusal, vitals = self.manager.facts, self.settings.admin.refusal(request), self.manager.vitals()
        model = {
            "served_name": facts.served_name,
            "vocab_size": facts.vocab_size,
            "context_length": facts.context_length,
            "attention": facts.attention,
            "page_size": facts.page_size,
            "default_sampling": dict(facts.default_sampling),
        }
        return json_response(
            {
                "version": self._version,
                "config": error_body(refusal) if refusal else self._config,
                "model": model,
                "in_flight": self.manager.in_flight,
                "stats": await self.manager.stats(),
                "grammar": self.manager.grammar_libraries,
                "plugin_faults": vitals.plugins,
                "observers": vitals.observers,
            }
        )

    async def abort(self, request: Request) -> Response:
        """POST /abort {"rid"}: end a request, or a batch. One that is not there, or has ended, is no error."""
        values, ignored = await self.read(request, Scope.ABORT)
        rid = typed(values, "rid", str, "")
        if not rid:
            raise RequestError("rid is missing: name the request to abort", field="rid")
        check_text(rid, field="rid")
        aborted = self.manager.abort(rid, self.tenant(request, values))
        return json_response({"rid": rid, "aborted": aborted}, headers=ignored.headers)
