"""What `rtk serve` does before and around serving; the server itself is in the tests beside this one."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
from unittest.mock import AsyncMock, Mock

import pytest

from rtk.config.load import LoadedConfig, config_from
from rtk.errors import ConfigError, RtkError
from rtk.serve import launch
from rtk.serve.http import server as server_module
from rtk.serve.http.server import Server
from rtk.serve.launch import _exit, _listen


def listen(**keys):
    return _listen(config_from({f"serve.{key}": value for key, value in keys.items()}).serve)


def test_port_0_takes_a_free_one():
    with listen(port=0) as one, listen(port=0) as other:
        assert one.getsockname()[1] != other.getsockname()[1] > 0


def test_an_occupied_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"serve.port = {port}: cannot listen there: Address already in use"):
            listen(port=port)


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid", "1.2.3.4"])
def test_a_host_that_is_not_here_is_one_line(host):
    with pytest.raises(ConfigError, match=f"serve.host = '{host}'") as refused:
        listen(host=host, port=0)
    assert "\n" not in str(refused.value)


def test_the_command_tells_it_before_it_loads_anything():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        script = (
            "import sys\nfrom rtk_cli.main import main\n"
            "try: main()\nfinally: print('torch' in sys.modules, file=sys.stdout)"
        )
        command = [sys.executable, "-c", script, "serve", "--port", str(port), "--model", "no-such-model"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "False\n")
    assert result.stderr.startswith("error: serve.host = '127.0.0.1', serve.port =")
    assert result.stderr.count("\n") == 1


# --- signals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_the_process_once(number, error):
    before = signal.signal(number, _exit)
    try:
        with pytest.raises(error):
            signal.raise_signal(number)
        signal.raise_signal(number)  # on the way out: nothing
    finally:
        signal.signal(number, before)


@pytest.fixture
def signals():
    """Leaves the handlers of signals as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_signal_while_it_starts_lets_it_tidy_up(signals, monkeypatch):
    tidied = []

    def starting(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            tidied.append(True)

    monkeypatch.setattr(launch, "Supervisor", starting)
    with pytest.raises(SystemExit) as ended:
        launch.serve(LoadedConfig(config_from({"serve.port": 0}), {}))
    assert (ended.value.code, tidied) == (0, [True])


def test_an_engine_that_is_lost_while_the_server_ends_is_told_all_the_same(signals, monkeypatch):
    monkeypatch.setattr(launch, "Supervisor", lambda *_: Mock(lost="the scheduler process has ended (SIGKILL)"))
    monkeypatch.setattr(launch, "_serve", Mock(side_effect=SystemExit(0)))  # as uvicorn does when a signal ended it
    with pytest.raises(RtkError, match=r"the scheduler process has ended \(SIGKILL\); restart the server"):
        launch.serve(LoadedConfig(config_from({"serve.port": 0}), {}))


def test_nothing_is_out_of_the_collectors_sight_when_the_process_ends(signals, monkeypatch):
    server, frozen = Mock(), []
    server.run.side_effect = lambda **_: frozen.append(gc.get_freeze_count())
    monkeypatch.setattr(launch, "start", Mock())
    monkeypatch.setattr(launch, "_server", lambda *_: server)
    launch.serve(LoadedConfig(config_from({"serve.port": 0, "serve.in_process": True}), {}))
    assert frozen[0] > 0 == gc.get_freeze_count()


class Manager:
    """What a server asks of a manager: nobody new, and how many run."""

    def __init__(self, in_flight):
        self.in_flight = in_flight
        self.draining = False

    def drain(self):
        self.draining = True


@pytest.fixture
def ending(monkeypatch):
    """A server that is about to end, with so many requests that run, and what happens then."""
    monkeypatch.setattr(server_module, "LINGER_S", 0)

    def build(in_flight, drain_s):
        happened, manager = [], Manager(in_flight)
        server = Server(None, manager, lambda: happened.append("engine closed"), drain_s)
        server.servers, server.lifespan = [], Mock(shutdown=AsyncMock())
        return server, manager, happened

    return build


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_cuts_the_grace_short_and_a_third_interrupt_forces(ending, number, caplog):
    server, manager, happened = ending(1, 1e6)

    async def run():
        end = asyncio.ensure_future(server.shutdown())
        await asyncio.sleep(0)
        assert manager.draining and not end.done()
        server.handle_exit(number, None)
        await asyncio.wait_for(end, 10)

    server.handle_exit(number, None)
    assert (server.should_exit, server.force_exit) == (True, False)
    with caplog.at_level("INFO"):
        asyncio.run(run())
    assert happened == ["engine closed"] and not server.force_exit
    assert f"{number.name}: no new requests; 1 have up to 1e+06 s to end" in caplog.text
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit


@pytest.mark.parametrize(("in_flight", "drain_s"), [(0, 1e6), (1, 0)])
def test_nobody_waits_for_nothing(ending, in_flight, drain_s):
    server, _, happened = ending(in_flight, drain_s)
    asyncio.run(asyncio.wait_for(server.shutdown(), 10))
    assert happened == ["engine closed"]


def test_it_hangs_up_on_clients_that_do_not_read(ending):
    server, _, happened = ending(0, 0)
    connection = Mock()

    def hang_up():
        happened.append("hung up")
        server.server_state.connections.clear()

    connection.transport.abort = hang_up
    server.server_state.connections.add(connection)
    asyncio.run(asyncio.wait_for(server.shutdown(), 10))
    assert happened == ["engine closed", "hung up"]
