"""What a request is called: the header `x-request-id` of clients and answers."""

import re

import pytest
from fake_scheduler import saying
from http_harness import InProcess
from tiny_tokenizer import byte_level, ids_of

from rtk.serve.http.rights import ApiKeys

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
RANDOM = re.compile("[0-9a-f]{32}")
REQUESTS = [
    ("POST", "/v1/completions", {"prompt": "x"}, 200),
    ("POST", "/v1/completions", {"prompt": "x", "stream": True}, 200),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, 200),
    ("POST", "/v1/responses", {"input": "x"}, 200),
    ("POST", "/generate", {"text": "x"}, 200),
    ("POST", "/generate", {"text": ["x", "y"]}, 200),
    ("POST", "/tokenize", {"prompt": "x"}, 200),
    ("GET", "/v1/models", None, 200),
    ("POST", "/v1/completions", {"prompt": "x", "temperature": -1}, 400),
    ("POST", "/v1/completions", {}, 400),
    ("POST", "/generate", {"text": "x", "stream": True, "sampling_params": {"temperature": -1}}, 400),
    ("POST", "/nowhere", {}, 404),
    ("GET", "/generate", None, 405),
]


@pytest.fixture
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER) as http:
        yield http


def asked(http, method, path, body, **headers):
    return http.run(http.request(method, path, body, headers=headers))


def name_of(answer):
    (name,) = answer.headers.get_list("x-request-id")
    return name


@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
def test_every_answer_has_the_clients_name_of_the_request(http, method, path, body, status):
    answer = asked(http, method, path, body, **{"X-Request-Id": "trace-1/~!"})
    assert (answer.status_code, name_of(answer)) == (status, "trace-1/~!")


@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
def test_or_else_one_of_its_own(http, method, path, body, status):
    first, second = (asked(http, method, path, body) for _ in range(2))
    assert first.status_code == second.status_code == status
    assert name_of(first) != name_of(second)


@pytest.mark.parametrize(
    "given", [b"", b"two words", b"x" * 129, b"caf\xe9", b"tab\tbed"], ids=["none", "words", "long", "latin", "tab"]
)
def test_what_can_be_no_name_is_left_out(http, given):
    answer = asked(http, "POST", "/v1/completions", {"prompt": "x"}, **{"x-request-id": given})
    assert name_of(answer) == answer.json()["id"]
    refused = asked(http, "POST", "/v1/completions", {}, **{"x-request-id": given})
    assert RANDOM.fullmatch(name_of(refused))


def test_the_longest_name(http):
    assert name_of(asked(http, "GET", "/v1/models", None, **{"x-request-id": "x" * 128})) == "x" * 128


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_an_id_names_the_request_too_where_a_header_can_carry_it(http, path):
    text = {"prompt": "x", "text": "x"}
    assert name_of(http.post(path, {**text, "rid": "story"})) == "story"
    assert RANDOM.fullmatch(name_of(http.post(path, {**text, "rid": "r\u00e9"})))
    both = asked(http, "POST", path, {**text, "rid": "story"}, **{"x-request-id": "mine"})
    assert name_of(both) == "mine"


def test_two_requests_may_have_one_name(http):
    """A proxy may try again; ids of answers have to differ, names do not."""
    answers = [asked(http, "POST", "/v1/completions", {"prompt": "x"}, **{"x-request-id": "m"}) for _ in range(2)]
    assert [name_of(answer) for answer in answers] == ["m", "m"]
    assert answers[0].json()["id"] != answers[1].json()["id"]


def test_who_is_not_let_in_is_named_too():
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"keys": ApiKeys([("", "k")]), "max_requests": 0}) as http:
        assert (busy := http.get("/v1/models")).status_code == 503
        assert RANDOM.fullmatch(name_of(busy))
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"keys": ApiKeys([("", "k")])}) as http:
        closed = asked(http, "GET", "/v1/models", None, **{"x-request-id": "mine"})
        assert (closed.status_code, name_of(closed)) == (401, "mine")
