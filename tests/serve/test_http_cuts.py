"""Every way to cut a stream gives the answer without streaming.

Whatever tokens a message holds, and wherever characters and stop strings fall.
"""

import pytest
from fake_scheduler import bundled, model
from http_harness import InProcess, events
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import BOS, IM_END, IM_START, byte_level, ids_of

PIECES = (b"\xf0\x9f", b"\xa7", b"\x8a", b"\xc3", b"\xa9\xe6", b"\xbc\xa2", b"ab", b"a", b"b\n", b"\n", " é".encode())
TOKENIZER = byte_level(*PIECES)
TOKENS = (*ids_of(TOKENIZER, *PIECES), BOS, IM_START)
SHAPES = {"/v1/completions": {"prompt": [*ids_of(TOKENIZER, "H"), *ids_of(TOKENIZER, b"\xf0\x9f")]}}
SHAPES["/v1/chat/completions"] = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def http():
    with InProcess(None, tokenizer=TOKENIZER) as http:
        yield http


def saying_in_turn(one, other, size):
    """A script that says `one`, and `other` for second answers."""

    def script(new):
        return bundled(model(TOKENIZER, [*(other if new.leader else one), IM_END]), size)(new)

    return script


def body(path, draw):
    stop = draw(st.lists(st.sampled_from(["\n", "ab\n", "b", "é", "🧊", "aa"]), max_size=2))
    top = draw(st.sampled_from([None, 0, 2]))
    asked = {
        **SHAPES[path],
        "n": draw(st.integers(1, 2)),
        "stop": stop,
        "max_tokens": draw(st.integers(1, 9)),
        "min_tokens": draw(st.sampled_from([0, 0, 3])),
        "include_stop_str_in_output": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
    }
    asked["min_tokens"] = min(asked["min_tokens"], asked["max_tokens"])
    if path == "/v1/completions":
        return asked | {"logprobs": top, "echo": draw(st.booleans())}
    return asked | ({} if top is None else {"logprobs": True, "top_logprobs": top})


def text_of(choice):
    return choice["text"] if "text" in choice else choice.get("message", choice.get("delta")).get("content") or ""


def joined(logprobs):
    """The lists of several parts as one."""
    whole = {}
    for part in logprobs:
        for name, values in (part or {}).items():
            whole[name] = whole.get(name, []) + (values or [])
    return whole


def streamed(http, path, asked):
    """A stream as texts, reasons and log-probabilities by choice, and its usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = events(http.post(path, {**asked, **options}))
    assert done == "[DONE]"
    assert usage["choices"] == []
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    told = []
    for i in range(asked["n"]):
        own = [choice for choice in choices if choice["index"] == i]
        assert [choice["finish_reason"] for choice in own[:-1]] == [None] * (len(own) - 1)
        logprobs = joined(choice["logprobs"] for choice in own)
        told.append(("".join(map(text_of, own)), own[-1]["finish_reason"], logprobs))
    return told, usage["usage"]


def at_once(http, path, asked):
    answer = http.post(path, asked).json()
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(asked["n"]))
    told = [(text_of(choice), choice["finish_reason"], joined([choice["logprobs"]])) for choice in choices]
    return told, answer["usage"]


def check_places(text, logprobs):
    """Every token of whole characters stands where it is said to, as far as the text goes."""
    offsets = logprobs.get("text_offset", [])
    assert offsets == sorted(offsets)
    assert all(offset <= len(text) for offset in offsets)
    for token, offset in zip(logprobs.get("tokens", ()), offsets, strict=True):
        plain = not token.startswith(("bytes:", "<"))
        assert not plain or token.startswith(text[offset : offset + len(token)])


def check_bytes(text, logprobs):
    """The bytes of the tokens, together, begin with the text; what follows is what a stop string cut off."""
    said = b"".join(bytes(entry["bytes"]) for entry in logprobs["content"]).decode(errors="replace")
    assert said.startswith(text.rstrip("\ufffd"))


@pytest.mark.parametrize("path", list(SHAPES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_cut_gives_the_whole(http, path, data):
    tokens = st.lists(st.sampled_from(TOKENS), max_size=8)
    one, other = data.draw(tokens), data.draw(tokens)
    asked = body(path, data.draw)
    http.fake.script = saying_in_turn(one, other, 1)
    whole = at_once(http, path, asked)
    for text, _, logprobs in whole[0]:
        if path == "/v1/completions":
            check_places(text, logprobs)
        elif logprobs:
            check_bytes(text, logprobs)
    for size in (1, 2, 3, 9):
        http.fake.script = saying_in_turn(one, other, size)
        assert at_once(http, path, asked) == whole
        assert streamed(http, path, asked) == whole
