"""Cases A12 and A14 (X03): flushing beside requests, and namespaces that cannot collide."""

import pytest
from http_harness import error_of
from real_server import Real, run

from rtk.cache.key import AdapterRef, Namespace
from rtk.plugin.testing.harness import Harness

PROMPT = list(range(501, 517))
LONG, NUL = "x" * 10_000, "al\x00pha"


def spaced(lora, salt):
    return Namespace(None if lora is None else AdapterRef(lora, 1), salt)


def cached_in(*namespaces, length=16):
    """The cached tokens of one prompt, in one namespace after the other."""
    h = Harness(pool_tokens=1024)
    for i, namespace in enumerate(namespaces):
        h.add(str(i), (PROMPT * 2)[:length], namespace=namespace, max_new_tokens=1)
        h.run()
    return [h.cached[str(i)] for i in range(len(namespaces))]


def test_x03_namespaces():
    pairs = [("alpha", None), (None, "alpha"), ("al", "pha"), ("alp", "ha"), ("alpha", None)]
    assert cached_in(*(spaced(*pair) for pair in pairs)) == [0, 0, 0, 0, 15]


def test_x03_with_hostile_salts():
    pairs = [(None, LONG), (None, NUL), ("al", "\x00pha"), ("al\x00", "pha"), (None, LONG + "x"), (None, LONG)]
    assert cached_in(*(spaced(*pair) for pair in pairs)) == [0, 0, 0, 0, 0, 15]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("alpha", None), (None, "alpha")),
        ((None, "alpha"), ("alpha", None)),
        (("ab", "c"), ("a", "bc")),
        (("a", "bc"), ("ab", "c")),
        (("", None), (None, "")),
        ((None, None), (None, "")),
        ((None, None), (None, "None")),
    ],
)
def test_a14_adapter_and_salt_do_not_collide(one, other):
    assert cached_in(spaced(*one), spaced(*other), spaced(*one), length=32) == [0, 0, 31]


def test_x03_over_http():
    async def test(server):
        async def cached(salt):
            body = {"input_ids": prompt, "cache_salt": salt, "sampling_params": {"max_new_tokens": 1}}
            return (await server.ask("/generate", **body))["meta_info"]["cached_tokens"]

        prompt = [100 + i for i in range(16)]
        salts = [None, "alpha", LONG, NUL, "al", LONG + "x"]
        assert [await cached(salt) for salt in salts] == [0] * 6
        assert [await cached(salt) for salt in salts] == [15] * 6

    run(Real("a"), test)


def test_a12_flushing_beside_a_request_is_refused_and_disturbs_nobody():
    async def test(server):
        body = {"sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
        generated, flushed = await server.beside(body, "POST", "/flush_cache")
        error = error_of(flushed, 409)
        assert (error["code"], error["message"]) == (
            "cache_busy",
            "the cache stays as it is: 1 requests are running or waiting; try again when idle",
        )
        assert generated.json()["text"] == "xyxyx"
        assert (await server.request("POST", "/flush_cache")).json() == {"freed_tokens": 8}

    run(Real("x", "y", end=False), test)


def test_a12_flushing_right_after_the_last_request_works_every_time():
    async def test(server):
        for _ in range(100):
            await server.post("/generate", sampling_params={"max_new_tokens": 1})
            flushed = await server.request("POST", "/flush_cache")
            assert (flushed.status_code, flushed.json()) == (200, {"freed_tokens": 4})

    run(Real("x"), test)
