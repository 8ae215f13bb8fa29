"""`echo`, and the answers that go on with the last message of a chat."""

import pytest
from fake_scheduler import bundled, model, saying
from http_harness import InProcess, error_of, events
from tiny_tokenizer import BOS, IM_END, byte_level, ids_of, sentence_piece

from rtk.schedule.messages import NewRequest

TOKENIZER = byte_level()
A, B, F0, X9F, XA7, X8A = ids_of(TOKENIZER, "a", "b", b"\xf0", b"\x9f", b"\xa7", b"\x8a")
H, BANG = ids_of(TOKENIZER, "H", "!")


def over(*ids, size=1, tokenizer=TOKENIZER):
    return InProcess(bundled(model(tokenizer, [*ids, IM_END]), size), tokenizer=tokenizer)


def both_ways(http, **body):
    """Text, log-probabilities by name, and the deltas of a stream that says the same."""
    choice = http.complete(**body).json()["choices"][0]
    *chunks, done = events(http.complete(**body, stream=True))
    assert done == "[DONE]"
    parts = [chunk["choices"][0] for chunk in chunks]
    deltas = [part["text"] for part in parts]
    assert "".join(deltas) == choice["text"]
    for name in choice["logprobs"] or ():
        told = [entry for part in parts for entry in (part["logprobs"] or {name: []})[name]]
        assert told == choice["logprobs"][name]
    return choice["text"], choice["logprobs"], deltas


def test_the_prompt_comes_with_the_first_text():
    with over(A, B) as http:
        assert both_ways(http, prompt="Hi ", echo=True) == ("Hi ab", None, ["Hi a", "b", ""])
        assert http.complete(prompt="Hi ", echo=True).json()["usage"]["completion_tokens"] == 3


def test_of_a_batch_with_two_answers_each():
    with over(A) as http:
        choices = http.complete(prompt=["x", "yz"], echo=True, n=2, logprobs=0).json()["choices"]
        assert [(c["index"], c["text"]) for c in choices] == [(0, "xa"), (1, "xa"), (2, "yza"), (3, "yza")]
        assert [c["logprobs"]["tokens"] for c in choices] == [["x", "a", "<|im_end|>"]] * 2 + [
            ["y", "z", "a", "<|im_end|>"]
        ] * 2
        assert choices[3]["logprobs"]["text_offset"] == [0, 1, 2, 3]
        assert choices[3]["logprobs"]["token_logprobs"] == [None, -0.5 if ids_of(TOKENIZER, "z")[0] % 2 == 0 else -9.25,
                                                            -0.5, -0.5]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("ids", "text", "offsets"),
    [
        ([XA7, X8A, BANG], "H🧊!", [0, 1, 1, 1, 1, 2]),  # the answer goes on with the prompt's character
        ([BANG], "H\ufffd!", [0, 1, 1, 2]),  # or does not
        ([XA7, BANG], "H\ufffd!", [0, 1, 1, 1, 2]),
        ([F0, X9F, XA7, X8A], "H\ufffd🧊", [0, 1, 1, 2, 2, 2, 2]),
        ([XA7], "H\ufffd", [0, 1, 1, 1]),
        ([], "H\ufffd", [0, 1, 1]),
    ],
)
def test_a_prompt_that_ends_inside_a_character(ids, text, offsets, size):
    with over(*ids, size=size) as http:
        prompt = [H, F0, X9F]
        said, logprobs, _ = both_ways(http, prompt=prompt, echo=True, logprobs=0, max_tokens=max(1, len(ids)))
        if ids:
            assert (said, logprobs["text_offset"]) == (text, offsets)
        scored, logprobs, _ = both_ways(http, prompt=prompt, echo=True, logprobs=0, max_tokens=0)
        assert (scored, logprobs["text_offset"]) == ("H\ufffd", [0, 1, 1])
        assert both_ways(http, prompt=prompt, echo=True, max_tokens=0)[0] == "H\ufffd"


def test_the_text_is_the_one_that_was_sent_and_bos_has_none():
    tokenizer = byte_level(bos=True)
    with over(A, tokenizer=tokenizer) as http:
        text, logprobs, _ = both_ways(http, prompt="Hi", echo=True, logprobs=0)
        assert text == "Hia"
        assert logprobs["tokens"] == ["<bos>", "H", "i", "a", "<|im_end|>"]
        assert logprobs["text_offset"] == [0, 0, 1, 2, 3]
        assert http.fake.prompts()[0][0] == BOS


def test_a_decoder_that_takes_a_space_off_the_front():
    tokenizer = sentence_piece("▁hello", "▁you")
    ids = [tokenizer._backend.token_to_id(piece) for piece in ("▁hello", "▁you")]
    with InProcess(saying(ids[1]), tokenizer=tokenizer) as http:
        text, logprobs, _ = both_ways(http, prompt=ids, echo=True, logprobs=0)
        assert (text, logprobs["text_offset"]) == ("hello you you", [0, 5, 9])


def test_a_long_prompt_is_read_beside_the_loop():
    with InProcess(model(TOKENIZER, [A]), tokenizer=TOKENIZER, context_length=2000) as http:
        text, logprobs, _ = both_ways(http, prompt=[A, B] * 400, echo=True, logprobs=0, max_tokens=1)
        assert text == "ab" * 400 + "a"
        assert logprobs["text_offset"] == list(range(801))


def test_only_the_prompts_are_asked_for_by_echo():
    with over(A) as http:
        http.complete(prompt="x", echo=True, logprobs=3)
        http.complete(prompt="x", echo=True, logprobs=1, prompt_logprobs=2)
        http.complete(prompt="x", echo=True)
        assert [(new.params.logprobs, new.params.prompt_logprobs) for new in http.fake.of(NewRequest)] == [
            (3, 3), (1, 2), (None, None),
        ]  # fmt: skip
        answer = http.complete(prompt="xz", echo=True, logprobs=0, prompt_logprobs=2).json()["choices"][0]
        assert [len(top or ()) for top in answer["logprobs"]["top_logprobs"]] == [0, 1, 1, 1]
        assert len(answer["prompt_logprobs"][1]) >= 2


@pytest.mark.parametrize("value", [1, "true", []])
def test_echo_is_true_or_false(value):
    with over(A) as http:
        assert error_of(http.complete(prompt="x", echo=value))["param"] == "echo"


# --- chats ------------------------------------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So: "}]


def prompt_of(http):
    return TOKENIZER._backend.decode(http.fake.prompts()[-1], skip_special_tokens=False)


def test_an_answer_that_goes_on_with_the_last_message():
    with over(A, B) as http:
        answer = http.chat(messages=CHAT, continue_final_message=True).json()
        assert prompt_of(http).endswith("<|im_start|>assistant\nSo: ")
        assert answer["choices"][0]["message"]["content"] == "ab"
        answer = http.chat(messages=CHAT, continue_final_message=True, echo=True, logprobs=True).json()
        assert answer["choices"][0]["message"]["content"] == "So: ab"
        assert [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]] == ["a", "b", "<|im_end|>"]
        *chunks, _ = events(http.chat(messages=CHAT, continue_final_message=True, echo=True, stream=True, n=2))
        for index in (0, 1):
            own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            assert [part["delta"].get("content") for part in own] == ["", "So: a", "b", None]


def test_a_template_that_strips_messages_keeps_the_space_at_the_end():
    template = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    tokenizer = byte_level(template=template)
    with InProcess(saying(A), tokenizer=tokenizer) as http:
        http.chat(messages=CHAT, continue_final_message=True)
        assert tokenizer.decode(http.fake.prompts()[-1]) == "[hi][So: "


def test_a_template_that_hides_the_last_message():
    with InProcess(saying(A), tokenizer=byte_level(template="{{ messages[0].content }}")) as http:
        error = error_of(http.chat(messages=CHAT, continue_final_message=True))
        assert (error["param"], "does not show" in error["message"]) == ("continue_final_message", True)
        assert error_of(http.chat(messages=[], continue_final_message=True, echo=True))["code"] == "empty_prompt"


def test_whether_the_template_opens_an_answer():
    with over(A) as http:
        http.chat(add_generation_prompt=False)
        assert prompt_of(http).endswith("hi<|im_end|>\n")
        http.chat(add_generation_prompt=True, chat_template_kwargs={"add_generation_prompt": False})
        assert prompt_of(http).endswith("<|im_start|>assistant\n")
        http.chat(messages=CHAT, add_generation_prompt=False, continue_final_message=True)
        assert prompt_of(http).endswith("So: ")
        pinned = http.post("/cache/pin", {"name": "n", "messages": CHAT, "continue_final_message": True}).json()
        assert pinned["tokens"] == len(http.fake.prompts()[-1])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"echo": True}, "echo"), ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)  # fmt: skip
def test_what_is_refused_of_chats(body, field):
    with over(A) as http:
        assert error_of(http.chat(messages=CHAT, **body))["param"] == field
        assert not http.fake.received
