"""Cases D01, D02, D03, D22 and D23: what text a client gets, streamed or not."""

import pytest
from fake_scheduler import LENGTH, STOP, model, saying
from http_harness import InProcess, error_of, events
from tiny_tokenizer import IM_END, byte_level, ids_of

from rtk.schedule.messages import Finish

X15 = (b"\xc3", b"\xa9\xe6", b"\xbc\xa2", b"\xf0\x9f", b"\xa7", b"\x8a")
X17 = ("Hello", "\n", "\nUs", "er", ": hi")


def completion(http, **body):
    """Text, reason and deltas, after a look that the stream says the same as the whole answer."""
    body = {"prompt": "x", "max_tokens": 64, **body}
    choice = http.complete(**body).json()["choices"][0]
    *chunks, done = events(http.complete(**body, stream=True))
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(deltas) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice["text"], choice["finish_reason"], deltas


def chat(http, **body):
    body = {"max_tokens": 64, **body}
    choice = http.chat(**body).json()["choices"][0]
    *chunks, done = events(http.chat(**body, stream=True))
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice["message"]["content"], choice["finish_reason"], deltas


def over(*pieces, **given):
    """A server whose model says `pieces`, and then its end token."""
    tokenizer = byte_level(*(p.encode() if isinstance(p, str) else p for p in pieces))
    return InProcess(model(tokenizer, [*ids_of(tokenizer, *pieces), IM_END]), tokenizer=tokenizer, **given)


def test_d01_characters_in_pieces():
    with over(*X15) as http:
        assert completion(http) == ("é漢🧊", "stop", ["é", "漢", "🧊", ""])


def test_d01_a_text_cut_inside_a_character():
    with over(*X15) as http:
        text, reason, _ = completion(http, max_tokens=4)
        assert (text, reason) == ("é漢\ufffd", "length")


def test_d01_with_a_stop_string():
    with over(*X15) as http:
        assert completion(http, stop="漢")[:2] == ("é", "stop")


def test_d02_a_prompt_that_ends_inside_a_character():
    with over(b"\xa7", b"\x8a", "!") as http:
        prompt = ids_of(http.tokenizer, "H", "i", " ", b"\xf0", b"\x9f")
        assert completion(http, prompt=prompt) == ("🧊!", "stop", ["🧊", "!", ""])


@pytest.mark.parametrize("ask", [completion, chat])
def test_d03_a_stop_string_in_pieces(ask):
    with over(*X17) as http:
        text, reason, deltas = ask(http, stop=["\n\nUser:"])
        assert (text, reason) == ("Hello", "stop")
        assert not any("\n" in delta for delta in deltas)


def test_d03_which_stop_string_it_was():
    with over("xabc") as http:
        for stop, matched in ((["ab", "abc"], "ab"), (["abc", "ab"], "abc")):
            answer = http.generate(text="x", sampling_params={"stop": stop}).json()
            assert answer["text"] == "x"
            assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}


def test_d03_stop_strings_that_are_refused():
    with over("x") as http:
        assert "is empty" in error_of(http.complete(prompt="x", stop=""))["message"]
        assert "at most 16" in error_of(http.complete(prompt="x", stop=["s"] * 17))["message"]
        assert "at most 1024" in error_of(http.complete(prompt="x", stop="s" * 1025))["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize(
    ("ids", "finish"),
    [
        ([IM_END], STOP), ([100, IM_END], STOP), ([100], Finish(reason="stop", matched="a")), ([100], LENGTH),
        ([], LENGTH), ([100], Finish(reason="abort")), ([], Finish(reason="abort")),
    ],
)  # fmt: skip
def test_d22_done_comes_exactly_once(path, ids, finish):
    bodies = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "text": "x"}
    with InProcess(saying(*ids, finish=finish)) as http:
        for more in ({}, {"stream_options": {"include_usage": True}}):
            text = http.post(path, {**bodies, **more, "stream": True}).text
            assert text.count("[DONE]") == 1
            assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("bundle", [1, 3, 4, 10])
def test_d23_several_tokens_in_one_chunk(bundle):
    tokenizer = byte_level()
    ids = ids_of(tokenizer, *"0123456789")
    with InProcess(saying(*ids, bundle=bundle), tokenizer=tokenizer) as http:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, usage, _ = events(http.complete(prompt="x", stream=True, stream_options=options))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "0123456789"
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == [*range(bundle, 10, bundle), 10, 10]
        assert usage["usage"]["completion_tokens"] == 10
