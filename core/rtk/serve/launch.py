"""`rtk serve`: binds the port, starts the engine, and serves HTTP until it is told to stop."""

import importlib.metadata
import ipaddress
import logging
import signal
import socket
from typing import TYPE_CHECKING

from rtk.config.load import LoadedConfig
from rtk.config.models import ServeConfig
from rtk.errors import ConfigError, RtkError
from rtk.serve.collector import Collector
from rtk.serve.processes.supervisor import Supervisor
from rtk.serve.runtime import Fetching, Runtime, quietly, start

if TYPE_CHECKING:
    from rtk.serve.http.server import Server

log = logging.getLogger(__name__)


def serve(loaded: LoadedConfig, fetching: Fetching = quietly) -> None:
    """Serve until SIGINT or SIGTERM. Raises `RtkError` where the engine cannot start, or is lost.

    The port is taken first: an occupied one is told before a model is loaded.
    """
    config = loaded.config
    with _listen(config.serve) as listener:
        if config.serve.in_process:
            collector = Collector()
            _serve(start(config, fetching, collector.after_step), listener, collector)
            return
        supervisor = Supervisor(config, fetching)
        _serve(supervisor, listener, Collector())
        if supervisor.lost:
            raise RtkError(f"{supervisor.lost}; restart the server")


def _serve(engine: Runtime | Supervisor, listener: socket.socket, collector: Collector) -> None:
    collector.freeze()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)  # uvicorn ends first, then raises the signal again
    listener.listen()  # who reads in the log that it is ready can connect
    try:
        server = _server(engine, listener)
        if isinstance(engine, Supervisor):
            engine.when_lost(lambda: setattr(server, "should_exit", True))
        server.run(sockets=[listener])
    finally:
        engine.close()
        collector.thaw()


def _exit(number: int, _: object) -> None:
    """The process is on its way out: where a second signal of the kind came, there would be a traceback."""
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


def _server(runtime: Runtime | Supervisor, listener: socket.socket) -> "Server":
    from rtk.serve.http.app import create_app
    from rtk.serve.http.endpoints import HttpSettings
    from rtk.serve.http.rights import AdminRights
    from rtk.serve.http.server import Server

    config, key = runtime.config, runtime.config.serve.admin_api_key
    host, port = listener.getsockname()[:2]  # the address that a name stood for
    settings = HttpSettings(
        max_body_bytes=config.serve.max_body_bytes,
        max_batch=config.serve.max_batch,
        strict_fields=config.serve.strict_fields,
        admin=AdminRights(
            key=None if key is None else key.get_secret_value(), local=ipaddress.ip_address(host).is_loopback
        ),
    )
    app = create_app(
        runtime.manager,
        settings,
        version=importlib.metadata.version("rtk-inference"),
        config=config.model_dump(mode="json", by_alias=True),
    )
    log.info(
        "ready on http://%s:%d as %r", f"[{host}]" if ":" in host else host, port, runtime.manager.facts.served_name
    )
    return Server(app, runtime.manager, runtime.close, config.serve.drain_s)
