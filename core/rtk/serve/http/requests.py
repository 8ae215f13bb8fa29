"""What became of requests: /requests/{rid}/explain."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rtk.serve.http.endpoints import Endpoints
from rtk.serve.http.errors import json_response


class Requests(Endpoints):
    """Handlers that look at the requests of all clients: for administrators."""

    async def explain(self, request: Request) -> Response:
        """GET /requests/{rid}/explain: why a request waited, and what its time went into."""
        self.settings.admin.check(request)
        tenant = self.tenant(request, request.query_params)
        found = await self.manager.explain_request(request.path_params["rid"], tenant)
        return json_response({"sentences": found.sentences, **msgspec.to_builtins(found.timeline)})
