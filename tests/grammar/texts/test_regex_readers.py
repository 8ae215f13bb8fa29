"""The canonical text means the same to Python's `re`, our automata, xgrammar, llguidance and outlines_core."""

import re

import expressions
import pytest
import readers
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.grammar.regex import literal, matches, parse, text
from rtk.grammar.regex.nodes import chars


@settings(deadline=None, max_examples=60)
@given(expressions.nodes(), st.randoms(use_true_random=False))
def test_python_and_our_automata_agree(node, random):
    pattern = re.compile(text(node))
    found = expressions.texts(node, random)
    assert [bool(pattern.fullmatch(one)) for one in found] == [matches(node, one) for one in found]
    assert all(matches(node, one) for one in found[:4])
    again = parse(text(node))
    assert [matches(again, one) for one in found] == [matches(node, one) for one in found]


@settings(deadline=None, max_examples=40)
@given(expressions.nodes(), st.randoms(use_true_random=False))
def test_the_libraries_agree(node, random):
    pattern = re.compile(text(node))
    found = expressions.texts(node, random)
    expected = [bool(pattern.fullmatch(one)) for one in found]
    for name, accepts in readers.regex_readers(pattern.pattern).items():
        assert [accepts(one) for one in found] == expected, name


@pytest.mark.parametrize("code", [0, 1, 9, 10, 13, 31, 34, 38, 45, 47, 92, 93, 94, 127, 128, 0xE9, 0x2028, 0x1F600])
def test_characters_beside_each_other_stay_apart(code):
    """What is special, a control character, or followed by what could be one more digit."""
    for other in (1, 38, 45, 48, 57, 91, 93, 94, 97, 102, 126):
        pair = chr(code) + chr(other)
        both = readers.regex_readers(text(chars([(code, code), (other, other)])))
        row = readers.regex_readers(text(literal(pair)))
        assert [both[name](one) for name in both for one in (*pair, "g", chr(0x10 + other))] == [
            True,
            True,
            False,
            False,
        ] * 3
        assert [row[name](one) for name in row for one in (pair, pair[::-1] if code != other else "g")] == [
            True,
            False,
        ] * 3


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"[\u4e00-\u9fff]{2}", ["漢字"], ["漢", "漢字漢", "ab"]),
        (r"[\U0001F600-\U0001F64F]+", ["😀", "🙏😀"], ["", "🙐", "a"]),
        (r"^\d{2}-\w+\s?$", ["42-ab_", "42-a\u3000"], ["4-x", "42-", "٤٢-a"]),
        (r"a.b", ["a-b", "a漢b"], ["a\nb", "a\rb", "a\u2028b", "ab"]),
        (r"(?<year>\d{4})|[^a-z]+?", ["2024", "AB\n"], ["202a", ""]),
        (r"(?:|a)b|c??", ["b", "ab", "", "c"], ["a", "cc"]),
    ],
)
def test_what_clients_write(pattern, good, bad):
    for name, accepts in readers.regex_readers(text(parse(pattern))).items():
        assert [one for one in (*good, *bad) if accepts(one)] == good, name
