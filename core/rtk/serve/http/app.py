"""The HTTP server's application."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from rtk.serve.http.admin import Admin
from rtk.serve.http.cache import Cache
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.http.errors import answering_errors, route_error
from rtk.serve.http.guard import guards
from rtk.serve.http.native import Native
from rtk.serve.http.openai import OpenAI
from rtk.serve.http.requests import Requests
from rtk.serve.tokenizer_manager import TokenizerManager

NOTHING: Mapping[str, Any] = MappingProxyType({})


def create_app(
    manager: TokenizerManager,
    settings: HttpSettings | None = None,
    *,
    version: str = "",
    config: Mapping[str, Any] = NOTHING,
) -> FastAPI:
    """The application that serves `manager`. `version` and `config` are for /server_info."""
    settings = settings or HttpSettings()
    openai, native, cache = OpenAI(manager, settings), Native(manager, settings), Cache(manager, settings)
    admin, requests = Admin(manager, settings, version, config), Requests(manager, settings)
    app = FastAPI(title="rtk", docs_url=None, redoc_url=None, openapi_url=None, middleware=guards(settings))
    app.add_exception_handler(HTTPException, route_error)
    for method, path, handler in (
        ("POST", "/v1/completions", openai.completions),
        ("POST", "/v1/chat/completions", openai.chat_completions),
        ("GET", "/v1/models", openai.models),
        ("GET", "/v1/models/{model:path}", openai.model),
        ("POST", "/generate", native.generate),
        ("GET", "/health", admin.health),
        ("GET", "/server_info", admin.server_info),
        ("POST", "/abort", admin.abort),
        ("GET", "/requests/{rid:path}/explain", requests.explain),
        ("POST", "/flush_cache", cache.flush),
        ("GET", "/cache", cache.report),
        ("POST", "/cache/explain", cache.explain),
        ("POST", "/cache/pin", cache.pin),
        ("POST", "/cache/unpin", cache.unpin),
    ):
        app.add_route(path, answering_errors(handler), methods=[method])
    return app
