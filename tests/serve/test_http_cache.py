"""Salts, priorities, /cache and what is below it: what crosses the wire, and who may ask."""

import pytest
from fake_scheduler import saying
from http_harness import InProcess, error_of
from tiny_tokenizer import BOS, IM_END, IM_START, byte_level, ids_of, sentence_piece

from rtk.cache.evictions import Evicted
from rtk.cache.explain import Explanation
from rtk.cache.key import AdapterRef, Namespace, unpack
from rtk.schedule.messages import Explain, Flush, NewRequest, Pin, PinState, Unpin
from rtk.serve.http.rights import AdminRights

TOKENIZER = byte_level()
A, B, C = ids_of(TOKENIZER, *"abc")
KEY = "s3cret"
GENERATING = [
    ("/v1/completions", {"prompt": "abc"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}]}),
    ("/generate", {"text": "abc"}),
]
PROMPTED = [*GENERATING, ("/cache/explain", {"text": "abc"}), ("/cache/pin", {"text": "abc", "name": "n"})]
IGNORED = "x-rtk-ignored-fields"


@pytest.fixture
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER) as http:
        yield http


def last(http, *kinds):
    return [message for message in http.fake.received if isinstance(message, kinds)][-1]


# --- salts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), PROMPTED)
@pytest.mark.parametrize("salt", [None, "s", "alpha\x00beta", "é\U0001f9ca", " ", "x" * 65_536], ids=ascii)
def test_a_salt_is_the_namespace(http, path, body, salt):
    answer = http.post(path, {**body, "cache_salt": salt})
    assert answer.status_code == 200, answer.text
    assert IGNORED not in answer.headers
    assert last(http, NewRequest, Explain, Pin).namespace == Namespace(None, salt)


def test_a_batch_has_one_salt(http):
    http.generate(text=["a", "b"], cache_salt="s")
    assert [new.namespace for new in http.fake.of(NewRequest)] == [Namespace(salt="s")] * 2


@pytest.mark.parametrize(("path", "body"), PROMPTED)
@pytest.mark.parametrize("salt", ["", "x" * 65_537, 5, True, ["s"], {}, "a\ud800"], ids=lambda s: ascii(s)[:9])
def test_what_is_no_salt(http, path, body, salt):
    error = error_of(http.post(path, {**body, "cache_salt": salt}))
    assert error["param"] == "cache_salt"
    what = "unpaired surrogate U+D800" if salt == "a\ud800" else "must be a string of 1 to 65,536 characters, or null"
    assert error["message"].startswith(f"cache_salt: {what}")
    assert not http.fake.received


# --- priorities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize("priority", [7, -(2**31 - 1), 2**31 - 1, 0, None])
def test_a_priority_that_no_policy_reads_is_named(path, body, priority, strict):
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"strict_fields": strict}) as http:
        answer = http.post(path, {**body, "priority": priority})
        assert answer.status_code == 200
        assert answer.headers.get(IGNORED) == ("priority" if priority else None)
        assert last(http, NewRequest).priority == (priority or 0)


@pytest.mark.parametrize(("path", "body"), GENERATING)
def test_a_priority_that_a_policy_reads_is_not(path, body):
    with InProcess(saying(A), tokenizer=TOKENIZER, reads_priority=True) as http:
        assert IGNORED not in http.post(path, {**body, "priority": 7}).headers
        assert last(http, NewRequest).priority == 7


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize("priority", ["high", 2.5, 10**30, True, False, 0.0, 2**31, -(2**31), [1]], ids=str)
def test_what_is_no_priority(path, body, priority, reads):
    with InProcess(saying(A), tokenizer=TOKENIZER, reads_priority=reads) as http:
        error = error_of(http.post(path, {**body, "priority": priority}))
        assert error["param"] == "priority"
        assert error["message"].startswith("priority = ")
        assert error["message"].endswith(": must be an integer from -2147483647 to 2147483647")
        assert not http.fake.received


# --- routing keys, deadlines, and whose request it is -----------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("key", ["k", "é " * 100, None], ids=["short", "long", "none"])
def test_a_routing_key_is_named_where_no_policy_reads_it(path, body, reads, key, strict):
    settings = {"strict_fields": strict}
    with InProcess(saying(A), tokenizer=TOKENIZER, reads_routing_key=reads, settings=settings) as http:
        answer = http.post(path, {**body, "routing_key": key})
        assert answer.status_code == 200
        assert answer.headers.get(IGNORED) == ("routing_key" if key and not reads else None)
        assert last(http, NewRequest).routing_key == (key or "")


@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize("key", ["", "x" * 201, "a\n", 5, True, ["k"], {}], ids=lambda key: ascii(key)[:9])
def test_what_is_no_routing_key(http, path, body, key):
    error = error_of(http.post(path, {**body, "routing_key": key}))
    assert error["param"] == "routing_key"
    assert error["message"] == "routing_key: must be a string of 1 to 200 printable characters"
    assert not http.fake.received


@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize("ms", [0.5, 50, 2**31 - 1, None])
def test_a_deadline_reaches_the_scheduler_in_seconds(http, path, body, ms):
    answer = http.post(path, {**body, "deadline_ms": ms})
    assert answer.status_code == 200
    assert IGNORED not in answer.headers
    assert last(http, NewRequest).deadline_s == (ms and ms / 1000)


@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize("ms", [0, -1, 2**31, 10**400, "50", True, [5], {}], ids=lambda ms: ascii(ms)[:9])
def test_what_is_no_deadline(http, path, body, ms):
    error = error_of(http.post(path, {**body, "deadline_ms": ms}))
    assert error["param"] == "deadline_ms"
    assert error["message"].startswith("deadline_ms = ")
    assert error["message"].endswith(": must be a number of milliseconds above 0, up to 2147483647, or null")
    assert not http.fake.received


@pytest.mark.parametrize(("path", "body"), GENERATING)
def test_no_client_says_whose_request_it_is(http, path, body):
    answer = http.post(path, {**body, "tenant": "somebody"})
    assert answer.headers[IGNORED] == "tenant"
    assert last(http, NewRequest).tenant == ""


# --- the report -------------------------------------------------------------------------------------------------

REPORT = {
    "free": 40, "evictable": 30, "protected": 20, "held": 10, "pool": 100,
    "namespaces": 2, "pinned": 3, "pin_budget": 25,
}  # fmt: skip
GREETING = {
    "name": "greeting",
    "tokens": 3,
    "adapter": None,
    "cache_salt": "s",
    "extra_key": None,
    "expires_in_s": None,
}


def test_the_report(http):
    assert http.get("/cache").json() == {**REPORT, "pins": [GREETING]}


def test_a_pin_with_everything(http):
    namespace = Namespace(AdapterRef("alpha", 2), None)
    http.fake.pins = (PinState(name="p", tokens=16, namespace=namespace, expires_in_s=1.5),)
    assert http.get("/cache").json()["pins"] == [
        {
            "name": "p",
            "tokens": 16,
            "adapter": {"name": "alpha", "generation": 2},
            "cache_salt": None,
            "extra_key": None,
            "expires_in_s": 1.5,
        }
    ]


# --- explanations -----------------------------------------------------------------------------------------------


def explained(http, explanation, **body):
    http.fake.explanation = explanation
    return http.post("/cache/explain", {"text": "abc", **body}).json()


def found(**more):
    return Explanation(**{"namespace": Namespace(salt="s"), "prompt_tokens": 9, "cached_tokens": 4, **more})


HEAD = {
    "prompt_tokens": 9,
    "cached_tokens": 4,
    "matched_tokens": 4,
    "namespace": {"adapter": None, "cache_salt": "s", "extra_key": None},
}


def test_what_differs(http):
    answer = explained(
        http, found(matched_tokens=4, ends="differs", position=5, token=A, cached_token=IM_END), cache_salt="s"
    )
    assert answer == {
        **HEAD,
        "ends": "differs",
        "reason": f"4 of 9 tokens would be reused: at position 5 the prompt has token {A} ('a'), "
        f"and the most similar of what is cached has {IM_END} ('<|im_end|>').",
        "position": 5,
        "prompt": {"token": A, "text": "a"},
        "cached": {"token": IM_END, "text": "<|im_end|>"},
    }


def test_what_was_evicted(http):
    evicted = Evicted(Namespace(salt="s"), 2, bytes(4 * 30), 7, 0.0, "slru")
    assert explained(http, found(matched_tokens=4, ends="evicted", evicted=evicted)) == {
        **HEAD,
        "ends": "evicted",
        "reason": "4 of 9 tokens would be reused: what followed the first 4 was evicted 2.5 s ago "
        "(30 tokens, by slru).",
        "tokens": 30,
        "seconds_ago": 2.5,
        "tick": 7,
        "policy": "slru",
    }


@pytest.mark.parametrize(
    ("matched", "ends", "why"),
    [
        (0, "prompt", "the prompt does not fill a page, and whole pages are cached"),
        (8, "prompt", "the cache has the first 8; what does not fill a page, and at least the last token, is always "
         "computed"),
        (0, "new", "nothing that begins like this was cached, as far as the cache remembers"),
        (4, "new", "nothing that follows on the first 4 was cached, as far as the cache remembers"),
    ],
)  # fmt: skip
def test_the_other_ends(http, matched, ends, why):
    answer = explained(http, found(matched_tokens=matched, ends=ends))
    assert answer == {
        **HEAD,
        "matched_tokens": matched,
        "ends": ends,
        "reason": f"4 of 9 tokens would be reused: {why}.",
    }


@pytest.mark.parametrize("path", ["/cache/explain", "/cache/pin"])
@pytest.mark.parametrize(
    ("body", "ids"),
    [
        ({"text": "ab"}, [BOS, A, B]),
        ({"input_ids": [A, B]}, [A, B]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
          "chat_template_kwargs": {"add_generation_prompt": False}},
         [IM_START, *ids_of(TOKENIZER, *"user\na"), IM_END, *ids_of(TOKENIZER, "\n")]),
    ],
)  # fmt: skip
def test_a_prompt_is_encoded_as_for_an_answer(path, body, ids):
    with InProcess(saying(A), tokenizer=byte_level(bos=True)) as http:
        answer = http.post(path, {"name": "n", **body})
        assert answer.status_code == 200, answer.text
        assert unpack(last(http, Explain, Pin).tokens) == ids


@pytest.mark.parametrize("path", ["/cache/explain", "/cache/pin"])
@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({}, "text", "no prompt given: send one of text, input_ids, messages"),
        ({"text": "a", "input_ids": [A]}, "text", "text and input_ids given: send one of"),
        ({"text": ["a"]}, "text", "text = ['a']: must be a string"),
        ({"input_ids": "a"}, "input_ids", "input_ids = 'a': must be a list of token ids"),
        ({"input_ids": [[A]]}, "input_ids", "input_ids[0] = [100]: must be a token id"),
        ({"input_ids": [-1]}, "input_ids", "input_ids[0] = -1: must be a token id"),
        ({"messages": "a"}, "messages", "messages = 'a': must be a list of messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "must be a string"),
        ({"messages": [], "chat_template_kwargs": 5}, "chat_template_kwargs", "must be an object"),
        ({"text": ""}, "text", "text is empty"),
        ({"messages": []}, "messages", "messages is empty"),
        ({"text": "a\ud800"}, "text", "unpaired surrogate"),
        ({"text": "a", "lora": "alpha"}, "lora", "is not supported yet"),
    ],
    ids=ascii,
)
def test_what_is_no_prompt(http, path, body, field, problem):
    error = error_of(http.post(path, {"name": "n", **body}))
    assert error["param"] == field
    assert problem in error["message"]
    assert not http.fake.received


def test_what_an_explanation_does_not_read_is_named(http):
    body = {"text": "a", "max_tokens": 5, "priority": 1, "metadata": {}, "chat_template_kwargs": {}, "ttl_s": 5}
    answer = http.post("/cache/explain", body)
    assert answer.headers[IGNORED] == "max_tokens,priority,metadata,ttl_s,chat_template_kwargs"


# --- tokens as text ---------------------------------------------------------------------------------------------


def test_the_text_of_one_token():
    assert [TOKENIZER.text_of(token) for token in (A, BOS)] == ["a", "<bos>"]
    space, half = ids_of(TOKENIZER, b" ", b"\xc3")
    assert [TOKENIZER.text_of(token) for token in (space, half)] == [" ", "\ufffd"]
    words = sentence_piece("▁the", "the")
    vocab = words._backend.get_vocab()
    assert [words.text_of(vocab[piece]) for piece in ("▁the", "the", "<s>")] == [" the", "the", "<s>"]


# --- pins -------------------------------------------------------------------------------------------------------


def test_pin_and_unpin(http):
    answer = http.post("/cache/pin", {"name": "n", "text": "abc", "cache_salt": "s", "ttl_s": 90})
    assert answer.json() == {
        "name": "n",
        "tokens": 3,
        "adapter": None,
        "cache_salt": "s",
        "extra_key": None,
        "expires_in_s": 90,
    }
    assert (last(http, Pin).name, last(http, Pin).ttl_s) == ("n", 90)
    assert http.post("/cache/unpin", {"name": "n"}).json() == {
        "name": "n", "tokens": 3, "adapter": None, "cache_salt": None, "extra_key": None, "expires_in_s": 1.5,
    }  # fmt: skip
    assert last(http, Unpin).name == "n"


@pytest.mark.parametrize("path", ["/cache/pin", "/cache/unpin"])
@pytest.mark.parametrize("name", [None, "", 5, "x" * 201, "a\nb", "\ud800"], ids=ascii)
def test_what_is_no_name(http, path, name):
    error = error_of(http.post(path, {"text": "a", "name": name}))
    assert error["param"] == "name"
    assert not http.fake.received


@pytest.mark.parametrize("ttl", [0, -1, "60", True, 2**31, 10**400, [1]], ids=lambda ttl: ascii(ttl)[:9])
def test_what_is_no_ttl(http, ttl):
    error = error_of(http.post("/cache/pin", {"name": "n", "text": "a", "ttl_s": ttl}))
    assert error["param"] == "ttl_s"
    assert error["message"].endswith(": must be a number of seconds above 0, up to 2147483647, or null")
    assert not http.fake.received


# --- who may ------------------------------------------------------------------------------------------------------

OPEN, CLOSED = AdminRights(), AdminRights(local=False)
KEYED, KEYED_LOCAL = AdminRights(key=KEY, local=False), AdminRights(key=KEY)
BEARER = f"Bearer {KEY}"
RIGHTS = [
    (OPEN, None, 200), (OPEN, "Bearer whatever", 200),
    (CLOSED, None, 403), (CLOSED, BEARER, 403),
    *((keyed, None, 401) for keyed in (KEYED, KEYED_LOCAL)),
    *((keyed, BEARER, 200) for keyed in (KEYED, KEYED_LOCAL)),
    (KEYED, f"bearer  {KEY} ", 200), (KEYED, KEY, 401), (KEYED, f"Basic {KEY}", 401), (KEYED, "Bearer", 401),
    (KEYED, "Bearer ", 401), (KEYED, "Bearer s3cre", 401), (KEYED, "Bearer s3cret2", 401),
    (KEYED, "Bearer S3CRET", 401), (KEYED, "Bearer \xe9\xff", 401),
]  # fmt: skip
ADMINISTRATIVE = [
    ("/cache/pin", {"name": "n", "text": "a"}),
    ("/cache/unpin", {"name": "n"}),
    ("/cache/explain", {"text": "a", "namespaces": "all"}),
    ("/flush_cache", None),
]
CODES = {401: "admin_unauthorized", 403: "admin_closed"}


@pytest.mark.parametrize(("rights", "header", "status"), RIGHTS, ids=str)
def test_who_may_do_what(rights, header, status):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"admin": rights}, config={"k": "config"}) as http:
        for path, body in ADMINISTRATIVE:
            answer = http.run(http.request("POST", path, body, headers=headers))
            assert answer.status_code == status, (path, answer.text)
            assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
            if status != 200:
                assert error_of(answer, status)["code"] == CODES[status]
        assert bool(http.fake.of(Pin) and http.fake.of(Unpin) and http.fake.of(Flush)) is (status == 200)

        report = http.run(http.request("GET", "/cache", headers=headers))
        config = http.run(http.request("GET", "/server_info", headers=headers)).json()["config"]
        pins = report.json().pop("pins")
        if status == 200:
            assert (pins, config) == ([GREETING], {"k": "config"})
        else:
            assert pins["error"]["code"] == config["error"]["code"] == CODES[status]
            assert "greeting" not in report.text
        assert report.status_code == 200
        assert REPORT.items() <= report.json().items()

        for path, body in [*GENERATING, ("/cache/explain", {"text": "a", "cache_salt": "s"}), ("/abort", {"rid": "r"})]:
            assert http.run(http.request("POST", path, body, headers=headers)).status_code == 200


def test_rights_come_before_the_body():
    with InProcess(saying(A), settings={"admin": KEYED}) as http:
        for path, _ in ADMINISTRATIVE[:2]:
            assert error_of(http.post(path, content=b"{"), 401)["code"] == "admin_unauthorized"
        assert not http.fake.received


def test_the_key_is_shown_nowhere():
    assert KEY not in repr(KEYED)
    with InProcess(saying(A), settings={"admin": KEYED}) as http:
        for path, body in ADMINISTRATIVE:
            assert KEY not in http.post(path, body).text


@pytest.mark.parametrize("value", ["own", None])
def test_other_namespaces_are_not_looked_at_unasked(http, value):
    answer = http.post("/cache/explain", {"text": "a", "namespaces": value})
    assert not {"elsewhere", "searched"} & answer.json().keys()
    assert not last(http, Explain).elsewhere


def test_other_namespaces(http):
    answer = http.post("/cache/explain", {"text": "abc", "namespaces": "all"}).json()
    assert last(http, Explain).elsewhere
    assert (answer["elsewhere"], answer["searched"]) == (
        [{"adapter": None, "cache_salt": "other", "extra_key": None, "cached_tokens": 2}],
        5,
    )


@pytest.mark.parametrize("value", ["", "ALL", 5, ["all"]], ids=str)
def test_what_is_no_choice_of_namespaces(http, value):
    error = error_of(http.post("/cache/explain", {"text": "a", "namespaces": value}))
    assert error["param"] == "namespaces"
    assert error["message"].endswith(': must be "own" or "all"')
