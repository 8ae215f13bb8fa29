"""Cases A12 and X03 over HTTP: flushing beside requests, and salts of any kind."""

from http_harness import error_of
from real_server import Real, run

LONG, NUL = "x" * 10_000, "al\x00pha"


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
