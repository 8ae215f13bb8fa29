"""What every group of endpoints has: the manager, the settings, and how to read a body."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from rtk.errors import RequestError
from rtk.observe.logs import REQUESTS, quotes
from rtk.schedule.params import shown
from rtk.serve.handling import check_name
from rtk.serve.http.body import must_be, read_object, typed
from rtk.serve.http.fields import Ignored, Scope, read_fields
from rtk.serve.http.rights import AdminRights, ApiKeys, tenant_of
from rtk.serve.http.sampling_fields import Asked
from rtk.serve.limits import NO_CEILINGS, Accounts, Ceilings
from rtk.serve.tokenizer_manager import TokenizerManager

MIB = 1024 * 1024

_HANDLING = ("cache_salt", "extra_key", "priority", "routing_key", "deadline_ms")

_LOGGED = 8192
"""Characters of a body that are logged where that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How requests are read."""

    max_body_bytes: int = 16 * MIB
    max_batch: int = 128
    """Answers that one request may ask for: its prompts times n."""
    body_timeout_s: float | None = None
    """How long the body of a request may take to come; None: any time."""
    max_requests: int = 1024
    """Requests in work at a time."""
    strict_fields: bool = False
    """Refuse fields that rtk does not know, instead of naming them in the answer."""
    tool_parser: str = "auto"
    """How the model writes calls of tools, see `rtk.serve.tools.choose`."""
    admin: AdminRights = field(default_factory=AdminRights)
    """Who may run the server: empty the cache, pin, see the configuration."""
    keys: ApiKeys = field(default_factory=ApiKeys)
    """Who may call it, and as which tenant."""
    accounts: Accounts = field(default_factory=Accounts)
    """What tenants take of it, and may."""
    ceilings: Ceilings = NO_CEILINGS
    """How long prompts and answers may be."""
    allowed_hosts: tuple[str, ...] | None = None
    """By which names clients may call the server; None: any."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call it from a browser."""
    access_log: bool = False
    """Log a line for each request."""


class Endpoints:
    """Base of the groups of endpoints; a handler is a method that takes a request."""

    def __init__(self, manager: TokenizerManager, settings: HttpSettings) -> None:
        self.manager = manager
        self.settings = settings

    async def read(self, request: Request, scope: Scope) -> tuple[dict[str, Any], Ignored]:
        """The fields of the request's body that are read in `scope`, and those that have no effect."""
        body = await read_object(request, self.settings.max_body_bytes, self.settings.body_timeout_s)
        if quotes():  # a salt is a capability, and goes into no log
            told = {name: value for name, value in body.items() if name != "cache_salt"}
            REQUESTS.info("%s %s", request.scope["path"], json.dumps(told)[:_LOGGED])
        ignored = Ignored(strict=self.settings.strict_fields)
        return read_fields(body, scope, ignored), ignored

    def check_model(self, values: Mapping[str, Any]) -> None:
        """Raises `RequestError` for another model than the served one."""
        served = self.manager.facts.served_name
        name = typed(values, "model", str, served)
        if name != served:
            raise RequestError(
                f"model {shown(name)} does not exist; this server has {served!r}",
                field="model",
                code="model_not_found",
                status=404,
            )

    def handling(self, request: Request, values: Mapping[str, Any], ignored: Ignored) -> dict[str, Any]:
        """How the prompts of a request are to be handled, as fields of `GenerateRequest`, not validated yet.

        The body says some of it; whose they are, and what that one may, it cannot say.
        """
        given = {name: values[name] for name in _HANDLING if name in values}
        tenant = tenant_of(request)
        given |= {"account": self.settings.accounts.of(tenant), "ceilings": self.settings.ceilings}
        if tenant:
            given["tenant"] = tenant
        facts = self.manager.facts
        if given.get("priority", 0) != 0 and not facts.reads_priority:
            ignored.note("priority")
        if "routing_key" in given and not facts.reads_routing_key:
            ignored.note("routing_key")
        return given

    def check_answers(self, prompts: int, asked: Asked) -> None:
        """Raises `RequestError` for more answers, to all prompts together, than one request may have."""
        limit, answers = self.settings.max_batch, prompts * asked.answers
        if answers > limit:
            field = asked.names.get("n", "n")
            raise RequestError(f"{field}: {answers} answers to one request; at most {limit}", field=field)

    def tenant(self, request: Request, values: Mapping[str, Any]) -> str:
        """Whose things are meant: the sender's own, or those of the `tenant` that an administrator names."""
        if "tenant" not in values:
            return tenant_of(request)
        self.settings.admin.check(request)
        tenant = typed(values, "tenant", str, "")
        check_name(tenant, "tenant")
        return tenant

    def batch(self, name: str, prompts: Sequence[Any], kind: type, allowed: str) -> dict[str, Any]:
        """Each prompt of a batch by what the client calls it.

        Raises `RequestError` for more than one request may have, or one that is not of type `kind`.
        """
        limit = self.settings.max_batch
        if len(prompts) > limit:
            raise RequestError(f"{name}: {len(prompts)} prompts in one request; at most {limit}", field=name)
        named = {f"{name}[{i}]": prompt for i, prompt in enumerate(prompts)}
        for place, prompt in named.items():
            if not isinstance(prompt, kind):
                raise must_be(allowed, place, prompt)
        return named
