"""The prefix cache: /cache, /cache/explain, /cache/pin, /cache/unpin, and /flush_cache."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.cache.key import Namespace
from rtk.errors import RequestError
from rtk.schedule.messages import PinState
from rtk.serve.explanation import CacheExplanation, TokenText
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.chat_prompt import CHAT_OPTIONS, read_chat
from rtk.serve.http.endpoints import Endpoints
from rtk.serve.http.errors import error_body, json_response
from rtk.serve.http.fields import Ignored, Scope
from rtk.serve.http.tools import template_tools
from rtk.serve.protocol import GenerateRequest

_PROMPTS: dict[str, tuple[type, str]] = {
    "text": (str, "a string"),
    "input_ids": (list, "a list of token ids"),
    "messages": (list, "a list of messages"),
}
_OWN, _ALL = "own", "all"


class Cache(Endpoints):
    """Handlers that look into the prefix cache, and that keep or drop what is in it."""

    async def report(self, request: Request) -> Response:
        """GET /cache: slots by state; the pins for administrators only."""
        report = await self.manager.cache()
        refusal = self.settings.admin.refusal(request)
        return json_response(
            {
                "free": report.free,
                "evictable": report.evictable,
                "protected": report.protected,
                "held": report.held,
                "pool": report.pool,
                "namespaces": report.namespaces,
                "pinned": report.pinned,
                "pin_budget": report.pin_budget,
                "pins": error_body(refusal) if refusal else [_pin(pin) for pin in report.pins],
            }
        )

    async def explain(self, request: Request) -> Response:
        """POST /cache/explain: why a prompt hits as much as it does. Other namespaces for administrators only."""
        values, ignored = await self.read(request, Scope.EXPLAIN)
        wanted = values.get("namespaces", _OWN)
        if wanted not in (_OWN, _ALL):
            raise must_be(f'"{_OWN}" or "{_ALL}"', "namespaces", wanted)
        if wanted == _ALL:
            self.settings.admin.check(request)
        prompt = self._prompt(request, values, ignored)
        found = await self.manager.explain(prompt, elsewhere=wanted == _ALL)
        others = {"elsewhere": _elsewhere(found), "searched": found.searched} if wanted == _ALL else {}
        return json_response({**_explanation(found), **others}, headers=ignored.headers)

    async def pin(self, request: Request) -> Response:
        """POST /cache/pin: keep a prefix. Answers once it is computed."""
        self.settings.admin.check(request)
        values, ignored = await self.read(request, Scope.PIN)
        prompt = self._prompt(request, values, ignored)
        pin = await self.manager.pin(_name(values), prompt, values.get("ttl_s"))
        return json_response(_pin(pin), headers=ignored.headers)

    async def unpin(self, request: Request) -> Response:
        """POST /cache/unpin: take a pin off. Answers what was pinned."""
        self.settings.admin.check(request)
        values, ignored = await self.read(request, Scope.UNPIN)
        return json_response(_pin(await self.manager.unpin(_name(values))), headers=ignored.headers)

    async def flush(self, request: Request) -> Response:
        """POST /flush_cache: empty the prefix cache, but for what is pinned. 409 while requests run."""
        self.settings.admin.check(request)
        return json_response({"freed_tokens": await self.manager.flush()})

    # --- reading ----------------------------------------------------------------------------------------------------

    def _prompt(self, request: Request, values: Mapping[str, Any], ignored: Ignored) -> GenerateRequest:
        """The one prompt of a body, in its namespace."""
        given = [name for name in _PROMPTS if name in values]
        if len(given) != 1:
            problem = f"{' and '.join(given) or 'no prompt'} given: send one of {', '.join(_PROMPTS)}"
            raise RequestError(problem, field=given[0] if given else "text")
        (name,) = given
        kind, allowed = _PROMPTS[name]
        prompt = values[name]
        if not isinstance(prompt, kind):
            raise must_be(allowed, name, prompt)
        if name == "messages":
            chat, tools = read_chat(values, ignored), template_tools(values, ignored, self.manager.tokenizer)
            prompt = replace(chat, options={**chat.options, **tools})
        else:
            for option in (*CHAT_OPTIONS, "tools"):
                if option in values:
                    ignored.note(option)
        salt, extra = values.get("cache_salt"), values.get("extra_key")
        tenant = self.tenant(request, values) or None
        return GenerateRequest(prompt=prompt, prompt_name=name, cache_salt=salt, extra_key=extra, tenant=tenant)


def _name(values: Mapping[str, Any]) -> str:
    if "name" not in values:
        raise RequestError("name is missing: pins go by name", field="name")
    return typed(values, "name", str, "")


# --- answering --------------------------------------------------------------------------------------------------


def _namespace(namespace: Namespace) -> dict[str, Any]:
    adapter = None if namespace.adapter is None else namespace.adapter._asdict()
    whose = {"tenant": namespace.tenant} if namespace.tenant else {}
    return {"adapter": adapter, "cache_salt": namespace.salt, "extra_key": namespace.extra, **whose}


def _pin(pin: PinState) -> dict[str, Any]:
    return {"name": pin.name, "tokens": pin.tokens, **_namespace(pin.namespace), "expires_in_s": pin.expires_in_s}


def _explanation(found: CacheExplanation) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "prompt_tokens": found.prompt_tokens,
        "cached_tokens": found.cached_tokens,
        "matched_tokens": found.matched_tokens,
        "namespace": _namespace(found.namespace),
        "ends": found.ends,
        "reason": found.reason,
    }
    if (differs := found.differs) is not None:
        answer |= {
            "position": differs.position,
            "prompt": _token(differs.prompt),
            "cached": _token(differs.cached),
        }
    if (evicted := found.evicted) is not None:
        answer |= {
            "tokens": evicted.tokens,
            "seconds_ago": evicted.seconds_ago,
            "tick": evicted.tick,
            "policy": evicted.policy,
        }
    return answer


def _token(token: TokenText) -> dict[str, Any]:
    return {"token": token.token, "text": token.text}


def _elsewhere(found: CacheExplanation) -> list[dict[str, Any]]:
    return [{**_namespace(other.namespace), "cached_tokens": other.cached_tokens} for other in found.elsewhere]
