"""How JSON writes the texts that match an expression."""

import json
import re

import expressions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.grammar.regex import json_string, parse, text

SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def spellings(character):
    """All ways in which JSON writes a character, but for mixed cases of digits."""
    units = character.encode("utf-16-be")
    codes = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
    found = ["".join("\\u" + code for code in codes), "".join("\\u" + code.upper() for code in codes)]
    if character in SHORT:
        found.append(SHORT[character])
    if character >= " " and character not in '"\\':
        found.append(character)
    return found


@settings(deadline=None, max_examples=60)
@given(expressions.nodes(leaves=3), st.randoms(use_true_random=False))
def test_every_spelling_or_one(node, random):
    value = re.compile(text(node))
    full, plain = (re.compile(text(json_string(node, spelling))) for spelling in ("full", "plain"))
    for one in expressions.texts(node, random):
        expected = bool(value.fullmatch(one))
        written = '"' + "".join(random.choice(spellings(c)) for c in one) + '"'
        assert json.loads(written) == one
        usual = json.dumps(one, ensure_ascii=False)
        assert bool(full.fullmatch(written)) == bool(full.fullmatch(usual)) == expected
        assert bool(plain.fullmatch(usual)) == expected
        assert bool(plain.fullmatch(written)) == (expected and written == usual)


@pytest.mark.parametrize(
    ("pattern", "spelling", "expected"),
    [
        ("a/b", "plain", '"a/b"'),
        ('["\\\\]', "plain", r'"\\["\\]"'),
        (r"[\x00-\x1f]", "plain", r'"\\(?:[bfnrt]|u(?:000[0-7]|000b|00(?:0[ef]|1[0-9a-f])))"'),
        ("/", "full", r'"(?:/|\\(?:/|u002[Ff]))"'),
        ("\U0001f600", "full", r'"(?:\U0001F600|\\u[Dd]83[Dd]\\u[Dd][Ee]00)"'),
        (r"[\u0100-\u01ff]", "full", r'"(?:[\u0100-\u01FF]|\\u01[0-9A-Fa-f][0-9A-Fa-f])"'),
    ],
)
def test_known_ones(pattern, spelling, expected):
    assert text(json_string(parse(pattern), spelling)) == expected


@pytest.mark.parametrize("code", [0xFFFF, 0x10000, 0x103FF, 0x10400, 0x1F5FF, 0x1F600, 0x10FBFF, 0x10FC00, 0x10FFFF])
@pytest.mark.parametrize("ranges", ["\\U00010000-\\U000103FF", "\\U000103FF-\\U0001F600", "\\uFFFF-\\U0010FC00"])
def test_pairs_at_the_edges(ranges, code):
    node = parse(f"[{ranges}]")
    expected = bool(re.fullmatch(text(node), chr(code)))
    full = re.compile(text(json_string(node, "full")))
    assert [bool(full.fullmatch(f'"{one}"')) for one in spellings(chr(code))] == [expected] * len(spellings(chr(code)))


def test_one_character_is_one_however_it_is_written():
    one = re.compile(text(json_string(parse(r"[\s\S]"), "full")))
    good = ['"😀"', '"\\ud83d\\ude00"', '"\\uD83D\\uDe00"', '"\\n"', '"\\""', '"\\u0000"']
    bad = [
        '"\\ud83d"',
        '"\\ude00"',
        '"\\ude00\\ud83d"',
        '"\\ud83d\\u0041"',
        '""',
        '"ab"',
        '"\n"',
        '"""',
        '"\\x41"',
        "a",
    ]
    assert [word for word in (*good, *bad) if one.fullmatch(word)] == good
    four = re.compile(text(json_string(parse(r"[\s\S]{0,4}"), "full")))
    assert four.fullmatch('"a\\n\\"b"') and not four.fullmatch('"abcde"') and not four.fullmatch('"a\nb"')
