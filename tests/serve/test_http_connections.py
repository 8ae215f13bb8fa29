"""The server on a port: clients that dawdle, connections that are too many, HTTPS, and files that cannot be used."""

import json
import shutil
import socket
import ssl
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from fake_scheduler import LENGTH, WAIT_S, Gate, Verdict, saying
from http_harness import InProcess
from tiny_tokenizer import byte_level, ids_of
from uvicorn.server import ServerState

from rtk.config.load import LoadedConfig, config_from
from rtk.errors import ConfigError
from rtk.plugin.host import installed
from rtk.serve import launch
from rtk.serve.dry_run import rehearse
from rtk.serve.http import connection as connection_module
from rtk.serve.http.connection import room_for
from rtk.serve.http.rights import ApiKeys
from rtk.serve.http.server import Server
from rtk.serve.tls import tls_context

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
FILES = Path(__file__).parents[1] / "data" / "tls"
BODY = b'{"prompt": "x", "max_tokens": 1}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"


class OnPort(InProcess):
    """The application behind rtk's own server."""

    def __init__(self, script=None, *, tls=None, max_connections=100, header_timeout_s=WAIT_S, **settings):
        super().__init__(script or saying(A), tokenizer=TOKENIZER, settings=settings)
        limits = {"max_connections": max_connections, "header_timeout_s": header_timeout_s}
        self._server = Server(self.app, self.manager, lambda: None, 0, tls=tls, **limits)

    def __enter__(self):
        super().__enter__()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self._socket.close()
        super().__exit__(*exc)

    @property
    def connections(self):
        return self._server.server_state.connections

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)


def everything(sock):
    """What the server sends until it hangs up."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:  # it had not read all that it was sent
        pass
    return b"".join(parts)


def one_answer(sock):
    """The status and the body of one answer, whose connection may stay."""
    with sock.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        headers = dict(line.lower().split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
        return status, headers, json.loads(stream.read(int(headers[b"content-length"])))


# --- clients that dawdle ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"P", b"POST /v1/completions HTTP/1.1\r\nHost: t", b"GET / HTTP/1.1\r\n"])
def test_a_head_that_never_ends(sent):
    with OnPort(header_timeout_s=0.05) as http, http.connect() as sock:
        sock.sendall(sent)
        assert everything(sock) == b""


def test_a_second_head_that_never_ends():
    with OnPort() as http, http.connect() as sock:
        sock.sendall(HEAD % len(BODY) + BODY)
        assert one_answer(sock)[0] == 200
        (connection,) = http.connections
        connection._head_s = 0.05
        sock.sendall(b"GET /v1/mod")
        assert everything(sock) == b""


@pytest.mark.parametrize("sent", [b"", b'{"prompt"'])
@pytest.mark.parametrize("head", [HEAD % 1000, HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")])
def test_a_body_that_never_ends(head, sent):
    with OnPort(body_timeout_s=0.05) as http, http.connect() as sock:
        chunk = b"%x\r\n%s\r\n" % (len(sent), sent) if b"chunked" in head and sent else sent
        sock.sendall(head + chunk)
        status, headers, body = one_answer(sock)
        assert (status, headers[b"connection"].strip()) == (408, b"close")
        assert body["error"]["code"] == "body_timeout"
        assert everything(sock) == b""
        assert not http.fake.received


def test_a_body_that_nobody_waits_for_does_not_hold_the_connection(monkeypatch):
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    with OnPort(keys=ApiKeys([("", "k")])) as http, http.connect() as sock:
        sock.sendall(HEAD % 1000 + b"{")
        assert one_answer(sock)[0] == 401
        assert everything(sock) == b""


def test_time_limits_are_no_limits_for_answers():
    gate = Gate()
    with OnPort(lambda new: iter([gate, LENGTH])) as http, http.connect() as sock:
        sock.sendall(HEAD % len(BODY) + BODY)
        http.fake.wait_for(lambda f: f.running)
        (connection,) = http.connections
        assert connection._timer is None
        http.fake.open(gate)
        assert one_answer(sock)[0] == 200


def test_requests_one_after_the_other_without_waiting():
    with OnPort() as http, http.connect() as sock:
        sock.sendall((HEAD % len(BODY) + BODY) * 3 + b"GET /v1/models HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        assert everything(sock).count(b"HTTP/1.1 200 OK") == 4


# --- connections ------------------------------------------------------------------------------------------------


def test_one_connection_too_many_is_told_to_come_back():
    with OnPort(max_connections=2) as http:
        held = [http.connect() for _ in range(2)]
        for sock in held:  # an answer shows that the server has the connection
            sock.sendall(HEAD % len(BODY) + BODY)
            assert one_answer(sock)[0] == 200
        with http.connect() as sock:
            status, headers, body = one_answer(sock)
            assert (status, headers[b"retry-after"].strip()) == (503, b"1")
            assert body["error"]["code"] == "server_busy"
            assert everything(sock) == b""
        held.pop().close()
        while True:  # until the server has noticed
            with http.connect() as sock:
                sock.sendall(HEAD % len(BODY) + BODY)
                if one_answer(sock)[0] == 200:
                    break
        held.pop().close()


def test_a_request_that_waited_too_long_has_a_503_for_its_status():
    def script(new):
        yield Verdict(rid=new.rid, accepted=False, code="queue_timeout", problem="it waited too long", status=503)

    for stream in (b"false", b"true"):
        with OnPort(script) as http, http.connect() as sock:
            body = b'{"prompt": "x", "stream": %s}' % stream
            sock.sendall(HEAD % len(body) + body)
            status, headers, answer = one_answer(sock)
            assert (status, headers[b"retry-after"].strip()) == (503, b"1")
            assert answer["error"]["code"] == "queue_timeout"


# --- HTTPS ------------------------------------------------------------------------------------------------------


def tls(**keys):
    texts = {f"serve.tls.{name}": str(value) for name, value in keys.items()}
    return tls_context(config_from(texts).serve.tls)


def ask(http, **client):
    context = ssl.create_default_context(cafile=FILES / "cert.pem")
    if client:
        context.load_cert_chain(**client)
    with httpx.Client(verify=context) as one:
        return one.post(f"https://localhost:{http.port}/v1/completions", content=BODY).status_code


@pytest.mark.parametrize(
    "keys",
    [{"key_file": FILES / "key.pem"}, {"key_file": FILES / "encrypted.pem", "key_password": "open-sesame"}],
    ids=["plain", "encrypted"],
)
def test_https(keys):
    with OnPort(tls=tls(cert_file=FILES / "cert.pem", **keys)) as http:
        assert ask(http) == 200
        with http.connect() as sock:  # plain HTTP on the same port gets nothing
            sock.sendall(HEAD % len(BODY) + BODY)
            assert b"200" not in everything(sock)


def test_a_file_with_both(tmp_path):
    both = tmp_path / "both.pem"
    both.write_text((FILES / "key.pem").read_text() + (FILES / "cert.pem").read_text())
    with OnPort(tls=tls(cert_file=both)) as http:
        assert ask(http) == 200


def test_certificates_of_clients():
    pair = {"certfile": FILES / "cert.pem", "keyfile": FILES / "key.pem"}
    context = tls(cert_file=pair["certfile"], key_file=pair["keyfile"], client_ca_file=FILES / "cert.pem")
    with OnPort(tls=context) as http:
        assert ask(http, **pair) == 200
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            ask(http)


def test_no_files_are_plain_http():
    assert tls() is None


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"key_file": "key.pem"},
         "serve.tls.key_file is set and serve.tls.cert_file is not; name the certificate's file"),
        ({"cert_file": "none.pem"}, "serve.tls.cert_file = '{}/none.pem': No such file or directory"),
        ({"cert_file": "."}, "serve.tls.cert_file = '{}': Is a directory"),
        ({"cert_file": "cert.pem", "key_file": "none.pem"},
         "serve.tls.key_file = '{}/none.pem': No such file or directory"),
        ({"cert_file": "cert.pem"},
         "serve.tls.cert_file = '{0}/cert.pem': no certificate with its private key can be read from it "
         "(serve.tls.key_file names another for the key); both must be PEM"),
        ({"cert_file": "cert.pem", "key_file": "text.pem"},
         "serve.tls.cert_file = '{0}/cert.pem': no certificate with its private key can be read from it and "
         "{0}/text.pem; both must be PEM"),
        ({"cert_file": "cert.pem", "key_file": "other.pem"},
         "serve.tls.key_file = '{0}/other.pem': it is not the key of the certificate in {0}/cert.pem"),
        ({"cert_file": "cert.pem", "key_file": "encrypted.pem"},
         "serve.tls.key_file = '{0}/encrypted.pem': the key is encrypted, and serve.tls.key_password is missing"),
        ({"cert_file": "cert.pem", "key_file": "encrypted.pem", "key_password": "s3cret"},
         "serve.tls.key_file = '{0}/encrypted.pem': the key is encrypted, and serve.tls.key_password is wrong"),
        ({"cert_file": "cert.pem", "key_file": "key.pem", "client_ca_file": "text.pem"},
         "serve.tls.client_ca_file = '{0}/text.pem': no certificate in PEM can be read from it"),
        ({"cert_file": "cert.pem", "key_file": "key.pem", "client_ca_file": "none.pem"},
         "serve.tls.client_ca_file = '{0}/none.pem': No such file or directory"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_one_line(tmp_path, keys, problem):
    for name in ("cert.pem", "key.pem", "encrypted.pem", "other.pem"):
        shutil.copy(FILES / name, tmp_path)
    (tmp_path / "text.pem").write_text("no PEM at all\n")
    with pytest.raises(ConfigError) as refused:
        tls(**{name: value if name == "key_password" else tmp_path / value for name, value in keys.items()})
    assert str(refused.value) == problem.format(tmp_path)


def test_they_are_read_before_anything_is_started(monkeypatch, tmp_path):
    def starts(*_):
        raise AssertionError("the files come first")

    for name in ("start", "Supervisor", "start_tracing", "_listen"):
        monkeypatch.setattr(launch, name, starts)
    config = config_from({"serve.tls.cert_file": str(tmp_path / "none.pem")})
    with pytest.raises(ConfigError, match=r"serve.tls.cert_file = '.*none.pem': No such file"):
        launch.serve(LoadedConfig(config, {}))
    with pytest.raises(ConfigError, match="No such file"):
        rehearse(LoadedConfig(config, {}), installed())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize(
    ("soft", "hard", "asked_for", "room"),
    [
        (1024, 10_000, 4352, 4096),
        (10_000, 10_000, None, 4096),
        (-1, -1, None, 4096),
        (1024, -1, 4352, 4096),
        (512, 1024, 1024, 768),
        (1024, 1024, None, 768),
        (64, 128, 128, 1),
    ],
)
def test_as_many_connections_as_there_can_be_files(monkeypatch, soft, hard, asked_for, room):
    import resource

    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert room_for(4096) == room
    assert asked == ([] if asked_for is None else [(asked_for, hard)])


@pytest.mark.parametrize("goes_on", ["resume_writing", "connection_lost"])
def test_who_does_not_read_is_left_after_a_while(goes_on):
    loop, transport = Mock(), Mock()
    config = uvicorn.Config(None, lifespan="off", log_config=None)
    config.load()
    one = connection_module.Connection(config, ServerState(), {}, _loop=loop, most=9, head_s=1)
    one.connection_made(transport)
    loop.reset_mock()
    one.pause_writing()
    loop.call_later.assert_called_once_with(connection_module.STALL_S, transport.abort)
    loop.call_later.return_value.cancel.assert_not_called()
    getattr(one, goes_on)(*[None] * (goes_on == "connection_lost"))
    loop.call_later.return_value.cancel.assert_called()
