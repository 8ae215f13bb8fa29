"""Errors as clients see them: OpenAI's body, for every endpoint, and nothing of the inside."""

import json
import logging
import math
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rtk.errors import RequestError, printable
from rtk.observe.logs import loggable
from rtk.observe.visit import current

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""What a 503 tells the client to wait at least, where the error knows no better."""

_CLIENT_GONE = 499  # nobody reads it; the number that proxies log

Handler = Callable[[Request], Awaitable[Response]]


def error_body(error: RequestError) -> dict[str, Any]:
    """The body of an error, also the content of an error event inside a stream."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.field, "code": error.code}}


def error_response(error: RequestError) -> Response:
    """The whole answer for an error that comes before the status line."""
    current().code = error.code
    return json_response(error_body(error), status=error.status, headers=error_headers(error))


def error_headers(error: RequestError) -> dict[str, str]:
    """What the headers of an answer say of its error."""
    match error.status:
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 408:
            return {"Connection": "close"}
        case 429 | 503:
            return {"Retry-After": str(math.ceil(error.retry_after_s or RETRY_AFTER_S))}
    return {}


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content` as JSON."""
    return Response(encoded(content), status, headers, media_type="application/json")


def encoded(content: Any) -> bytes:
    """`content` as JSON in bytes."""
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:  # the name of a folder may be no text; JSON escapes what UTF-8 cannot hold
        return json.dumps(content).encode()


def internal_error() -> RequestError:
    """What a client hears of a bug; the log has the rest."""
    return RequestError("the server failed on this request", code="internal_error", status=500)


def answering_errors(handler: Handler) -> Handler:
    """Make a handler answer its errors: refusals as they say, bugs with 500 and a traceback in the log."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_GONE)
        except Exception as error:
            log.error("%s %s failed", request.method, printable(request.scope["path"]), exc_info=loggable(error))
            return error_response(internal_error())

    return answer


async def route_error(request: Request, error: Exception) -> Response:
    """The answer to a path or method that does not exist."""
    assert isinstance(error, HTTPException), "registered for this class"
    headers = dict(error.headers or {})
    known = {
        404: ("unknown_path", "unknown path", "; /openapi.json lists those that there are"),
        405: ("method_not_allowed", "method not allowed", f"; it takes {headers.get('Allow', 'another')}"),
    }
    code, what, instead = known.get(error.status_code, ("invalid_request", str(error.detail), ""))
    current().code = code
    problem = f"{what}: {request.method} {request.scope['path']}{instead}"
    refusal = RequestError(problem, code=code, status=error.status_code)
    return json_response(error_body(refusal), status=error.status_code, headers=headers)
