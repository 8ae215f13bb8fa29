"""`rtk cache` against a real port: over a scripted scheduler, and over none."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_scheduler import Gate, saying
from http_harness import Served
from typer.testing import CliRunner

from rtk.cache.evictions import Evicted
from rtk.cache.explain import Explanation
from rtk.cache.key import Namespace
from rtk.schedule.messages import Explain, Flush, Pin, PinState, Unpin
from rtk.serve.http.rights import AdminRights
from rtk_cli.main import app

KEY = "s3cret"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RTK_SERVE__ADMIN_API_KEY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing may go through it


@pytest.fixture(scope="module")
def http() -> Iterator[Served]:
    with Served(saying(), settings={"admin": AdminRights(key=KEY)}) as http:
        yield http


def rtk(*args: str) -> tuple[int, list[str], str]:
    result = CliRunner().invoke(app, ["cache", *args])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout.splitlines(), result.stderr


def ask(http: Served, *args: str) -> list[str]:
    """What an administrator's command prints, which must end well."""
    code, lines, err = rtk(*args, "--url", http.base, "--admin-key", KEY)
    assert (code, err) == (0, "")
    return lines


def words(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_show(http: Served) -> None:
    *table, namespaces = words(ask(http, "show"))
    assert " ".join(namespaces) == "namespaces with something cached: 2"
    assert dict(table) == {
        "what": "tokens", "free": "40", "evictable": "30", "protected": "20", "held": "10", "pool": "100",
        "pinned": "3", "pin_budget": "25",
    }  # fmt: skip


def test_pins(http: Served) -> None:
    header, pin = words(ask(http, "pins"))
    assert header == ["name", "tokens", "tenant", "salt", "extra", "key", "adapter", "expires", "in"]
    assert pin == ["greeting", "3", "-", "s", "-", "-", "-"]


def test_what_a_pin_is_called_cannot_steer_a_terminal(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    salt = "[red]\x1b[31m\n" + "x" * 60
    state = PinState(
        name="[b]a", tokens=1234, namespace=Namespace(salt=salt, extra="k", tenant="acme"), expires_in_s=61.4
    )
    monkeypatch.setattr(http.fake, "pins", (state,))
    _, pin = ask(http, "pins")
    assert pin.split() == ["[b]a", "1,234", "acme", r"[red]\x1b[31m\n" + "x" * 29 + "…", "k", "-", "61", "s"]


def test_explain(http: Served) -> None:
    assert ask(http, "explain", "abc", "--salt", "s", "--extra-key", "k") == [
        "0 of 3 tokens would be reused: nothing that begins like this was cached, as far as the cache remembers."
    ]
    question = http.fake.of(Explain)[-1]
    assert (question.namespace, question.elsewhere) == (Namespace(salt="s", extra="k"), False)


def test_explaining_needs_no_key(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted = Evicted(Namespace(), 2, bytes(4 * 30), 7, 0.0, "lru")
    explanation = Explanation(
        namespace=Namespace(), prompt_tokens=9, cached_tokens=4, matched_tokens=4, ends="evicted", evicted=evicted
    )
    monkeypatch.setattr(http.fake, "explanation", explanation)
    code, lines, _ = rtk("explain", "abc", "--url", f"{http.base}/")
    assert (code, lines) == (
        0,
        ["4 of 9 tokens would be reused: what followed the first 4 was evicted 2.5 s ago (30 tokens, by lru)."],
    )


def test_pin_and_unpin(http: Served) -> None:
    assert ask(http, "pin", "a", "abcd") == ["a: 4 tokens are kept until it is unpinned"]
    assert ask(http, "pin", "b", "xy", "--ttl", "90", "--salt", "s", "--extra-key", "k") == [
        "b: 2 tokens are kept for 90 s"
    ]
    first, second = http.fake.of(Pin)[-2:]
    assert (first.name, first.ttl_s, first.namespace) == ("a", None, Namespace())
    assert (second.name, second.ttl_s, second.namespace) == ("b", 90, Namespace(salt="s", extra="k"))
    assert ask(http, "unpin", "a") == ["a: 3 tokens may be evicted"]
    assert http.fake.of(Unpin)[-1].name == "a"


def test_flush(http: Served) -> None:
    assert ask(http, "flush") == ["7 tokens freed"]
    assert len(http.fake.of(Flush)) == 1


def test_the_key_may_come_from_the_servers_own_variable(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_SERVE__ADMIN_API_KEY", KEY)
    assert rtk("pins", "--url", http.base)[0] == 0
    assert KEY not in CliRunner().invoke(app, ["cache", "pins", "--help"]).output


# --- errors: one line, code 1 -----------------------------------------------------------------------------------


def failure(*args: str) -> str:
    code, lines, err = rtk(*args)
    assert (code, lines) == (1, [])
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    return err[7:-1]


@pytest.mark.parametrize("args", [("pins",), ("pin", "a", "b"), ("unpin", "a"), ("flush",)], ids=" ".join)
@pytest.mark.parametrize("key", [(), ("--admin-key", "wrong")], ids=["none", "wrong"])
def test_without_the_key(http: Served, args: tuple[str, ...], key: tuple[str, ...]) -> None:
    assert failure(*args, "--url", http.base, *key) == (
        "administrators only: send the server's serve.admin_api_key as 'Authorization: Bearer KEY' (admin_unauthorized)"
        "; rtk takes it from --admin-key or RTK_SERVE__ADMIN_API_KEY"
    )


def test_what_the_server_refuses(http: Served) -> None:
    assert failure("explain", "", "--url", http.base).startswith("text is empty: a prompt has at least one token")
    message = "ttl_s = -1.0: must be a number of seconds above 0, up to 2147483647, or null (invalid_request)"
    assert failure("pin", "a", "b", "--ttl", "-1", "--url", http.base, "--admin-key", KEY) == message
    assert failure("show", "--url", f"{http.base}/elsewhere") == (
        "unknown path: GET /elsewhere/cache; /openapi.json lists those that there are (unknown_path)"
    )


def test_a_busy_server() -> None:
    with Served(lambda new: iter([Gate()])) as http, http.connection("/generate", {"text": "x"}):
        http.fake.wait_for(lambda fake: fake.running)
        assert failure("flush", "--url", http.base).endswith("1 requests are running or waiting (cache_busy)")


def test_nobody_is_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert failure("show", "--url", url) == (
            f"no answer from {url}: Connection refused; start a server with 'rtk serve', or name another one with --url"
        )


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("file:///etc/passwd", "--url file:///etc/passwd: must begin with http:// or https://"),
        ("127.0.0.1:8000", "--url 127.0.0.1:8000: must begin with http:// or https://"),
        ("http://127.0.0.1:abc", "no answer from http://127.0.0.1:abc: nonnumeric port: 'abc'; "),
        ("http://127.0.0.1:1/a b", "no answer from http://127.0.0.1:1/a b: URL can't contain control characters"),
    ],
)
def test_no_address(url: str, problem: str) -> None:
    assert failure("show", "--url", url).startswith(problem)


@pytest.mark.parametrize("key", ["two words", "new\nline", "schlüssel", ""])
def test_no_key(key: str) -> None:
    message = failure("show", "--admin-key", key)
    assert message == (
        "--admin-key or RTK_SERVE__ADMIN_API_KEY: must be printable ASCII characters without spaces, "
        "as a server's keys are"
    )


@contextmanager
def answering(content: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers one request with `content`: its address, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                asked.append(connection.recv(4096))
                connection.sendall(content)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("head", [b"404 No\r\n\r\n{}", b"500 No\r\n\r\n<p>", b"200 OK\r\n\r\n"], ids=ascii)
def test_another_kind_of_server(head: bytes) -> None:
    with answering(b"HTTP/1.0 " + head) as (url, _):
        message = failure("show", "--url", url)
    status = head[:3].decode()
    assert message == f"{url} answers {status} in a form that rtk does not know; name another server with --url"


def test_the_key_goes_to_nobody_else() -> None:
    with answering(b"HTTP/1.0 404 No\r\n\r\n{}") as (other, asked):
        moved = f"HTTP/1.0 302 Found\r\nLocation: {other}/\r\n\r\n".encode()
        with answering(moved) as (url, first):
            failure("pins", "--url", url, "--admin-key", KEY)
    assert f"Authorization: Bearer {KEY}".encode() in first[0]
    assert asked[0].startswith(b"GET / ")
    assert KEY.encode() not in asked[0]
