"""The calls of whoever runs the server."""

import asyncio
from types import SimpleNamespace

import pytest
from fake_scheduler import LENGTH, Gate, saying
from http_harness import InProcess, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.config.load import config_from
from rtk.serve.http.rights import AdminRights
from rtk.serve.launch import _listen, _server
from rtk.serve.protocol import Vitals

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")


@pytest.fixture
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER, config={"cache": {"page_size": 16}}) as http:
        yield http


def test_health(http):
    assert http.get("/health").json() == {"status": "ok"}
    http.fake.healthy = False
    assert error_of(http.get("/health"), 503)["code"] == "engine_stopped"
    assert error_of(http.complete(prompt="x"), 503)["code"] == "engine_stopped"


def test_health_names_plugins_that_failed_and_server_info_counts_them(http):
    faults = {"eviction plugin 'big'": {"faults": 3, "instead": "least recently used"}}
    http.fake.vitals = Vitals(turn_s=59.0, plugins=faults)
    answer = http.get("/health")
    instead = {"eviction plugin 'big'": "least recently used"}
    assert (answer.status_code, answer.json()) == (200, {"status": "degraded", "instead": instead})
    assert http.get("/server_info").json()["plugin_faults"] == faults


def test_health_of_an_engine_that_does_not_turn(http):
    http.fake.vitals = Vitals(turn_s=61.2)
    error = error_of(http.get("/health"), 503)
    assert error["code"] == "engine_stuck"
    assert error["message"].startswith("the engine's thread has been in one turn for 61 s: ")
    assert http.complete(prompt="x").status_code == 200  # only told: it may be a long step


def test_server_info(http):
    info = http.get("/server_info").json()
    assert (info["version"], info["config"]) == ("1.2.3", {"cache": {"page_size": 16}})
    assert info["model"] == {
        "served_name": "tiny",
        "vocab_size": TOKENIZER.size,
        "context_length": 128,
        "attention": "",
        "page_size": 1,
        "default_sampling": {},
    }
    assert (info["in_flight"], info["stats"], info["grammar"]) == (0, {"running": 0}, {})


def test_server_info_of_a_folder_whose_name_is_no_text():
    config = {"model": {"cache_dir": "/tmp/\udcff"}}
    with InProcess(saying(A), tokenizer=TOKENIZER, config=config) as http:
        assert http.get("/server_info").json()["config"] == config


def test_flush_and_abort():
    gate = Gate()

    async def test():
        assert (await http.request("POST", "/flush_cache")).json() == {"freed_tokens": 7}
        running = asyncio.create_task(http.request("POST", "/generate", {"text": "x", "rid": "r"}))
        await asyncio.to_thread(http.fake.wait_for, lambda f: f.running)
        busy = await http.request("POST", "/flush_cache")
        error = error_of(busy, 409)
        assert (error["code"], error["message"]) == (
            "cache_busy",
            "the cache stays as it is: 1 requests are running or waiting",
        )
        assert (await http.request("POST", "/abort", {"rid": "r"})).json() == {"rid": "r", "aborted": True}
        assert (await running).json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await http.request("POST", "/abort", {"rid": "r"})).json() == {"rid": "r", "aborted": False}

    with InProcess(lambda new: iter([gate, LENGTH]), tokenizer=TOKENIZER) as http:
        http.run(test())


@pytest.mark.parametrize("body", [{}, {"rid": None}, {"rid": 5}, {"rid": ""}, {"rid": ["a"]}, {"rid": "\ud800"}])
def test_abort_needs_an_id(http, body):
    assert error_of(http.post("/abort", body))["param"] == "rid"


def test_abort_names_what_it_does_not_know(http):
    assert http.post("/abort", {"rid": "r", "abort_all": True}).headers["x-rtk-ignored-fields"] == "abort_all"


# --- closed to others -------------------------------------------------------------------------------------------


def test_closed_calls_say_why():
    with InProcess(
        saying(A), settings={"admin": AdminRights(local=False)}, config={"model": {"cache_dir": "/secret"}}
    ) as http:
        error = error_of(http.post("/flush_cache"), 403)
        assert error["code"] == "admin_closed"
        assert "set serve.admin_api_key, or bind it to a loopback address" in error["message"]
        assert not http.fake.received

        response = http.get("/server_info")
        assert response.status_code == 200
        info = response.json()
        assert info["config"] == {"error": error}
        assert "secret" not in response.text
        assert info["model"]["served_name"] == "tiny"
        assert info["stats"] == {"running": 0}

        assert http.get("/health").status_code == 200
        assert http.post("/abort", {"rid": "r"}).status_code == 200
        assert http.complete(prompt="x").status_code == 200


def status_of_flush(http, listener, headers=None, **keys):
    """What /flush_cache answers when `rtk serve` listens there, with these keys of the section `serve`."""
    config = config_from({f"serve.{key}": value for key, value in keys.items()})
    runtime = SimpleNamespace(config=config, manager=http.manager, close=lambda: None)
    http.app = _server(runtime, listener).config.app
    return http.run(http.request("POST", "/flush_cache", headers=headers)).status_code


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("127.0.0.1", 200), ("127.8.9.10", 200), ("::1", 200),
        ("0.0.0.0", 403), ("::", 403), ("192.168.0.7", 403), ("8.8.8.8", 403), ("fe80::1%eth0", 403),
    ],
)  # fmt: skip
def test_the_address_decides(http, address, status):
    listener = SimpleNamespace(getsockname=lambda: (address, 8000, 0, 0)[: 4 if ":" in address else 2])
    assert status_of_flush(http, listener) == status


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("sent", "status"), [("s3cret", 200), ("other", 401), (None, 401)])
def test_or_the_configured_key(http, caplog, address, sent, status):
    caplog.set_level("DEBUG")
    headers = {} if sent is None else {"Authorization": f"Bearer {sent}"}
    listener = SimpleNamespace(getsockname=lambda: (address, 8000))
    assert status_of_flush(http, listener, headers, admin_api_key="s3cret") == status
    info = http.run(http.request("GET", "/server_info", headers=headers))
    if status == 200:
        assert info.json()["config"]["serve"]["admin_api_key"] == "**********"
    assert "s3cret" not in info.text + caplog.text


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("127.0.0.1", 200), ("0.0.0.0", 403)])
def test_the_address_is_the_one_that_was_bound(http, host, status):
    with _listen(config_from({"serve.host": host, "serve.port": 0}).serve) as listener:
        assert status_of_flush(http, listener) == status
