"""Salts, explanations and pins over the real scheduler: the numbers are right, not only their shape."""

import pytest
from http_harness import error_of
from real_server import Real, run
from tiny_tokenizer import ids_of

TEXT = "abcdefghijklmnop"
SALTS = ["alpha", "alph", "a\x00b", "a", "x" * 10_000, "é"]


async def cached(server, path="/v1/completions", text=TEXT, **body):
    """The cached tokens of one answer of one token."""
    if path == "/generate":
        answer = await server.ask(path, text=text, sampling_params={"max_new_tokens": 1}, **body)
        return answer["meta_info"]["cached_tokens"]
    prompt = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    answer = await server.ask(path, max_tokens=1, temperature=0, **prompt, **body)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def error(response, status=409):
    return error_of(response, status)["code"], error_of(response, status)["message"]


def slots(report):
    return report["free"] + report["evictable"] + report["protected"] + report["held"]


# --- salts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_the_same_salt_hits_and_another_does_not(path):
    async def test(server):
        whole = 15 if path != "/v1/chat/completions" else None
        for salt in (None, *SALTS):
            assert await cached(server, path, cache_salt=salt) == 0
        for salt in (None, *reversed(SALTS)):
            hit = await cached(server, path, cache_salt=salt)
            assert hit == whole if whole else hit > 15
        assert (await server.ask("/cache"))["namespaces"] == 1 + len(SALTS)

    run(Real("a", pool_tokens=1024), test)


def test_a_batch_shares_its_salt():
    async def test(server):
        answers = await server.ask(
            "/generate", text=[TEXT, TEXT], cache_salt="s", sampling_params={"max_new_tokens": 1}
        )
        assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [0, 0]  # they ran together
        assert await cached(server, cache_salt="s") == 15
        assert await cached(server) == 0

    run(Real("a"), test)


# --- the report -------------------------------------------------------------------------------------------------


def test_the_slots_add_up_whatever_goes_on():
    async def test(server):
        assert await server.ask("/cache") == {
            "free": 256, "evictable": 0, "protected": 0, "held": 0, "pool": 256, "namespaces": 0, "pinned": 0,
            "pin_budget": 64, "pins": [],
        }  # fmt: skip
        await server.ask("/cache/pin", name="p", text=TEXT)
        await cached(server, text="zzzz")
        body = {"text": "yyyyy", "sampling_params": {"max_new_tokens": 9, "ignore_eos": True}}
        _, answer = await server.beside(body, "GET", "/cache")
        meanwhile = answer.json()
        assert slots(meanwhile) == 256
        # the pin, and the page of the request's prompt that is full; its second page is its own
        assert (meanwhile["protected"], meanwhile["evictable"], meanwhile["held"]) == (16 + 4, 4, 4)
        report = await server.ask("/cache")
        assert slots(report) == report["pool"] == 256
        assert (report["protected"], report["evictable"], report["held"]) == (16, 4 + 12, 0)
        assert (report["pinned"], report["namespaces"]) == (16, 1)

    run(Real("x", page_size=4), test)


# --- explanations -----------------------------------------------------------------------------------------------


async def explained(server, text, **body):
    answer = await server.ask("/cache/explain", text=text, **body)
    assert answer["cached_tokens"] == await cached(server, text=text, **body)  # which is what it foretells
    return {name: answer[name] for name in answer if name not in ("namespace", "reason", "prompt_tokens")}


def test_why_a_prompt_hits_or_misses():
    async def test(server):
        x, d = ids_of(server.tokenizer, "x", "d")
        assert await explained(server, TEXT) == {"cached_tokens": 0, "matched_tokens": 0, "ends": "new"}
        assert await explained(server, TEXT) == {"cached_tokens": 15, "matched_tokens": 16, "ends": "prompt"}
        assert await explained(server, "abcxyz") == {
            "cached_tokens": 3,
            "matched_tokens": 3,
            "ends": "differs",
            "position": 3,
            "prompt": {"token": x, "text": "x"},
            "cached": {"token": d, "text": "d"},
        }
        assert await explained(server, TEXT + "qr") == {"cached_tokens": 16, "matched_tokens": 16, "ends": "new"}
        assert await explained(server, TEXT, cache_salt="s") == {
            "cached_tokens": 0,
            "matched_tokens": 0,
            "ends": "new",
        }

    run(Real("a"), test)


def test_an_evicted_prompt_says_so():
    async def test(server):
        await cached(server)
        server.harness.now += 100
        for letter in "qrstuv":  # 6 x 50 tokens through a pool of 256
            await cached(server, text=letter * 50)
        evictions = await server.ask("/cache/explain", text=TEXT)
        assert evictions["ends"] == "evicted"
        assert (evictions["tokens"], evictions["policy"]) == (16, "Lru")
        assert evictions["reason"].startswith("0 of 16 tokens would be reused: what followed the first 0 was evicted")
        server.harness.now += 7
        assert (await server.ask("/cache/explain", text=TEXT))["seconds_ago"] == evictions["seconds_ago"] + 7 == 7

    run(Real("a"), test)


def test_with_pages_the_numbers_are_whole_pages():
    async def test(server):
        await cached(server)
        assert await explained(server, TEXT + "qr") == {"cached_tokens": 16, "matched_tokens": 16, "ends": "prompt"}
        answer = await explained(server, "abcdefXh" + TEXT)
        assert (answer["cached_tokens"], answer["matched_tokens"], answer["position"]) == (4, 4, 6)
        assert answer["cached"]["text"] == "g"

    run(Real("a", page_size=4), test)


def test_other_namespaces_with_more_of_a_prompt():
    async def test(server):
        for length, salt in ((4, "four"), (16, "all"), (8, "eight"), (2, "two")):
            await cached(server, text=TEXT[:length], cache_salt=salt)
        await cached(server, text=TEXT[:4])
        await cached(server, text="zzzz", cache_salt="other")
        answer = await server.ask("/cache/explain", text=TEXT, namespaces="all")
        assert (answer["cached_tokens"], answer["searched"]) == (4, 5)
        assert answer["elsewhere"] == [
            {"adapter": None, "cache_salt": "all", "extra_key": None, "cached_tokens": 15},
            {"adapter": None, "cache_salt": "eight", "extra_key": None, "cached_tokens": 8},
        ]
        nowhere = await server.ask("/cache/explain", text=TEXT, namespaces="all", cache_salt="all")
        assert (nowhere["elsewhere"], nowhere["searched"]) == ([], 5)

    run(Real("a"), test)


# --- pins -------------------------------------------------------------------------------------------------------


async def press(server):
    """More than the pool holds goes through it."""
    for letter in "qrstuvw":
        await cached(server, text=letter * 50)


def test_a_pin_outlives_eviction_and_flushing_until_it_is_taken_off():
    async def test(server):
        pin = {"name": "p", "tokens": 16, "adapter": None, "cache_salt": "s", "extra_key": None, "expires_in_s": None}
        assert await server.ask("/cache/pin", name="p", text=TEXT, cache_salt="s") == pin
        await cached(server, text=TEXT + "xyz")  # not pinned
        await press(server)
        assert await cached(server, text=TEXT + "xyz") == 0
        assert await cached(server, cache_salt="s") == 15
        assert (await server.request("POST", "/flush_cache")).status_code == 200
        assert await cached(server, cache_salt="s") == 15
        report = await server.ask("/cache")
        assert (report["pins"], report["pinned"]) == ([pin], 16)
        assert await server.ask("/cache/unpin", name="p") == pin
        assert (await server.ask("/cache"))["protected"] == 0
        await press(server)
        assert await cached(server, cache_salt="s") == 0

    run(Real("a"), test)


def test_a_pin_ends_with_its_time():
    async def test(server):
        await server.ask("/cache/pin", name="p", text=TEXT, ttl_s=60)
        server.harness.now += 59.5
        assert [pin["expires_in_s"] for pin in (await server.ask("/cache"))["pins"]] == [0.5]
        await press(server)
        assert await cached(server) == 15
        server.harness.now += 0.5
        report = await server.ask("/cache")
        assert (report["pins"], report["pinned"], report["protected"]) == ([], 0, 0)
        await press(server)
        assert await cached(server) == 0
        code, message = error(await server.request("POST", "/cache/unpin", {"name": "p"}), 404)
        assert (code, message) == ("unknown_pin", "there is no pin 'p'; pins: none")

    run(Real("a"), test)


def test_what_pins_are_refused_with():
    async def test(server):
        async def pin(name, text, **more):
            return await server.request("POST", "/cache/pin", {"name": name, "text": text, **more})

        assert (await pin("p", "a" * 20)).status_code == 200
        assert error(await pin("p", "b" * 20)) == ("duplicate_pin", "there is a pin 'p' already; unpin it first")
        assert error(await pin("q", "b" * 48)) == (
            "pin_over_budget",
            "pin 'q' takes 48 tokens, 20 are taken, and the budget is 64; unpin something, or raise cache.pins.budget",
        )
        short = await pin("q", "abc")
        assert error(short, 400) == ("pin_too_short", "its 3 tokens do not fill a page of 4")
        assert error_of(short)["param"] == "text"
        long = await pin("q", "a" * 128)
        assert error(long, 400)[0] == "context_length_exceeded"
        assert error_of(long)["param"] == "text"
        assert error_of(await server.request("POST", "/cache/unpin", {"name": "q"}), 404)["message"] == (
            "there is no pin 'q'; pins: 'p'"
        )
        assert [pin["name"] for pin in (await server.ask("/cache"))["pins"]] == ["p"]

    run(Real("a", page_size=4), test)


def test_without_a_cache_there_is_nothing_to_explain_or_pin():
    async def test(server):
        for path in ("/cache/explain", "/cache/pin"):
            answer = await server.request("POST", path, {"text": TEXT, "name": "p"})
            assert error(answer) == ("cache_disabled", "the prefix cache is switched off (cache.disable)")
        assert await cached(server) == await cached(server) == 0

    run(Real("a", cache_enabled=False), test)
