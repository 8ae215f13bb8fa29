"""Running the server: /health, /server_info, /abort, /flush_cache."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.serve.http.body import read_object, typed
from rtk.serve.http.endpoints import Endpoints, HttpSettings
from rtk.serve.http.errors import json_response
from rtk.serve.tokenizer_manager import TokenizerManager


class Admin(Endpoints):
    """Handlers for whoever runs the server."""

    def __init__(self, manager: TokenizerManager, settings: HttpSettings, info: Mapping[str, Any]) -> None:
        """`info` is what /server_info tells beside what the manager knows."""
        super().__init__(manager, settings)
        self._info = info

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while requests can be served, else 503."""
        if not self.manager.healthy:
            raise RequestError("the engine has stopped", code="engine_stopped", status=503)
        return json_response({"status": "ok"})

    async def server_info(self, request: Request) -> Response:
        """GET /server_info: the model, the engine's counters and gauges, and what the launcher adds."""
        facts = self.manager.facts
        model = {
            "served_name": facts.served_name,
            "vocab_size": facts.vocab_size,
            "context_length": facts.context_length,
            "default_sampling": dict(facts.default_sampling),
        }
        answer = {"model": model, "in_flight": self.manager.in_flight, "stats": await self.manager.stats()}
        return json_response({**self._info, **answer})

    async def abort(self, request: Request) -> Response:
        """POST /abort {"rid"}: end a request, or a batch. One that is not there, or has ended, is no error."""
        body = await read_object(request, self.settings.max_body_bytes)
        rid = typed(body, "rid", str, "")
        if not rid:
            raise RequestError("rid is missing: name the request to abort", field="rid")
        return json_response({"rid": rid, "aborted": self.manager.abort(rid)})

    async def flush_cache(self, request: Request) -> Response:
        """POST /flush_cache: empty the prefix cache. 409 while requests run."""
        return json_response({"freed_tokens": await self.manager.flush()})
