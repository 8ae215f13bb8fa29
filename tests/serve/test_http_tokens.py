"""/tokenize and /detokenize: what prompts become, and back, without a model."""

import threading

import pytest
from http_harness import InProcess, error_of
from tiny_tokenizer import BOS, IM_END, IM_START, byte_level, ids_of

from rtk.serve.prompts import LONG_TEXT

TOKENIZER = byte_level(bos=True)
HI = ids_of(TOKENIZER, "h", "i")


@pytest.fixture
def http():
    with InProcess(None, tokenizer=TOKENIZER) as http:
        yield http


def ids(text):
    return ids_of(TOKENIZER, *(bytes([byte]) for byte in text.encode()))


# --- tokenize ---------------------------------------------------------------------------------------------------


def test_a_text_becomes_what_it_becomes_as_a_prompt(http):
    answer = http.post("/tokenize", {"prompt": "hi", "model": "tiny"})
    assert answer.json() == {"count": 3, "max_model_len": 128, "tokens": [BOS, *HI], "token_strs": None}


def test_special_tokens_around_a_text_can_be_left_out_and_put_around_a_chat(http):
    assert http.post("/tokenize", {"prompt": "hi", "add_special_tokens": False}).json()["tokens"] == HI
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    rendered = [IM_START, *ids("user\nhi"), IM_END, *ids("\n"), IM_START, *ids("assistant\n")]
    assert http.post("/tokenize", chat).json()["tokens"] == rendered
    assert http.post("/tokenize", {**chat, "add_special_tokens": True}).json()["tokens"] == [BOS, *rendered]


@pytest.mark.parametrize("options", [{"add_generation_prompt": False}, {"chat_template_kwargs": {"x": 1}}])
def test_what_the_template_is_told(http, options):
    chat = {"messages": [{"role": "user", "content": "hi"}], **options}
    said = ids("assistant\n") if options.get("add_generation_prompt", True) else []
    assert http.post("/tokenize", chat).json()["tokens"][8:] == [
        IM_END,
        *ids("\n"),
        *([IM_START, *said] if said else []),
    ]


def test_pieces_as_the_vocabulary_writes_them(http):
    answer = http.post("/tokenize", {"prompt": "h é", "return_token_strs": True}).json()
    assert answer["token_strs"] == ["<bos>", "h", "Ġ", "Ã", "©"]


def test_an_empty_text_and_one_longer_than_the_context_are_counted_too(http):
    assert http.post("/tokenize", {"prompt": ""}).json()["tokens"] == [BOS]
    assert http.post("/tokenize", {"prompt": "", "add_special_tokens": False}).json()["count"] == 0
    assert http.post("/tokenize", {"messages": []}).json()["tokens"] == []
    assert http.post("/tokenize", {"prompt": "a" * 200}).json()["count"] == 201


def test_what_a_text_does_not_read_is_named(http):
    answer = http.post("/tokenize", {"prompt": "hi", "add_generation_prompt": False, "temperature": 0})
    assert answer.headers["x-rtk-ignored-fields"] == "temperature,add_generation_prompt"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "prompt", "nothing given: send either prompt or messages"),
        ({"prompt": "a", "messages": []}, "prompt", "prompt and messages given: send either prompt or messages"),
        ({"prompt": ["a"]}, "prompt", "prompt = ['a']: must be a string"),
        ({"prompt": "a\ud800"}, "prompt", "prompt: unpaired surrogate U+D800 at character 1"),
        (
            {"prompt": "a", "add_special_tokens": 1},
            "add_special_tokens",
            "add_special_tokens = 1: must be true or false",
        ),
        (
            {"prompt": "a", "return_token_strs": "y"},
            "return_token_strs",
            "return_token_strs = 'y': must be true or false",
        ),
        ({"messages": "a"}, "messages", "messages = 'a': must be a list of messages"),
        ({"messages": [], "documents": [{}]}, "documents", '"documents" is not supported yet; leave it out'),
    ],
)
def test_refused_by_name(http, body, param, message):
    error = error_of(http.post("/tokenize", body))
    assert (error["param"], error["message"]) == (param, message)


def test_another_model_is_not_found(http):
    for path in ("/tokenize", "/detokenize"):
        assert error_of(http.post(path, {"model": "x", "prompt": "a", "tokens": []}), 404)["code"] == "model_not_found"


def test_a_text_with_a_token_that_the_model_lacks():
    with InProcess(None, tokenizer=byte_level(), vocab_size=100) as http:
        assert (
            "becomes token 197, which the model lacks"
            in error_of(http.post("/tokenize", {"prompt": "\x80"}))["message"]
        )


# --- detokenize -------------------------------------------------------------------------------------------------


def test_ids_become_text_with_special_tokens_by_name(http):
    rendered = http.post("/tokenize", {"messages": [{"role": "user", "content": "hé"}]}).json()["tokens"]
    text = http.post("/detokenize", {"tokens": rendered, "model": "tiny"}).json()
    assert text == {"prompt": "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"}
    assert http.post("/tokenize", {"prompt": text["prompt"], "add_special_tokens": False}).json()["tokens"] == rendered
    assert http.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize("token", [TOKENIZER.size, -1, 2**70, 1.0, True, "1", None, [1]])
def test_what_is_no_token_id_is_refused(http, token):
    error = error_of(http.post("/detokenize", {"tokens": [*HI, token]}))
    assert error["param"] == "tokens"
    assert error["message"].endswith(f"must be a token id from 0 to {TOKENIZER.size - 1}")


def test_tokens_must_be_a_list(http):
    assert error_of(http.post("/detokenize", {}))["message"] == "tokens is missing: send a list of token ids"
    assert error_of(http.post("/detokenize", {"tokens": "1"}))["message"] == "tokens = '1': must be a list"


# --- both -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "elsewhere"), [(LONG_TEXT, False), (LONG_TEXT + 1, True)])
def test_long_ones_are_worked_on_in_threads(http, monkeypatch, size, elsewhere):
    threads = []
    for name in ("encode", "read"):
        work = getattr(TOKENIZER, name)

        def noted(*args, work=work, **more):
            threads.append(threading.current_thread() is not threading.main_thread())
            return work(*args, **more)

        monkeypatch.setattr(TOKENIZER, name, noted)
    assert http.post("/tokenize", {"prompt": "a" * size, "add_special_tokens": False}).json()["count"] == size
    assert http.post("/detokenize", {"tokens": HI[:1] * size}).json() == {"prompt": "h" * size}
    assert threads == [elsewhere, elsewhere]
