"""GET /requests/{rid}/explain: what crosses the wire, who may ask, and the same over a real scheduler."""

import asyncio

import msgspec
import pytest
from fake_scheduler import saying, timeline
from http_harness import InProcess, error_of
from real_server import Real, run
from tiny_tokenizer import byte_level, ids_of

from rtk.schedule.messages import ExplainRequest, NewRequest
from rtk.schedule.timeline import Timeline, Wait
from rtk.serve.http.rights import AdminRights

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")


@pytest.fixture
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER) as http:
        yield http


def test_the_answer(http):
    http.fake.timeline = timeline(rid="tide", waits=(Wait("kv", 2.5),), queue_s=2.5)
    answer = http.get("/requests/tide/explain")
    assert answer.status_code == 200
    body = answer.json()
    assert body.pop("sentences") == [
        "It came with 4 prompt tokens; nobody was waiting.",
        "It has been waiting 2.500 s for KV capacity.",
        "Order cost it nothing: nobody who came later was started before it.",
    ]
    assert body == msgspec.to_builtins(http.fake.timeline, str_keys=True) | {
        "waits": [{"cause": "kv", "seconds": 2.5}],
        **{name: [] for name in ("attempts", "chunks", "notes", "retractions")},
    }
    assert set(body) == set(Timeline.__struct_fields__)


@pytest.mark.parametrize(
    ("path", "rid"),
    [
        ("tide", "tide"),
        ("a%2Fb", "a/b"),
        ("a/b", "a/b"),
        ("a%20b%3Fc%25", "a b?c%"),
        ("%C3%A9%F0%9F%A7%8A", "é\U0001f9ca"),
        ("explain", "explain"),
        ("x/explain", "x/explain"),
    ],
)
def test_any_id_fits_into_a_path(http, path, rid):
    assert http.get(f"/requests/{path}/explain").json()["rid"] == rid
    assert http.fake.of(ExplainRequest)[-1].name == rid


@pytest.mark.parametrize("path", ["%07", "x" * 201, ""])
def test_what_is_no_id(http, path):
    error = error_of(http.get(f"/requests/{path}/explain"))
    assert error["message"] == "rid: must be a string of 1 to 200 printable characters"
    assert not http.fake.received


def test_nobody_knows_it(http):
    error = error_of(http.get("/requests/nobody/explain"), 404)
    assert (error["code"], error["param"]) == ("unknown_request", "rid")


@pytest.mark.parametrize(
    ("rights", "header", "status"),
    [
        (AdminRights(), None, 200),
        (AdminRights(local=False), None, 403),
        (AdminRights(key="s3cret"), None, 401),
        (AdminRights(key="s3cret", local=False), "Bearer s3cret", 200),
    ],
    ids=str,
)
def test_who_may_ask(rights, header, status):
    headers = {} if header is None else {"Authorization": header}
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"admin": rights}) as http:
        answer = http.run(http.request("GET", "/requests/tide/explain", headers=headers))
        assert answer.status_code == status
        assert bool(http.fake.of(ExplainRequest)) is (status == 200)


def test_the_scheduler_is_told_what_the_client_calls_its_requests(http):
    http.generate(text=["a", "b"], rid="pair")
    http.generate(text="a", rid="one")
    drawn = http.complete(prompt="a").json()["id"]
    assert [new.name for new in http.fake.of(NewRequest)] == ["pair-0", "pair-1", "one", drawn]


def test_over_the_scheduler():
    async def test(server):
        body = {"rid": "a/b", "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}}
        assert (await server.post("/generate", **body)).status_code == 200
        assert (await server.post("/generate", **body)).status_code == 200
        told = (await server.request("GET", "/requests/a%2Fb/explain")).json()
        assert (told["rid"], told["state"], told["end"], told["output_tokens"]) == ("a/b", "finished", "length", 3)
        assert (told["cached_tokens"], told["chunk_count"], told["decoding"]["steps"]) == (3, 1, 2)  # the second one
        assert "3 of its 4 prompt tokens came from the cache." in told["sentences"]
        pin = await server.request("POST", "/cache/pin", {"name": "greeting", "text": "abcd"})
        assert pin.status_code == 200
        told = (await server.request("GET", "/requests/pin:greeting/explain")).json()
        assert (told["end"], told["output_tokens"], told["decoding"]) == ("length", 0, None)
        error = error_of(await server.request("GET", "/requests/other/explain"), 404)
        assert (error["code"], error["message"]) == (
            "unknown_request",
            "no request 'other' is known; those in flight are, and the last 1,000 that have ended, without those that "
            "were refused",
        )

    run(Real("x"), test)


def test_while_it_runs():
    async def test(server):
        server.go.clear()
        answer = asyncio.create_task(server.post("/generate", rid="slow", sampling_params={"max_new_tokens": 1}))
        await asyncio.to_thread(server.entered.wait, 10)
        asked = asyncio.create_task(server.request("GET", "/requests/slow/explain"))
        server.go.set()
        told = (await asked).json()
        assert (told["rid"], (await answer).status_code) == ("slow", 200)

    run(Real("x", end=False), test)
