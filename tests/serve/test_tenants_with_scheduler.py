"""Tenants over the real scheduler: nothing of one is in what another gets."""

import json

import httpx
from real_server import Real, run

from rtk.serve.http.app import create_app
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.http.rights import AdminRights, ApiKeys

ADMIN = AdminRights(key="sk-admin")
KEYS = [("acme", "sk-acme"), ("acme", "sk-acme-2"), ("beta", "sk-beta"), ("", "sk-nameless")]
SETTINGS = HttpSettings(keys=ApiKeys(KEYS, ADMIN), admin=ADMIN)


class Tenants(Real):
    def __init__(self, *pieces):
        super().__init__(*pieces)
        self.app = create_app(self.manager, SETTINGS)

    async def by(self, key, method, path, body=None):
        transport = httpx.ASGITransport(app=self.app)
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answer = await client.request(method, path, content=None if body is None else json.dumps(body))
        return answer.json()


def test_tenants_share_no_prefix_whatever_their_salts():
    async def test(server):
        async def cached(key, salt=None):
            body = {"text": "abcdefgh", "cache_salt": salt, "sampling_params": {"max_new_tokens": 1}}
            return (await server.by(key, "POST", "/generate", body))["meta_info"]["cached_tokens"]

        async def matched(key, salt=None, **more):
            body = {"text": "abcdefgh", "cache_salt": salt, **more}
            return (await server.by(key, "POST", "/cache/explain", body))["matched_tokens"]

        assert await cached("sk-acme") == 0
        for key, salt in (
            ("sk-beta", None), ("sk-nameless", None), ("sk-beta", "acme"), ("sk-nameless", "acme"),
            ("sk-acme", "acme"), ("sk-acme", "beta"), ("sk-admin", "acme\0"),
        ):  # fmt: skip
            assert await matched(key, salt) == 0
            assert await cached(key, salt) == 0
        assert await cached("sk-acme-2") == 7
        assert await matched("sk-admin", tenant="acme") == 8
        found = await server.by("sk-admin", "POST", "/cache/explain", {"text": "zz", "namespaces": "all"})
        assert found["searched"] >= 1

    run(Tenants("x"), test)


def test_what_became_of_a_request_is_told_by_tenant():
    async def test(server):
        for key, length in (("sk-acme", 1), ("sk-beta", 2)):
            body = {"text": "ab", "rid": "r", "sampling_params": {"max_new_tokens": length, "ignore_eos": True}}
            await server.by(key, "POST", "/generate", body)
        tokens = [
            (await server.by("sk-admin", "GET", f"/requests/r/explain?tenant={tenant}")).get("output_tokens")
            for tenant in ("acme", "beta", "nobody")
        ]
        assert tokens == [1, 2, None]
        assert (await server.by("sk-admin", "GET", "/requests/r/explain"))["error"]["code"] == "unknown_request"

    run(Tenants("x", "y", "z"), test)
