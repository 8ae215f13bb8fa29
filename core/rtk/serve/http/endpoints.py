"""What every group of endpoints has: the manager, the settings, and how to read a body."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from rtk.errors import RequestError
from rtk.serve.http.body import read_object
from rtk.serve.http.fields import Ignored, Scope, read_fields
from rtk.serve.tokenizer_manager import TokenizerManager

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How requests are read."""

    max_body_bytes: int = 16 * MIB
    max_batch: int = 128
    """Prompts in one request."""
    strict_fields: bool = False
    """Refuse fields that rtk does not know, instead of naming them in the answer."""


class Endpoints:
    """Base of the groups of endpoints; a handler is a method that takes a request."""

    def __init__(self, manager: TokenizerManager, settings: HttpSettings) -> None:
        self.manager = manager
        self.settings = settings

    async def read(self, request: Request, scope: Scope) -> tuple[dict[str, Any], Ignored]:
        """The fields of the request's body that are read in `scope`, and those that have no effect."""
        body = await read_object(request, self.settings.max_body_bytes)
        ignored = Ignored(strict=self.settings.strict_fields)
        return read_fields(body, scope, ignored), ignored

    def check_batch(self, size: int, name: str) -> None:
        """Raises `RequestError` for more prompts than one request may have."""
        limit = self.settings.max_batch
        if size > limit:
            raise RequestError(f"{name}: {size} prompts in one request; at most {limit}", field=name)
