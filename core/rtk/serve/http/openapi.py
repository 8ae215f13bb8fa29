"""The OpenAPI document of the server: every route, what it takes and what it answers, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.serve.http.answer_schemas import ANSWERS
from rtk.serve.http.errors import json_response
from rtk.serve.http.field_schemas import ONE_OF, PARTS, REQUIRED, Schema, schema_of
from rtk.serve.http.fields import FIELDS, IGNORED_HEADER, Scope, field_of
from rtk.serve.http.forms import HEADER as GRAMMAR_HEADER
from rtk.serve.http.rights import OPEN_PATHS
from rtk.serve.http.watch import NAME_HEADER

_BODIES = {
    Scope.COMPLETIONS: "CompletionRequest",
    Scope.CHAT: "ChatRequest",
    Scope.RESPONSES: "ResponseRequest",
    Scope.GENERATE: "GenerateRequest",
    Scope.SAMPLING: "SamplingParams",
    Scope.ABORT: "AbortRequest",
    Scope.EXPLAIN: "ExplainRequest",
    Scope.PIN: "PinRequest",
    Scope.UNPIN: "UnpinRequest",
    Scope.TOKENIZE: "TokenizeRequest",
    Scope.DETOKENIZE: "DetokenizeRequest",
}
"""What the object is called that the fields of a scope make."""

_ERRORS = {
    400: "The request is refused; the message names the field, the value and what is allowed.",
    401: "For those who bring a key.",
    403: "Closed on this server, or to who calls it from there.",
    404: "What is named is not there.",
    408: "The body did not come in time.",
    409: "It is at odds with what the server is doing.",
    413: "The body is too large.",
    429: "The tenant has taken what it may; see Retry-After.",
    500: "It ran and failed, or a bug.",
    503: "Not now: too busy, too late, or at the end.",
}
_GUARDED = (401, 403, 500, 503)
"""What may become of any request but those to `OPEN_PATHS`."""
_READING = (400, 408, 413)
_GENERATING = (404, 409, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route."""

    method: str
    path: str
    summary: str
    answer: str
    """Of `ANSWERS`."""
    media: tuple[str, ...] = ("application/json",)
    """What kinds of text that may be."""
    scope: Scope | None = None
    """Whose fields the body has; None: no body is read."""
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Bodies, by what they show."""
    errors: tuple[int, ...] = ()
    """Beside those of all that is guarded, and of all that has a body."""
    event: str | None = None
    """What the events of a stream hold, where it can stream."""
    done: bool = False
    """Whether `[DONE]` ends it."""
    form: bool = False
    """Whether its answer may have a form."""
    admin: bool = False
    """Whether it is for administrators."""

    @property
    def guarded(self) -> bool:
        """Whether keys, hosts and crowds are looked at before it."""
        return self.path not in OPEN_PATHS

    @property
    def statuses(self) -> list[int]:
        """Those of its errors."""
        guarded = _GUARDED if self.guarded else (500,)
        return sorted({*self.errors, *guarded, *(_READING if self.scope is not None else ())})

    @property
    def name(self) -> str:
        """Its `operationId`."""
        return "_".join([self.method.lower(), *self.path.replace("{", "").replace("}", "").strip("/").split("/")])


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/completions",
        summary="Continue a text, or several",
        answer="Completion",
        scope=Scope.COMPLETIONS,
        examples={
            "greedy": {"prompt": "The tide comes in", "max_tokens": 8, "temperature": 0},
            "stream": {
                "prompt": ["The tide", "Once"],
                "max_tokens": 4,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        },
        errors=_GENERATING,
        event="Completion",
        done=True,
        form=True,
    ),
    Operation(
        method="POST",
        path="/v1/chat/completions",
        summary="Answer a chat",
        answer="ChatCompletion",
        scope=Scope.CHAT,
        examples={
            "chat": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
            "stream": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True},
        },
        errors=_GENERATING,
        event="ChatCompletionChunk",
        done=True,
        form=True,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        summary="Answer a chat, in OpenAI's newer form",
        answer="Response",
        scope=Scope.RESPONSES,
        examples={
            "text": {"input": "Hi", "max_output_tokens": 8},
            "stream": {
                "input": [{"role": "user", "content": "Hi"}],
                "instructions": "Be brief.",
                "max_output_tokens": 8,
                "stream": True,
            },
        },
        errors=_GENERATING,
        event="ResponseEvent",
        form=True,
    ),
    Operation(method="GET", path="/v1/models", summary="The served model, as a list", answer="Models"),
    Operation(method="GET", path="/v1/models/{model}", summary="The served model", answer="Model", errors=(404,)),
    Operation(
        method="POST",
        path="/generate",
        summary="Continue texts or token ids",
        answer="Generated",
        scope=Scope.GENERATE,
        examples={
            "text": {"text": "The tide comes in", "sampling_params": {"max_new_tokens": 4}, "return_ids": True},
            "batch": {"text": ["The tide", "Once"], "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
            "stream": {"text": "The tide comes in", "sampling_params": {"max_new_tokens": 4}, "stream": True},
        },
        errors=_GENERATING,
        event="Generated",
        done=True,
        form=True,
    ),
    Operation(
        method="POST",
        path="/tokenize",
        summary="What a prompt becomes",
        answer="Tokenized",
        scope=Scope.TOKENIZE,
        examples={
            "text": {"prompt": "The tide comes in", "return_token_strs": True},
            "chat": {"messages": [{"role": "user", "content": "Hi"}]},
        },
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/detokenize",
        summary="The text of token ids",
        answer="Detokenized",
        scope=Scope.DETOKENIZE,
        examples={"ids": {"tokens": [5, 6]}},
        errors=(404,),
    ),
    Operation(method="GET", path="/health", summary="Whether requests can be served", answer="Health", errors=(503,)),
    Operation(method="GET", path="/ready", summary="Whether one more would be taken", answer="Ready", errors=(503,)),
    Operation(
        method="GET",
        path="/metrics",
        summary="What Prometheus reads",
        answer="Metrics",
        media=("text/plain", "application/openmetrics-text"),
    ),
    Operation(
        method="GET", path="/server_info", summary="Version, configuration, model, counters", answer="ServerInfo"
    ),
    Operation(
        method="POST",
        path="/abort",
        summary="End a request",
        answer="Aborted",
        scope=Scope.ABORT,
        examples={"one": {"rid": "story"}},
    ),
    Operation(
        method="GET",
        path="/requests/{rid}/explain",
        summary="Why a request waited",
        answer="RequestExplanation",
        errors=(400, 404),
        admin=True,
    ),
    Operation(
        method="POST",
        path="/flush_cache",
        summary="Empty the prefix cache",
        answer="Flushed",
        errors=(409,),
        admin=True,
    ),
    Operation(method="GET", path="/cache", summary="What is in the KV pool", answer="CacheReport"),
    Operation(
        method="POST",
        path="/cache/explain",
        summary="Why a prompt hits the prefix cache, or misses",
        answer="CacheExplanation",
        scope=Scope.EXPLAIN,
        examples={
            "text": {"text": "The tide comes in"},
            "everywhere": {"text": "The tide comes in", "namespaces": "all"},
        },
        errors=(409,),
    ),
    Operation(
        method="POST",
        path="/cache/pin",
        summary="Keep a prompt in the prefix cache",
        answer="Pin",
        scope=Scope.PIN,
        examples={
            "chat": {"name": "greeting", "messages": [{"role": "system", "content": "Be brief."}], "ttl_s": 86400}
        },
        errors=(409,),
        admin=True,
    ),
    Operation(
        method="POST",
        path="/cache/unpin",
        summary="Keep it no longer",
        answer="Pin",
        scope=Scope.UNPIN,
        examples={"one": {"name": "greeting"}},
        errors=(404, 409),
        admin=True,
    ),
    Operation(method="GET", path="/openapi.json", summary="This document", answer="Document"),
)


class OpenApi:
    """The handler that shows the document."""

    def __init__(self, version: str) -> None:
        self._document = document(version)

    async def show(self, request: Request) -> Response:
        """GET /openapi.json."""
        return json_response(self._document)


def document(version: str) -> dict[str, Any]:
    """The document. `version` is that of the server."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    bodies = {name: _body(scope) for scope, name in _BODIES.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rtk",
            "version": version or "0",
            "description": "An LLM inference runtime. Unknown fields are accepted, and named in a header.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted({**bodies, **PARTS, **ANSWERS}.items())),
            "headers": _HEADERS,
            "responses": {str(status): _error(status) for status in _ERRORS},
            "securitySchemes": {
                "clientKey": _key("serve.api_keys, where the server has some: each is of a tenant."),
                "adminKey": _key("serve.admin_api_key, where the server has one."),
            },
        },
    }


def _key(text: str) -> dict[str, Any]:
    return {"type": "http", "scheme": "bearer", "description": text}


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    parameters = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in parameters
        ]
    if operation.scope is not None:
        body = _ref("schemas", _BODIES[operation.scope])
        examples = {name: {"value": example} for name, example in operation.examples.items()}
        content = {"schema": body, "examples": examples}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    errors = {str(status): _ref("responses", str(status)) for status in operation.statuses}
    described["responses"] = {"200": _answer(operation), **errors}
    if operation.guarded:
        described["security"] = [{"adminKey": []}, *([] if operation.admin else [{"clientKey": []}]), {}]
    return described


def _answer(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {"schema": _ref("schemas", operation.answer)} for kind in operation.media}
    if operation.event is not None:
        said = {"contentMediaType": "application/json", "contentSchema": _ref("schemas", operation.event)}
        data = {"anyOf": [said, {"const": "[DONE]"}]} if operation.done else said
        content["text/event-stream"] = {
            "schema": {
                "type": "object",
                "description": "Each event.",
                "properties": {"event": {"type": "string"}, "data": {"type": "string", **data}},
                "required": ["data"],
            }
        }
    names = [IGNORED_HEADER] * (operation.scope is not None) + [GRAMMAR_HEADER] * operation.form
    return {"description": operation.summary, "headers": _headers(NAME_HEADER, *names), "content": content}


def _body(scope: Scope) -> Schema:
    """The object of all fields that are known in a scope."""
    known = {field.name: field_of(field.name, scope) for field in FIELDS if field.scope & scope}
    properties = {name: schema_of(field, scope) for name, field in known.items() if field is not None}
    body: Schema = {"type": "object", "properties": properties}
    if required := REQUIRED.get(scope):
        body["required"] = list(required)
    if one_of := ONE_OF.get(scope):
        body["anyOf"] = [{"required": [name]} for name in one_of]
        body["description"] = f"One of {', '.join(one_of)} must be given, and not several."
    return body


def _error(status: int) -> dict[str, Any]:
    names = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}.get(status, ())
    content = {"application/json": {"schema": _ref("schemas", "Error")}}
    return {"description": _ERRORS[status], "headers": _headers(NAME_HEADER, *names), "content": content}


def _headers(*names: str) -> dict[str, Any]:
    return {name: _ref("headers", name) for name in names}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


_HEADERS: Mapping[str, Any] = {
    NAME_HEADER: {
        "description": "What the request is called in the server's log: as the client's header of this name says.",
        "schema": {"type": "string", "maxLength": 128},
    },
    IGNORED_HEADER: {
        "description": "Fields that had no effect, percent-encoded, separated by commas.",
        "schema": {"type": "string"},
    },
    GRAMMAR_HEADER: {"description": "Who saw to the form of the answer, and how far.", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "How to bring a key.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait at least.", "schema": {"type": "integer", "minimum": 0}},
}
