"""Log-probabilities in the shapes of OpenAI, vLLM and SGLang."""

import math
import threading

import pytest
from fake_scheduler import LENGTH, bundled, model
from http_harness import InProcess, error_of, events
from tiny_tokenizer import IM_END, byte_level, ids_of, sentence_piece

from rtk.schedule.messages import NewRequest, Output, TokenLogprobs, Verdict
from rtk.serve.http.logprobs import Placed, TokenWriter

TOKENIZER = byte_level(b"\xe6\xbc", b"\xa2")
A, B, HAN, REST = ids_of(TOKENIZER, "a", "b", b"\xe6\xbc", b"\xa2")


@pytest.fixture
def http():
    with InProcess(model(TOKENIZER, [A, B, HAN, REST, IM_END]), tokenizer=TOKENIZER) as http:
        yield http


def telling(*scored):
    """A script: these tokens with these log-probabilities, whatever was asked."""

    def script(new):
        yield Verdict(rid=new.rid, accepted=True)
        tokens = tuple(at.token for at in scored)
        yield Output(rid=new.rid, tokens=tokens, logprobs=scored, finish=LENGTH)

    return script


def params_of(http):
    return http.fake.of(NewRequest)[-1].params


# --- OpenAI's ---------------------------------------------------------------------------------------------------


def test_a_completion(http):
    choice = http.complete(prompt="x", logprobs=2).json()["choices"][0]
    assert (choice["text"], params_of(http).logprobs) == ("ab漢", 2)
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "bytes:\\xe6\\xbc", "bytes:\\xa2", "<|im_end|>"],
        "token_logprobs": [-0.5, -9.25, -9.25, -9.25, -0.5],
        "top_logprobs": [
            {"a": -0.5, "c": -1.0},
            {"d": -1.0, "c": -2.0, "b": -9.25},  # the token that was sampled, beside the two
            {"bytes:\\xfe": -1.0, "bytes:\\xfd": -2.0, "bytes:\\xe6\\xbc": -9.25},
            {"bytes:\\xa4": -1.0, "bytes:\\xa3": -2.0, "bytes:\\xa2": -9.25},
            {"<|im_end|>": -0.5, "<bos>": -1.0},
        ],
        "text_offset": [0, 1, 2, 2, 3],
    }


def test_a_completion_with_none_beside(http):
    logprobs = http.complete(prompt="x", logprobs=0, max_tokens=1).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0],
    }  # fmt: skip


def test_a_chat(http):
    choice = http.chat(logprobs=True, top_logprobs=1).json()["choices"][0]
    assert params_of(http).logprobs == 1
    first, _, half, rest, end = choice["logprobs"]["content"]
    assert set(choice["logprobs"]) == {"content", "refusal"}
    assert first == {
        "token": "a", "logprob": -0.5, "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
    }  # fmt: skip
    assert (half["token"], half["bytes"], rest["token"], rest["bytes"]) == ("\\xe6\\xbc", [230, 188], "\\xa2", [162])
    assert (end["token"], end["bytes"]) == ("<|im_end|>", [])
    together = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert together.decode() == choice["message"]["content"] == "ab漢"


def test_a_chat_with_none_beside(http):
    (entry,) = http.chat(logprobs=True, max_tokens=1).json()["choices"][0]["logprobs"]["content"]
    assert entry == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def test_special_tokens_that_have_text_have_bytes(http):
    choice = http.chat(logprobs=True, skip_special_tokens=False, ignore_eos=True, max_tokens=5).json()["choices"][0]
    assert choice["message"]["content"] == "ab漢<|im_end|>"
    assert bytes(choice["logprobs"]["content"][-1]["bytes"]) == b"<|im_end|>"


def test_nothing_is_told_that_was_not_asked_for(http):
    for asked in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}, {"logprobs": None}):
        assert http.chat(**asked, max_tokens=1).json()["choices"][0]["logprobs"] is None
        assert params_of(http).logprobs is None
    assert http.complete(prompt="x", logprobs=False, max_tokens=1).json()["choices"][0]["logprobs"] is None


def test_a_stream_tells_each_with_the_text_that_it_begins(http):
    *chunks, _ = events(http.complete(prompt="x", logprobs=0, stream=True))
    told = [(c["choices"][0]["text"], (c["choices"][0]["logprobs"] or {}).get("tokens")) for c in chunks]
    assert told == [
        ("a", ["a"]), ("b", ["b"]), ("漢", ["bytes:\\xe6\\xbc", "bytes:\\xa2"]), ("", ["<|im_end|>"]),
    ]  # fmt: skip
    *chunks, _ = events(http.chat(logprobs=True, stream=True))
    told = [[e["token"] for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]] for c in chunks]
    assert told == [[], ["a"], ["b"], ["\\xe6\\xbc", "\\xa2"], ["<|im_end|>"]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tokens_of_a_stop_string_stand_at_the_end_and_come_last(size):
    ids = ids_of(TOKENIZER, *"ab\n\nU!")
    with InProcess(bundled(model(TOKENIZER, ids), size), tokenizer=TOKENIZER) as http:
        body = {"prompt": "x", "logprobs": 0, "stop": "\n\nU!", "max_tokens": 20}
        choice = http.complete(**body).json()["choices"][0]
        assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", [*"ab\n\nU!"])
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 2, 2]
        *chunks, _ = events(http.complete(**body, stream=True))
        assert chunks[-1]["choices"][0]["logprobs"]["tokens"][-4:] == [*"\n\nU!"]
        assert all("\n" not in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"] for c in chunks[:-1])


def test_values_that_json_has_no_number_for():
    inf = math.inf
    odd = (TokenLogprobs(A, -inf, ((B, math.nan), (A, -inf))), TokenLogprobs(B, -0.5, ((B, -0.5), (A, -inf))))
    with InProcess(telling(*odd), tokenizer=TOKENIZER) as http:
        logprobs = http.complete(prompt="x", logprobs=2).json()["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-9999.0, -0.5]
        assert logprobs["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}, {"b": -0.5, "a": -9999.0}]
        for entry in http.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]:
            assert [top["logprob"] for top in entry["top_logprobs"]].count(-9999.0) == 1 + (entry["token"] == "a")


@pytest.mark.parametrize("top", [-1, 21, 1.0, "1", True])
def test_numbers_that_are_refused(http, top):
    assert error_of(http.complete(prompt="x", logprobs=top))["param"] == "logprobs"
    error = error_of(http.chat(logprobs=True, top_logprobs=top))
    assert error["param"] == "top_logprobs"
    assert "from 0 to 20" in error["message"]


def test_the_two_fields_of_chats_belong_together(http):
    assert error_of(http.chat(top_logprobs=1))["message"] == "top_logprobs: only allowed with logprobs = true"
    assert error_of(http.chat(logprobs=1))["param"] == "logprobs"


# --- vLLM's prompt_logprobs -------------------------------------------------------------------------------------


def test_of_a_prompt():
    assert (A, B) == (100, 101)
    other = {"103": {"logprob": -1.0, "rank": 1, "decoded_token": "d"}}
    with InProcess(model(TOKENIZER, [A]), tokenizer=TOKENIZER) as http:
        choices = http.complete(prompt=["ab", "b"], prompt_logprobs=1, max_tokens=1, n=2).json()["choices"]
        own = {"101": {"logprob": -9.25, "rank": None, "decoded_token": "b"}}
        assert [choice["prompt_logprobs"] for choice in choices] == [[None, {**other, **own}]] * 2 + [[None]] * 2
        assert choices[0]["logprobs"] is None
        answer = http.chat(prompt_logprobs=0, max_tokens=1).json()
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
        assert answer["prompt_logprobs"][1].popitem()[1]["rank"] is None
        error = error_of(http.complete(prompt="x", prompt_logprobs=1, stream=True))
        assert error["param"] == "prompt_logprobs"
        assert error_of(http.complete(prompt="x", prompt_logprobs=-1))["param"] == "prompt_logprobs"


# --- SGLang's ---------------------------------------------------------------------------------------------------


def test_of_the_native_endpoint(http):
    sampling = {"max_new_tokens": 2}
    meta = http.generate(text="ab", sampling_params=sampling, return_logprob=True).json()["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, A, None], [-9.25, B, None]]
    assert meta["input_token_logprobs"] == []
    assert "output_top_logprobs" not in meta
    assert params_of(http).prompt_logprobs is None


def test_of_a_prompt_from_some_token_on(http):
    more = {"return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 1, "return_text_in_logprobs": True}
    meta = http.generate(text="abb", sampling_params={"max_new_tokens": 1}, **more).json()["meta_info"]
    assert meta["input_token_logprobs"] == [[-9.25, B, "b"]] * 2
    assert meta["input_top_logprobs"] == [[[-1.0, B + 2, "d"]]] * 2
    assert meta["output_token_logprobs"] == [[-0.5, A, "a"]]
    assert meta["output_top_logprobs"] == [[[-0.5, A, "a"]]]
    from_the_first = http.generate(input_ids=[A, B], **{**more, "logprob_start_len": 0}).json()["meta_info"]
    assert from_the_first["input_token_logprobs"] == [[None, A, "a"], [-9.25, B, "b"]]
    assert from_the_first["input_top_logprobs"] == [None, [[-1.0, B + 2, "d"]]]


def test_a_native_stream_repeats_them(http):
    *parts, _ = events(
        http.generate(text="ab", return_logprob=True, logprob_start_len=0, sampling_params={"n": 2}, stream=True)
    )
    for index in (0, 1):
        own = [part["meta_info"] for part in parts if part["index"] == index]
        assert [len(meta["output_token_logprobs"]) for meta in own] == [1, 2, 4, 5]
        assert [len(meta["input_token_logprobs"]) for meta in own] == [2] * 4


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"return_logprob": 1}, "return_logprob"), ({"top_logprobs_num": 1}, "top_logprobs_num"),
        ({"logprob_start_len": 0}, "logprob_start_len"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 4}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": True}, "logprob_start_len"),
        ({"return_logprob": True, "return_text_in_logprobs": 1}, "return_text_in_logprobs"),
        ({"return_logprob": True, "token_ids_logprob": [A]}, "token_ids_logprob"),
    ],
)  # fmt: skip
def test_native_fields_that_are_refused(http, body, field):
    assert error_of(http.generate(text="abc", **body))["param"] == field
    assert not http.fake.received


# --- tokens -----------------------------------------------------------------------------------------------------


def test_bytes_stand_for_what_has_no_piece():
    tokenizer = sentence_piece("▁hello")
    ids = [tokenizer._backend.token_to_id(piece) for piece in ("▁hello", "<0xE6>", "</s>", "▁")]
    written = TokenWriter(tokenizer).chat([Placed(TokenLogprobs(i, -1.0), 0) for i in ids], special=False)["content"]
    assert [(entry["token"], entry["bytes"]) for entry in written] == [
        (" hello", [*b" hello"]), ("\\xe6", [0xE6]), ("</s>", []), (" ", [32]),
    ]  # fmt: skip


def test_a_tokenizer_whose_bytes_are_not_known():
    tokenizer = byte_level()
    tokenizer._backend.decoder = __import__("tokenizers").decoders.WordPiece()
    writer = TokenWriter(tokenizer)
    (entry,) = writer.chat([Placed(TokenLogprobs(A, -1.0), 0)], special=False)["content"]
    assert entry["bytes"] == [*entry["token"].encode()]


@pytest.mark.parametrize("stream", [False, True])
def test_many_are_written_beside_the_loop(stream, monkeypatch):
    threads = []
    native = TokenWriter.native_top

    def noting(self, *args, **more):
        threads.append(threading.current_thread())
        return native(self, *args, **more)

    monkeypatch.setattr(TokenWriter, "native_top", noting)
    with InProcess(model(TOKENIZER, [A]), tokenizer=TOKENIZER) as http:
        body = {"return_logprob": True, "top_logprobs_num": 20, "logprob_start_len": 0, "stream": stream}
        answer = http.generate(input_ids=[A] * 120, sampling_params={"max_new_tokens": 1}, **body)
        meta = (events(answer)[0] if stream else answer.json())["meta_info"]
        assert [len(top or ()) for top in meta["input_top_logprobs"]] == [0] + [20] * 119
        assert threading.main_thread() not in threads
        http.generate(input_ids=[A] * 9, sampling_params={"max_new_tokens": 1}, **body)
        assert threads[-1] is threading.main_thread()
