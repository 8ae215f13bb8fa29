"""Request bodies: JSON objects, read strictly, and their values by type. `"5"` is no number."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from starlette.requests import Request

from rtk.errors import RequestError
from rtk.schedule.params import shown

T = TypeVar("T")

_NAMES: dict[type, str] = {str: "a string", bool: "true or false", dict: "an object", list: "a list"}


async def read_object(request: Request, limit: int, limit_s: float | None = None) -> dict[str, Any]:
    """The JSON object that the request brings.

    Raises `RequestError` for anything else, for more than `limit` bytes, and where they take longer than `limit_s`.
    """
    try:
        async with asyncio.timeout(limit_s):
            body = await _read(request, limit)
    except TimeoutError:
        raise RequestError(f"the body did not come within {limit_s:g} s", code="body_timeout", status=408) from None
    text = _utf8(body)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _bad(f"the body is no JSON: {error}") from None
    except ValueError:  # Python's own limit
        raise _bad("the body has an integer of too many digits") from None
    except RecursionError:
        raise _bad("the body is nested too deeply") from None
    if not isinstance(value, dict):
        raise _bad(f"the body is {shown(value)}: must be a JSON object")
    return value


def typed(values: Mapping[str, Any], name: str, kind: type[T], default: T, *, prefix: str = "") -> T:
    """The value called `name`, which must be of type `kind` where it is given. `prefix` says where `values` stand."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise must_be(_NAMES[kind], prefix + name, value)
    return value


def must_be(allowed: str, field: str, value: Any) -> RequestError:
    """The refusal of a value that is not what it must be."""
    return RequestError(f"{field} = {shown(value)}: must be {allowed}", field=field)


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"the body is no UTF-8: byte 0x{body[error.start]:02x} at {error.start}") from None


def _no_constant(name: str) -> NoReturn:
    raise _bad(f"the body is no JSON: {name} is no JSON number")


def _bad(message: str) -> RequestError:
    return RequestError(message, code="invalid_body")


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body exceeds {limit} bytes, the limit of this server", code="body_too_large", status=413)
