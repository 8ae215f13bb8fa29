"""`rtk serve`: binds the port, starts the engine, and serves HTTP until it is told to stop."""

import importlib.metadata
import ipaddress
import logging
import signal
import socket
import ssl
from typing import TYPE_CHECKING

from rtk.config.load import LoadedConfig
from rtk.config.serving import ServeConfig, tenant_keys
from rtk.errors import ConfigError, RtkError
from rtk.observe.tracing import Tracing, start_tracing
from rtk.observe.vitals import gc_watch
from rtk.serve.collector import Collector
from rtk.serve.processes.supervisor import Supervisor
from rtk.serve.runtime import Fetching, Runtime, quietly, start
from rtk.serve.tls import tls_context

if TYPE_CHECKING:
    from rtk.serve.http.endpoints import HttpSettings
    from rtk.serve.http.server import Server

log = logging.getLogger(__name__)


def serve(loaded: LoadedConfig, fetching: Fetching = quietly) -> None:
    """Serve until SIGINT or SIGTERM. Raises `RtkError` where the engine cannot start, or is lost.

    The port is taken first: an occupied one is told before a model is loaded.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    config = loaded.config
    tls, tracing = tls_context(config.serve.tls), start_tracing(config.observe.traces)
    with _listen(config.serve) as listener:
        if config.serve.in_process:
            collector = Collector()
            _serve(start(config, fetching, collector.after_step), listener, collector, tracing, tls)
            return
        supervisor = Supervisor(config, fetching)
        try:
            _serve(supervisor, listener, Collector(), tracing, tls)
        finally:  # also where a signal ends it: who ran did not come to an end
            if supervisor.lost:
                raise RtkError(f"{supervisor.lost}; restart the server")


def _serve(
    engine: Runtime | Supervisor,
    listener: socket.socket,
    collector: Collector,
    tracing: Tracing | None,
    tls: ssl.SSLContext | None,
) -> None:
    gc_watch.start()
    collector.freeze()
    listener.listen()  # who reads in the log that it is ready can connect
    try:
        server = _server(engine, listener, tracing, tls)
        if isinstance(engine, Supervisor):
            engine.when_lost(lambda: setattr(server, "should_exit", True))
        server.run(sockets=[listener])
    finally:
        engine.close()
        gc_watch.stop()
        if tracing is not None:
            tracing.close()
        collector.thaw()


def _exit(number: int, _: object) -> None:
    """The process is on its way out: where a second signal of the kind came, there would be a traceback.

    While it serves, uvicorn takes signals, ends, and then raises them again.
    """
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(0)


def _listen(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"serve.host = {config.host!r}, serve.port = {config.port}: cannot listen there: {reason}; "
            "choose another --port, or --port 0 for any free one"
        ) from error
    return listener


def _settings(config: ServeConfig, *, local: bool) -> "HttpSettings":
    """`local`: whether only this machine reaches the server."""
    from rtk.serve.http.endpoints import HttpSettings
    from rtk.serve.http.guard import LOCAL_NAMES
    from rtk.serve.http.rights import AdminRights, ApiKeys
    from rtk.serve.limits import Accounts, Ceilings

    key, keys = config.admin_api_key, tenant_keys(config.api_keys)
    alone = local and not any(tenant for tenant, _ in keys)
    admin = AdminRights(key=None if key is None else key.get_secret_value(), local=alone)
    return HttpSettings(
        max_body_bytes=config.max_body_bytes,
        max_batch=config.max_batch,
        max_requests=config.max_requests,
        body_timeout_s=config.body_timeout_s,
        strict_fields=config.strict_fields,
        tool_parser=config.tool_parser,
        admin=admin,
        keys=ApiKeys([(tenant, key.get_secret_value()) for tenant, key in keys], admin),
        accounts=Accounts(config.tenants),
        ceilings=Ceilings(config.max_prompt_tokens, config.max_new_tokens),
        allowed_hosts=(*LOCAL_NAMES, config.host) if local and config.allowed_hosts is None else config.allowed_hosts,
        cors_origins=config.cors_origins,
        access_log=config.access_log,
    )


def _server(
    runtime: Runtime | Supervisor,
    listener: socket.socket,
    tracing: Tracing | None = None,
    tls: ssl.SSLContext | None = None,
) -> "Server":
    from rtk.serve.http.app import create_app
    from rtk.serve.http.connection import room_for
    from rtk.serve.http.server import Server

    config = runtime.config
    host, port = listener.getsockname()[:2]  # the address that a name stood for
    local = ipaddress.ip_address(host).is_loopback
    settings = _settings(config.serve, local=local)
    if not local and not settings.keys:
        log.warning(
            "everybody who reaches %s can use this server: it asks for no key; set serve.api_keys (--api-key), "
            "or bind it to a loopback address (serve.host)",
            host,
        )
    app = create_app(
        runtime.manager,
        settings,
        version=importlib.metadata.version("rtk-inference"),
        config=config.model_dump(mode="json", by_alias=True),
        tracing=tracing,
    )
    log.info(
        "ready on %s://%s:%d as %r",
        "http" if tls is None else "https",
        f"[{host}]" if ":" in host else host,
        port,
        runtime.manager.facts.served_name,
    )
    return Server(
        app,
        runtime.manager,
        runtime.close,
        config.serve.drain_s,
        tls=tls,
        max_connections=room_for(config.serve.max_connections),
        header_timeout_s=config.serve.header_timeout_s,
    )
