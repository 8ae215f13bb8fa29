"""By which name the server is called, from whose page, and how many may call it at a time."""

import asyncio
import types

import pytest
from fake_scheduler import LENGTH, Gate, saying
from http_harness import InProcess, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.config.load import config_from
from rtk.serve.http.guard import LOCAL_NAMES
from rtk.serve.http.rights import AdminRights, ApiKeys
from rtk.serve.launch import _settings

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
LOCAL = {"allowed_hosts": (*LOCAL_NAMES, "127.0.0.1")}
BODY = b'{"prompt": "x", "max_tokens": 1}'


def over(**settings):
    return InProcess(saying(A), tokenizer=TOKENIZER, settings=settings)


def status(http, path="/v1/models", method="GET", content=None, **headers):
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return http.run(http.request(method, path, content=content, headers=pairs)).status_code


# --- hosts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST", "localhost.:8000", "app.localhost", "127.0.0.1", "127.0.0.1:8000",
     "127.9.9.9:1", "[::1]", "[::1]:8000"],
)  # fmt: skip
def test_names_of_this_machine(host):
    with over(**LOCAL) as http:
        assert status(http, host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "",
     "[::2]", "8.8.8.8", "0.0.0.0", "[localhost", "\xff"],
)  # fmt: skip
def test_names_that_somebody_else_points_here(host):
    with over(**LOCAL) as http:
        answer = http.run(
            http.request("POST", "/v1/completions", content=BODY, headers=[("Host", host.encode("latin-1"))])
        )
        error = error_of(answer, 403)
        assert error["code"] == "host_not_allowed"
        assert error["message"].endswith("which is none of its names; add the name to serve.allowed_hosts")
        assert not http.fake.received
        assert status(http, "/health", host=host.encode("latin-1")) == 200


def test_two_hosts_are_none():
    with over(**LOCAL) as http:
        answer = http.run(http.request("GET", "/v1/models", headers=[("Host", "localhost"), ("Host", "localhost")]))
        assert "the server is called by 2 hosts" in error_of(answer, 403)["message"]


def test_hosts_of_the_configuration():
    with over(allowed_hosts=("api.example.com", "*.rtk.example")) as http:
        for host in ("api.example.com", "API.example.com:80", "a.rtk.example", "b.a.rtk.example"):
            assert status(http, host=host) == 200
        for host in ("localhost", "127.0.0.1", "rtk.example", "x.api.example.com", "xrtk.example"):
            assert status(http, host=host) == 403
    with over(allowed_hosts=("a", "*")) as http:
        assert status(http, host="evil.example") == 200


@pytest.mark.parametrize(
    ("keys", "local", "hosts"),
    [
        ({}, True, ("localhost", "*.localhost", "127.0.0.1")),
        ({}, False, None),
        ({"serve.allowed_hosts": ["A.example"]}, True, ("a.example",)),
        ({"serve.allowed_hosts": ["A.example"]}, False, ("a.example",)),
        ({"serve.host": "box"}, True, ("localhost", "*.localhost", "box")),
    ],
)
def test_which_hosts_are_allowed_by_default(keys, local, hosts):
    assert _settings(config_from(keys).serve, local=local).allowed_hosts == hosts


def test_a_host_that_is_no_host_breaks_nothing():
    with over() as http:
        for host in (b"[", b"[::1", b"a:b:c", b"\xff", b"x y"):
            answer = http.run(http.request("GET", "/nope", headers=[("Host", host)]))
            assert error_of(answer, 404)["code"] == "unknown_path"
            assert status(http, "/v1/models/", host=host) in (307, 404)


# --- origins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://localhost:1"},
        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"}, {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"}, {"origin": "https://localhost.evil.example"}, {"sec_fetch_site": "anything"},
    ],
    ids=str,
)  # fmt: skip
def test_pages_of_other_origins_are_kept_out(headers, keyed):
    keys = {"keys": ApiKeys([("", "k")])} if keyed else {}
    with over(**keys) as http:
        for content_type in ("text/plain", "application/json"):
            pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
            pairs += [("Content-Type", content_type), ("Authorization", "Bearer k")]
            for path in ("/v1/completions", "/flush_cache", "/abort"):
                error = error_of(http.run(http.request("POST", path, content=BODY, headers=pairs)), 403)
                assert error["code"] == "origin_not_allowed"
        assert not http.fake.received
        assert status(http, "/health", **headers) == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://localhost"}, {"origin": "https://LOCALHOST"}, {"sec_fetch_site": "same-origin"},
     {"sec_fetch_site": "none"}],
    ids=str,
)  # fmt: skip
def test_own_pages_and_programs_come_in(headers):
    with over() as http:
        assert status(http, "/v1/completions", "POST", BODY, **headers) == 200


def test_a_link_from_elsewhere_may_be_followed():
    with over() as http:
        assert status(http, sec_fetch_site="cross-site") == 200


def preflight(http, origin, method="POST"):
    headers = {"Origin": origin, "Access-Control-Request-Method": method,
               "Access-Control-Request-Headers": "authorization, content-type"}  # fmt: skip
    return http.run(http.request("OPTIONS", "/v1/completions", headers=headers))


def test_no_origin_is_told_that_it_may_by_default():
    with over() as http:
        answer = preflight(http, "https://chat.example")
        assert error_of(answer, 403)["code"] == "origin_not_allowed"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        answer = http.run(http.request("GET", "/v1/models"))
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_origins_that_may():
    with over(cors_origins=("https://chat.example",), keys=ApiKeys([("", "k")])) as http:
        answer = preflight(http, "https://chat.example")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
        assert "access-control-allow-credentials" not in answer.headers
        assert error_of(preflight(http, "https://evil.example"), 403)["code"] == "origin_not_allowed"
        for key, code in (("k", 200), ("wrong", 401)):  # a page can read why it is refused
            headers = {"Origin": "https://chat.example", "Authorization": f"Bearer {key}"}
            answer = http.run(http.request("POST", "/v1/completions", content=BODY, headers=headers))
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (code, "https://chat.example")
    with over(cors_origins=("*",)) as http:
        assert preflight(http, "https://anybody.example").status_code == 200
        assert status(http, "/v1/completions", "POST", BODY, origin="null") == 200


def test_streams_pass_untouched():
    body = b'{"prompt": "x", "stream": true, "max_tokens": 1}'
    with over(cors_origins=("https://chat.example",), access_log=True) as http:
        answer = http.run(
            http.request("POST", "/v1/completions", content=body, headers={"Origin": "https://chat.example"})
        )
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"


# --- a crowd ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_too_many_is_told_to_come_back(stream):
    gates = [Gate(), Gate()]
    with over(max_requests=2) as http:
        waiting = iter(gates)
        http.fake.script = lambda new: iter([next(waiting), LENGTH])

        async def test():
            body = {"prompt": "x", "stream": stream}
            tasks = [asyncio.create_task(http.request("POST", "/v1/completions", body)) for _ in gates]
            await asyncio.to_thread(http.fake.wait_for, lambda f: f.running == 2)
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/abort")):
                answer = await http.request(method, path, {"prompt": "y"} if method == "POST" else None)
                assert error_of(answer, 503)["code"] == "server_busy"
                assert answer.headers["retry-after"] == "1"
            assert (await http.request("GET", "/health")).status_code == 200
            for gate in gates:
                http.fake.open(gate)
            assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200, 200]
            assert (await http.request("GET", "/v1/models")).status_code == 200

        http.run(test())


def test_refusals_take_no_place():
    with over(max_requests=1, keys=ApiKeys([("", "k")])) as http:
        for _ in range(3):
            assert status(http) == 401
        assert status(http, authorization="Bearer k") == 200


# --- where it listens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "keys", "warned"),
    [("0.0.0.0", {}, True), ("192.168.0.7", {}, True), ("127.0.0.1", {}, False), ("::1", {}, False),
     ("0.0.0.0", {"serve.api_keys": "k"}, False), ("0.0.0.0", {"serve.admin_api_key": "k"}, True)],
)  # fmt: skip
def test_a_server_that_is_open_to_others_says_so(caplog, address, keys, warned):
    from rtk.serve.launch import _server

    with over() as http:
        runtime = types.SimpleNamespace(config=config_from(keys), manager=http.manager, close=lambda: None)
        _server(runtime, types.SimpleNamespace(getsockname=lambda: (address, 8000)))
    texts = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == warned
    assert all(
        text.startswith(f"everybody who reaches {address} can use this server: it asks for no key") for text in texts
    )


@pytest.mark.parametrize(
    ("keys", "local", "rights"),
    [
        ({}, True, AdminRights()),
        ({"serve.api_keys": ["k", "l"]}, True, AdminRights()),
        ({"serve.api_keys": {"acme": "k"}}, True, AdminRights(local=False)),  # a proxy makes all of them local
        ({"serve.api_keys": {"acme": "k"}, "serve.admin_api_key": "a"}, True, AdminRights(key="a", local=False)),
        ({"serve.api_keys": "k"}, False, AdminRights(local=False)),
    ],
)
def test_who_are_administrators(keys, local, rights):
    assert _settings(config_from(keys).serve, local=local).admin == rights
