"""Choices, patterns, grammars and tags: what can be said, by each backend, and what is refused."""

import importlib
import importlib.metadata
import json
import re

import numpy as np
import pytest
from test_table import BACKENDS, backend, can_say

from rtk.plugin import Options
from rtk.plugin.grammar import Reason, Spec, Vocabulary, packed, unpacked
from rtk.plugin.testing.grammar import allowed
from rtk.plugin.testing.grammar_examples import END, VOCABULARY

GRAMMARS = ["xgrammar", "llguidance"]
PATTERNS = [
    ("(?:yes|no|yesterday|)", ["", "yes", "no", "yesterday", "y", "yesno"]),
    ("[\\u4E00-\\u9FFF]{2}", ["漢字", "漢", "ab", "漢a"]),
    ("[\\U0001F600-\\U0001F64F]+", ["😀", "😀🙏", "", "🧊"]),
    ("(?:a|ab)(?:c|bcd)*", ["a", "ab", "abc", "abcd", "abbcd", "acbcdc", "b"]),
    ("[1-9][0-9]{2,39}(?:\\.0)?", ["100", "99", "1" * 40, "1" * 41, "123.0", "123."]),
    ("[^a-c\\x0A]*x?", ["", "x", "dx", "a", "\n", "é😀"]),
    ("\\\\\\[\\*\\x00", ["\\[*\x00", "\\[*"]),
    ("(?:[a-z]+-?){1,3}", ["a", "a-", "ab-cd-ef", "a-b-c-d", "-"]),
]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("pattern", "texts"), PATTERNS)
def test_patterns_mean_what_python_means(name, pattern, texts):
    assert backend(name).judge(Spec("regex", pattern)).verdict == "exact"
    matcher = backend(name).compile(Spec("regex", pattern), VOCABULARY)
    for text in texts:
        assert can_say(matcher, text) is (re.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)b", r"(?i)a", r"a**", r"a*?", r"\d", r"\b", r"^a", r"a$", r".", r"[]", r"a{2", r"(a", r"a)", r"\u12"],
)
def test_other_patterns_are_refused(name, pattern):
    (reason,) = backend(name).judge(Spec("regex", pattern)).reasons
    assert re.search(r"^regex: .* at character \d+$", reason.problem), reason


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize(
    ("grammar", "said", "not_said"),
    [
        ('root ::= root "-" d | d\nd ::= [0-9]', ["7", "1-2-3"], ["-1", "1-", ""]),
        ('root ::= (item ";"?)*\nitem ::= "a"?', ["", "a", "a;a", ";;", "aa"], ["b"]),
        ('root ::= "(" root ")" | "x" | x\nx ::= "xy"', ["x", "xy", "((x))", "(xy)"], ["(x", "()", "x)"]),
        ('root ::= "ab" "c" | "a" "bd" | "é"{2,3}', ["abc", "abd", "éé", "ééé"], ["ab", "é", "éééé"]),
        ('root ::= a b\na ::= "x"{0,2}\nb ::= "x" | a "y"', ["x", "xxx", "y", "xxxxy"], ["", "xxxx", "xxxxxy"]),
        ('root ::= "\\x41\\u00e9\\n\\"" # a remark\n', ['Aé\n"'], ["A"]),
    ],
)
def test_grammars(name, grammar, said, not_said):
    assert backend(name).judge(Spec("ebnf", grammar)).verdict == "exact"
    matcher = backend(name).compile(Spec("ebnf", grammar), VOCABULARY)
    assert [text for text in [*said, *not_said] if can_say(matcher, text)] == said


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("grammar", ["root ::= root", 'root ::= x\nx ::= x "a"', "root ::= a\na ::= b\nb ::= a"])
def test_grammars_that_never_end_are_refused(name, grammar):
    (reason,) = backend(name).judge(Spec("ebnf", grammar)).reasons
    assert reason.problem == "nothing that it allows ever comes to an end"


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= root | "a"',
        "root ::= root{0,2}",
        'root ::= a a\na ::= ("x"? root b)? | "y"\nb ::= "z"*',
        'root ::= "(" a ")"\na ::= b+ | "x"\nb ::= a? "y"?',
    ],
)
def test_one_text_with_any_number_of_readings_is_not_for_xgrammar(grammar):
    (reason,) = backend("xgrammar").judge(Spec("ebnf", grammar)).reasons
    assert reason.problem == "a rule that may be nothing but itself"
    assert backend("llguidance").judge(Spec("ebnf", grammar)).verdict == "exact"
    for other in ('root ::= root root | "a"', 'root ::= "a" root{0,2}', 'root ::= a{2} "b"\na ::= "x"? root?'):
        assert backend("xgrammar").judge(Spec("ebnf", other)).verdict == "exact"


@pytest.mark.parametrize("name", GRAMMARS)
def test_tags(name):
    boolean, integer = {"type": "boolean"}, {"type": "integer"}
    tags = [
        {"begin": "<f=", "schema": boolean, "end": ">"},
        {"begin": "<fg", "schema": integer, "end": "</f>"},
        {"begin": "[[a", "schema": {"type": "array", "items": boolean}, "end": ""},
    ]
    spec = Spec("structural_tag", json.dumps({"triggers": ["<f", "[["], "tags": tags}))
    matcher = backend(name).compile(spec, VOCABULARY)
    said = ["", "no < tag", "<", "<<", "[", "a<f=true>b<fg12</f>", "<f=true><f=false>", "[[a[true][[a[]x", "é[[a[]<"]
    not_said = ["<f", "x<f", "<<f", "<f=1>", "<fg</f>", "<fg12</f", "[[b", "[[", "a[[a[tru]", "<f=true"]
    assert [text for text in [*said, *not_said] if can_say(matcher, text)] == said
    tags[1]["end"] = "0"
    spec = Spec("structural_tag", json.dumps({"triggers": ["<f", "[["], "tags": tags}))
    (reason,) = backend(name).judge(spec).reasons
    assert reason == ("an end that a number before it could go on with", "#/tags/1/end")


CALLS = [{"begin": f"<c>{name}:", "schema": {"type": "boolean"}, "end": "</c>"} for name in "ab"]
LISTED = [{"begin": f"{name}:", "schema": {"type": "boolean"}, "end": ""} for name in "ab"]
LINES = {"begin": "", "between": "\n", "end": ""}
MARKED = {"begin": "[T][", "between": ", ", "end": "]"}
ARRAY = {"begin": "[", "between": ", ", "end": "]"}


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize(
    ("spec", "said", "not_said"),
    [
        ({"tags": CALLS}, ["<c>a:true</c>"], ["", "x", "<c>a:true</c><c>a:true</c>"]),
        (
            {"tags": CALLS, "run": LINES},
            ["<c>a:true</c>", "<c>a:true</c>\n<c>b:false</c>"],
            ["", "x", "<c>a:true</c>\n", "<c>a:true</c><c>b:true</c>"],
        ),
        ({"tags": CALLS, "run": LINES, "once": True}, ["<c>a:true</c>"], ["", "<c>a:true</c>\n<c>b:false</c>"]),
        (
            {"tags": CALLS, "triggers": ["<c>"], "once": True},
            ["", "hi", "<c>a:true</c>", "x<c>a:true</c> <b ok <"],
            ["<c>a:true</c>x<c>b:false</c>", "<c>"],
        ),
        (
            {"tags": LISTED, "run": MARKED, "triggers": ["[T]"]},
            ["", "hi[T", "[T][a:true, b:false]ok [T][a:true]"],
            ["[T][]", "[T]", "[T][a:true"],
        ),
        (
            {"tags": LISTED, "run": MARKED, "triggers": ["[T]"], "once": True},
            ["", "hi[T", "x[T][a:true]y"],
            ["[T][a:true, b:false]", "x[T][a:true]y[T][a:true]", "[T]"],
        ),
        (
            {"tags": LISTED, "run": ARRAY, "openers": ["{", "[", "<|p|>"]},
            ["", "hi[T", " hi {", " <|p", "<|pp|>", "<{", "[a:true, b:true]", "  "],
            ["[", "{", " {", "  [a:true]", "\n<|p|>x", "[a:true] x", "[x"],
        ),
        ({"tags": LISTED, "run": ARRAY, "openers": ["[", "[x"], "once": True}, ["[a:true]"], ["[a:true, b:true]", "["]),
        (
            {"tags": LISTED, "run": LINES | {"between": "; "}, "openers": ["a:", "b:"]},
            ["", "x", "a", "a:true; b:true"],
            ["a:true; x", "b:x"],
        ),
        (
            {"tags": CALLS, "run": LINES, "otherwise": {"type": "array", "items": {"type": "null"}}},
            ["[null]", "<c>a:true</c>\n<c>b:false</c>"],
            ["", "[1]", "[null]<c>a:true</c>", "<c>a:true</c>[null]"],
        ),
    ],
)
def test_tags_that_are_the_answer_or_several(name, spec, said, not_said):
    spec = Spec("structural_tag", json.dumps(spec))
    assert backend(name).judge(spec).verdict == "exact"
    matcher = backend(name).compile(spec, VOCABULARY)
    assert [text for text in [*said, *not_said] if can_say(matcher, text)] == said


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"more": 1}, "no object of tags, and what says how they stand in a text"),
        ({"triggers": ["<c>"], "openers": ["<c>"]}, "several of triggers, openers and otherwise"),
        ({"openers": []}, "openers that is no array of texts, of one at least, and none empty"),
        ({"openers": ["x"]}, "tag 0 begins with no opener"),
        ({"once": 1}, "once that is neither true nor false"),
        ({"run": {"begin": ""}}, "run that is no object of the texts begin, between and end"),
        ({"run": MARKED, "triggers": ["<c>"]}, "no tag begins with the trigger '<c>'"),
        ({"run": MARKED, "triggers": ["[T][<c>"]}, "the trigger '[T][<c>' is not that of the run"),
    ],
)
def test_tags_that_are_malformed(changes, problem):
    spec = Spec("structural_tag", json.dumps({"tags": CALLS} | changes))
    assert {backend(name).judge(spec).reasons for name in GRAMMARS} == {(Reason(f"structural_tag: {problem}"),)}


@pytest.mark.parametrize("name", BACKENDS)
def test_all_ends_end_and_other_special_tokens_do_not(name):
    tokens = [*(bytes([i]) for i in range(256)), b"", b"", b"</s>", b""]
    vocabulary = Vocabulary(tokens, frozenset({257, 258}))
    matcher = backend(name).compile(Spec("regex", "[ -~]*"), vocabulary)
    mask = np.full((1, vocabulary.words), -1, dtype=np.int32)
    backend(name).fill_batch([matcher], mask, [0])
    bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [*range(32, 127), 257, 258]
    for end in (257, 258):
        fork = matcher.fork()
        assert fork.accept(end)
        assert fork.forced() == b""
        assert not any(fork.accept(token) for token in (257, 258, 97))
        fork.rollback(1)
        assert fork.accept(97)
    assert not any(matcher.accept(token) for token in (256, 259, 260, -1, 10**9))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_copy_that_was_sent_has_its_past(name):
    matcher = backend(name).compile(Spec("regex", "ab*"), VOCABULARY)
    assert all(map(matcher.accept, [*b"abb", END]))
    copy = unpacked(packed(matcher), VOCABULARY)
    assert not copy.accept(END)
    copy.rollback(3)
    assert allowed(backend(name), copy) == [ord("b"), END]


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_forced_is_told(name):
    matcher = backend(name).compile(Spec("regex", "(?:yes|yesterday)é"), VOCABULARY)
    assert matcher.forced() == b"yes"


@pytest.mark.parametrize("name", BACKENDS)
def test_the_table_is_of_the_installed_version(name):
    module = importlib.import_module(BACKENDS[name].__module__)
    assert importlib.metadata.version(BACKENDS[name].library) == module.VERSION


@pytest.mark.parametrize("name", BACKENDS)
def test_a_library_that_is_missing_is_said_to_be(name, monkeypatch):
    monkeypatch.setattr(BACKENDS[name], "library", "no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library is not installed; run: pip install"):
        BACKENDS[name](Options())
