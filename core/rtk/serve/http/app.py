"""The HTTP server's application."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from rtk.observe.tracing import Tracing
from rtk.serve.http.admin import Admin
from rtk.serve.http.cache import Cache
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.http.errors import answering_errors, route_error
from rtk.serve.http.guard import guards
from rtk.serve.http.metrics import Measured, Metrics
from rtk.serve.http.native import Native
from rtk.serve.http.openai import OpenAI
from rtk.serve.http.openapi import OpenApi
from rtk.serve.http.requests import Requests
from rtk.serve.http.responses import Responses
from rtk.serve.http.tokens import Tokens
from rtk.serve.http.watch import Tally, Watch
from rtk.serve.tokenizer_manager import TokenizerManager

NOTHING: Mapping[str, Any] = MappingProxyType({})


def create_app(
    manager: TokenizerManager,
    settings: HttpSettings | None = None,
    *,
    version: str = "",
    config: Mapping[str, Any] = NOTHING,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application that serves `manager`; /server_info tells `version` and `config`, `tracing` hears of requests."""
    settings = settings or HttpSettings()
    openai, native, cache = OpenAI(manager, settings), Native(manager, settings), Cache(manager, settings)
    measured, tally = Measured(manager), Tally()
    admin, requests = Admin(manager, settings, version, config, measured), Requests(manager, settings)
    metrics = Metrics(manager, settings, measured, tally, version)
    responses, tokens = Responses(manager, settings), Tokens(manager, settings)
    app = FastAPI(title="rtk", docs_url=None, redoc_url=None, openapi_url=None, middleware=guards(settings))
    app.add_exception_handler(HTTPException, route_error)
    for method, path, handler in (
        ("POST", "/v1/completions", openai.completions),
        ("POST", "/v1/chat/completions", openai.chat_completions),
        ("POST", "/v1/responses", responses.create),
        ("GET", "/v1/models", openai.models),
        ("GET", "/v1/models/{model:path}", openai.model),
        ("POST", "/generate", native.generate),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("GET", "/health", admin.health),
        ("GET", "/ready", admin.ready),
        ("GET", "/metrics", metrics.metrics),
        ("GET", "/server_info", admin.server_info),
        ("POST", "/abort", admin.abort),
        ("GET", "/requests/{rid:path}/explain", requests.explain),
        ("POST", "/flush_cache", cache.flush),
        ("GET", "/cache", cache.report),
        ("POST", "/cache/explain", cache.explain),
        ("POST", "/cache/pin", cache.pin),
        ("POST", "/cache/unpin", cache.unpin),
        ("GET", "/openapi.json", OpenApi(version).show),
    ):
        endpoint = answering_errors(handler)
        app.add_route(path, endpoint, methods=[method])
        tally.know(path, endpoint)
    app.add_middleware(Watch, tally=tally, manager=manager, tracing=tracing)  # last, and so around all others
    return app
