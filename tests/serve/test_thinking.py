"""Which text is thought and which is the answer, however it is cut; and who thinks."""

import pytest
from tiny_tokenizer import byte_level

from rtk.cache.key import pack
from rtk.serve.protocol import Chat, GenerateRequest
from rtk.serve.thinking import Splitter, Thinking, thinking
from rtk.serve.tokenizer import Tokenizer

SWITCHED = "{% if enable_thinking %}x{% endif %}"
PLAIN, SWITCH = byte_level(), byte_level(template=SWITCHED)
MODEL = Thinking(PLAIN, "</think>")

TEXTS = {
    "hm </th {x}</think>\n\n{}": ("hm </th {x}", "{}"),
    "<think>hm</think>{}": ("hm", "{}"),
    "\n <think>\nhm</think>\n\n\n": ("\nhm", ""),
    "<thin king": ("<thin king", ""),
    "<thi": ("<thi", ""),
    "</think>a</think>b": ("", "a</think>b"),
    "hm</thin": ("hm</thin", ""),
    "": ("", ""),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_however_it_is_cut(text, size):
    splitter = Splitter(MODEL)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    said = [*map(splitter.push, pieces), splitter.push("", last=True)]
    assert tuple(map("".join, zip(*said, strict=True))) == TEXTS[text]


@pytest.mark.parametrize("text", [*TEXTS, "<think>hm</think>{}", "hm</think>{}", " <thin king"])
@pytest.mark.parametrize("sure", [True, False])
def test_what_is_no_answer_is_there_as_it_was_written(text, sure):
    for pieces in ([text], text, [text[:9], text[9:]]):
        splitter, written = Splitter(MODEL, sure=sure), ["", ""]
        for piece in (*pieces, None):
            _, answer = splitter.push(piece or "", last=piece is None)
            assert not (splitter.aside and written[1]), "what is aside comes before"
            written[0] += splitter.aside
            written[1] += answer
        assert "".join(written) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>hm</think>{}", ("hm", "{}")),
        ("\n<think>hm", ("hm", "")),
        ("hm</think>{}", ("", "hm</think>{}")),
        (" <thin king", ("", " <thin king")),
        ("<thi", ("", "<thi")),
        ("", ("", "")),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_model_that_begins_by_itself_thinks_where_it_says_so(text, said, size):
    splitter = Splitter(MODEL, sure=False)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    parts = [*map(splitter.push, pieces), splitter.push("", last=True)]
    assert tuple(map("".join, zip(*parts, strict=True))) == said


def test_nothing_is_held_back_that_is_decided():
    splitter = Splitter(MODEL)
    assert [splitter.push(piece) for piece in ("h", "m<", "a", "</think>", "b")] == [
        ("h", ""),
        ("m", ""),
        ("<a", ""),
        ("", ""),
        ("", "b"),
    ]


def test_a_model_that_does_not_think_only_answers():
    assert Splitter(None).push("<think>\n</think>") == ("", "<think>\n</think>")


@pytest.mark.parametrize(
    ("text", "tokenizer", "options", "thinks"),
    [
        ("a<think>\n", PLAIN, None, True),
        ("a<think>\n\n</think>\n\n", SWITCH, {"enable_thinking": True}, False),
        ("a", PLAIN, None, False),
        ("a", PLAIN, {}, False),
        ("a", SWITCH, None, False),  # no chat
        ("a", SWITCH, {}, True),
        ("a", SWITCH, {"enable_thinking": False}, False),
        ("a", PLAIN, {"enable_thinking": True}, True),
        ("<think>" + "a" * 100, PLAIN, None, False),
    ],
)
def test_who_thinks(text, tokenizer, options, thinks):
    prompt = text if options is None else Chat([], options)
    tokens = pack(tokenizer.encode(text, add_special_tokens=False))
    assert Thinking(tokenizer, "</think>").is_open(GenerateRequest(prompt=prompt), tokens) is thinks


def test_the_setting():
    assert thinking(PLAIN, "auto") is None
    assert thinking(PLAIN, "none") is None
    ends = {"[/T]": "[T]", "qwen3": "<think>", "</a/>": "<a/>", "---": ""}
    assert {end: thinking(PLAIN, end).begin for end in ends} == ends
    added = byte_level()
    added._backend.add_tokens(["</think>"])
    known = Tokenizer(added._backend)
    assert thinking(known, "auto") == Thinking(known, "</think>")
    special = byte_level()
    special._backend.add_special_tokens(["[/THINK]", "[THINK]"])
    known = Tokenizer(special._backend)
    assert thinking(known, "auto") == Thinking(known, "[/THINK]")
