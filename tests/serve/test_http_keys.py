"""Keys and tenants: who may call the server, as whom, and that tenants have nothing in common."""

import asyncio
import hmac

import openai
import pytest
from fake_scheduler import LENGTH, Gate, saying
from http_harness import InProcess, Served, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.cache.key import Namespace
from rtk.config.load import config_from
from rtk.schedule.messages import Explain, NewRequest, Pin
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.http.fields import IGNORED_HEADER
from rtk.serve.http.rights import AdminRights, ApiKeys
from rtk.serve.limits import Accounts

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
KEYS = [("acme", "sk-acme"), ("acme", "sk-acme-2"), ("beta", "sk-beta"), ("", "sk-nameless")]
ADMIN = AdminRights(key="sk-admin", local=True)
SETTINGS = {"keys": ApiKeys(KEYS, ADMIN), "admin": ADMIN}
GENERATING = [
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/generate", {"text": "x"}),
    ("/v1/responses", {"input": "x"}),
]


@pytest.fixture
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER, settings=SETTINGS, config={"c": 1}) as http:
        yield http


def ask(http, path, body=None, key=None, headers=None, method=None):
    headers = ([("Authorization", f"Bearer {key}")] if key else []) + [*(headers or [])]
    method = method or ("GET" if body is None else "POST")
    return http.run(http.request(method, path, body, headers=headers))


def last(http, kind):
    return http.fake.of(kind)[-1]


# --- who comes in -----------------------------------------------------------------------------------------------


def test_every_path_but_that_of_health_wants_a_key(http):
    paths = {route.path.replace("{model:path}", "tiny").replace("{rid:path}", "r") for route in http.app.routes}
    for path in sorted(paths | {"/", "/nope", "/health/", "/Health", "/v1/models/"}):
        for method in ("GET", "POST", "PUT", "OPTIONS", "HEAD"):
            answer = ask(http, path, method=method)
            if path in ("/health", "/ready"):
                assert answer.status_code in (200, 405)
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                error = error_of(answer, 401)
                assert (error["code"], error["param"]) == ("invalid_api_key", None)
    assert not http.fake.of(NewRequest)


@pytest.mark.parametrize(
    "headers",
    [
        [], [("Authorization", "")], [("Authorization", "Bearer")], [("Authorization", "Bearer ")],
        [("Authorization", "sk-acme")], [("Authorization", "Basic sk-acme")], [("Authorization", "Bearer sk-acm")],
        [("Authorization", "Bearer sk-acmee")], [("Authorization", "Bearer SK-ACME")],
        [("Authorization", "Bearer sk-acme sk-beta")], [("Authorization", "Bearer sk-acme,sk-beta")],
        [("Authorization", "Bearer acme")], [("Authorization", "Bearer null")], [("Authorization", b"Bearer \xff\xfe")],
        [("Authorization", "Bearer sk-acme"), ("Authorization", "Bearer sk-beta")],
        [("Authorization", "Bearer nope"), ("Authorization", "Bearer sk-acme")],
        [("X-API-Key", "sk-acme")], [("api-key", "sk-acme")], [("Cookie", "key=sk-acme")],
        [("Proxy-Authorization", "Bearer sk-acme")], [("X-Forwarded-For", "127.0.0.1")], [("X-Tenant", "acme")],
    ],
    ids=str,
)  # fmt: skip
def test_what_opens_nothing(http, headers, caplog):
    for path in ("/v1/models", "/v1/models?api_key=sk-acme&key=sk-acme&tenant=acme"):
        answer = ask(http, path, headers=headers)
        assert error_of(answer, 401)["code"] == "invalid_api_key"
    assert "sk-" not in answer.text + caplog.text


@pytest.mark.parametrize("given", ["Bearer sk-acme", "bearer sk-acme", "BEARER   sk-acme ", "Bearer sk-acme-2"])
def test_what_opens(http, given):
    assert ask(http, "/v1/models", headers=[("Authorization", given)]).status_code == 200


def test_without_keys_everybody_comes_in():
    with InProcess(saying(A), tokenizer=TOKENIZER) as http:
        for path, body in GENERATING:
            for headers in ([], [("Authorization", "Bearer whatever")], [("Authorization", b"\xff")]):
                assert ask(http, path, body, headers=headers).status_code == 200
                assert (last(http, NewRequest).tenant, last(http, NewRequest).namespace) == ("", Namespace())


def test_every_key_is_compared_whichever_fits(http, monkeypatch):
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or compare(a, b))
    counts = []
    for key in ("sk-acme", "sk-beta", "sk-nameless", "nope"):
        compared.clear()
        ask(http, "/v1/models", key=key)
        counts.append(len(compared))
        assert set(compared) == {(32, 32)}  # digests: no length tells anything
    assert counts == [len(KEYS) + 1] * 4


def test_keys_show_nowhere(http):
    assert "sk-" not in repr(SETTINGS["keys"]) + repr(ADMIN) + repr(HttpSettings(**SETTINGS))
    assert "sk-" not in ask(http, "/server_info", key="sk-admin").text


# --- as whom ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), GENERATING)
def test_the_key_says_whose_a_request_is(http, path, body):
    for tenant, key in [*KEYS, ("", "sk-admin")]:
        assert ask(http, path, body, key).status_code == 200
        new = last(http, NewRequest)
        assert (new.tenant, new.namespace) == (tenant, Namespace(tenant=tenant))
        ask(http, path, {**body, "cache_salt": "beta"}, key)
        assert last(http, NewRequest).namespace == Namespace(salt="beta", tenant=tenant)


INTERNAL = (
    *("tenant", "tenant_id", "rtk.tenant", "namespace", "account", "ceilings", "quota", "form", "names", "prompt_name"),
    *("tokens", "params", "lease", "pin", "leader", "arrival_s", "deadline_s", "name", "grammar", "state", "scope"),
    *("api_key", "api_keys", "key", "admin", "organization", "project", "x-tenant"),
)


@pytest.mark.parametrize(("path", "body"), GENERATING)
def test_nothing_else_says_it(http, path, body):
    names = [("tenant", "beta"), *((name, "beta") for name in INTERNAL)]
    headers = [(name.replace(".", "-"), "beta") for name, _ in names]
    headers += [("X-Forwarded-User", "beta"), ("OpenAI-Organization", "beta"), ("Forwarded", "for=beta"),
                ("X-Forwarded-For", "127.0.0.1"), ("X-Real-IP", "::1"), ("Cookie", "tenant=beta")]  # fmt: skip
    query = "?" + "&".join(f"{name}=beta" for name, _ in names)
    answer = ask(http, path + query, {**body, **dict(names), "user": "beta"}, "sk-acme", headers)
    assert answer.status_code == 200, answer.text
    assert "tenant" in answer.headers[IGNORED_HEADER].split(",")
    new = last(http, NewRequest)
    assert (new.tenant, new.namespace, new.leader, new.arrival_s) == ("acme", Namespace(tenant="acme"), None, None)
    assert "beta" not in repr(new).replace("tenant='acme'", "")
    if path == "/generate":
        nested = {**body, "sampling_params": dict(names)}
        assert ask(http, path, nested, "sk-acme").status_code == 200
        assert last(http, NewRequest).tenant == "acme"


def test_a_tenant_looks_at_its_own_cache_and_names_no_other(http):
    assert ask(http, "/cache/explain", {"text": "x"}, "sk-acme").json()["namespace"]["tenant"] == "acme"
    assert last(http, Explain).namespace == Namespace(tenant="acme")
    assert ask(http, "/cache/explain", {"text": "x"}, "sk-nameless").status_code == 200
    assert last(http, Explain).namespace == Namespace()
    seen = len(http.fake.received)
    for tenant in ("beta", "acme", "", 5, ["beta"]):
        error = error_of(ask(http, "/cache/explain", {"text": "x", "tenant": tenant}, "sk-acme"), 401)
        assert error["code"] == "admin_unauthorized"
        assert error_of(ask(http, "/abort", {"rid": "r", "tenant": tenant}, "sk-acme"), 401)
    assert len(http.fake.received) == seen


def test_tenants_run_nothing_of_the_server(http):
    for method, path, body in (
        ("POST", "/flush_cache", None), ("POST", "/cache/pin", {"name": "p", "text": "x"}),
        ("POST", "/cache/unpin", {"name": "p"}), ("POST", "/cache/explain", {"text": "x", "namespaces": "all"}),
        ("GET", "/requests/r/explain", None), ("GET", "/requests/r/explain?tenant=acme", None),
    ):  # fmt: skip
        for _, key in KEYS:
            error = error_of(ask(http, path, body, key, method=method), 401)
            assert error["code"] == "admin_unauthorized"
    assert not http.fake.received
    assert ask(http, "/server_info", key="sk-acme").json()["config"]["error"]["code"] == "admin_unauthorized"
    assert ask(http, "/cache", key="sk-acme").json()["pins"]["error"]["code"] == "admin_unauthorized"


def test_administrators_name_whose_things_they_mean(http):
    ask(http, "/cache/explain", {"text": "x", "tenant": "beta", "cache_salt": "s"}, "sk-admin")
    assert last(http, Explain).namespace == Namespace(salt="s", tenant="beta")
    assert ask(http, "/cache/pin", {"name": "p", "text": "x", "tenant": "beta"}, "sk-admin").json()["tenant"] == "beta"
    assert last(http, Pin).namespace == Namespace(tenant="beta")
    for wrong in (5, "", "x" * 201, "a\nb"):
        assert error_of(ask(http, "/abort", {"rid": "r", "tenant": wrong}, "sk-admin"))["param"] == "tenant"


def test_ids_are_a_tenants_own(http):
    gate = Gate()
    http.fake.script = lambda new: iter([gate, LENGTH])

    async def asked(path, body, key):
        return await http.request("POST", path, body, headers={"Authorization": f"Bearer {key}"})

    async def aborted(key, **more):
        return (await asked("/abort", {"rid": "r", **more}, key)).json()["aborted"]

    async def test():
        tasks = [
            asyncio.create_task(asked("/generate", {"text": "x", "rid": "r"}, key)) for key in ("sk-acme", "sk-beta")
        ]
        await asyncio.to_thread(http.fake.wait_for, lambda f: f.running == 2)
        assert (
            error_of(await asked("/generate", {"text": "x", "rid": "r"}, "sk-acme-2"), 409)["code"] == "duplicate_rid"
        )
        assert not await aborted("sk-nameless")
        assert not await aborted("sk-admin")
        assert await aborted("sk-acme-2")
        assert (await tasks[0]).json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not await aborted("sk-acme")
        assert not tasks[1].done()
        assert await aborted("sk-admin", tenant="beta")
        assert (await tasks[1]).json()["meta_info"]["finish_reason"]["type"] == "abort"

    http.run(test())


# --- OpenAI's client --------------------------------------------------------------------------------------------


def test_the_official_client_knows_what_is_wrong():
    bounds = config_from({"serve.tenants.tokens_per_minute": 2}).serve.tenants
    settings = SETTINGS | {"accounts": Accounts(bounds)}
    with Served(saying(A), tokenizer=TOKENIZER, settings=settings) as http:

        def client(key):
            return openai.OpenAI(base_url=http.base + "/v1", api_key=key, max_retries=0)

        with client("nope") as one, pytest.raises(openai.AuthenticationError) as unknown:
            one.models.list()
        assert unknown.value.code == "invalid_api_key"
        with client("sk-acme") as one:
            assert one.completions.create(model="tiny", prompt="x").choices[0].text == "a"
            with pytest.raises(openai.RateLimitError) as limited:
                one.completions.create(model="tiny", prompt="x")
        assert limited.value.code == "rate_limit_exceeded"
        assert 0 < int(limited.value.response.headers["retry-after"]) <= 30
