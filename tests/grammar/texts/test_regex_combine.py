"""Several expressions and a range of lengths as one, exactly."""

import re

import expressions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.errors import RequestError
from rtk.grammar.regex import (
    ANYTHING,
    NOTHING,
    TooLargeError,
    combined,
    contains,
    lengths,
    literal,
    matches,
    overlap,
    parse,
    repeat,
    seq,
    text,
)

FEW = [0x61, 0x62, 0x63]
WORDS = [""]
for _ in range(4):
    WORDS += [word + c for word in WORDS if len(word) == len(WORDS[-1]) for c in "abcd"]


def test_the_words_are_all_short_ones():
    assert len(set(WORDS)) == len(WORDS) == sum(4**n for n in range(5))


few = expressions.nodes(FEW, leaves=5)
runs = st.lists(st.tuples(few, st.sampled_from([(0, None), (1, None), (0, 1), (0, 2), (2, 3)])), min_size=2, max_size=3)


@settings(deadline=None, max_examples=50)
@given(runs.map(lambda parts: seq(repeat(node, *times) for node, times in parts)), st.integers(0, 4), st.integers(0, 5))
def test_a_range_of_lengths(node, shortest, longest):
    pattern = re.compile(text(node))
    expected = [word for word in WORDS if shortest <= len(word) <= longest and pattern.fullmatch(word)]
    found = combined([node], shortest=shortest, longest=longest)
    assert expected == ([] if found == NOTHING else [word for word in WORDS if re.fullmatch(text(found), word)])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(few, min_size=1, max_size=3), st.lists(few, max_size=2), st.integers(0, 3), st.none() | st.integers(0, 5)
)
def test_all_of_these_none_of_those(wanted, unwanted, shortest, longest):
    try:
        found = combined(wanted, unwanted=unwanted, shortest=shortest, longest=longest)
    except TooLargeError:
        return
    good, bad = ([re.compile(text(node)) for node in nodes] for nodes in (wanted, unwanted))
    top = 4 if longest is None else longest
    expected = [
        word
        for word in WORDS
        if shortest <= len(word) <= top
        and all(pattern.fullmatch(word) for pattern in good)
        and not any(pattern.fullmatch(word) for pattern in bad)
    ]
    if found == NOTHING:
        assert expected == []
    else:
        pattern = re.compile(text(found))
        assert [word for word in WORDS if pattern.fullmatch(word)] == expected
        assert not overlap(found, literal("e" * 6)) or longest is None


@settings(deadline=None, max_examples=60)
@given(few, few)
def test_overlap_and_containment(a, b):
    first, second = re.compile(text(a)), re.compile(text(b))
    in_both = [word for word in WORDS if first.fullmatch(word) and second.fullmatch(word)]
    assert overlap(a, b) or not in_both
    assert overlap(a, b) == (combined([a, b]) != NOTHING)
    assert not contains(a, b) or all(first.fullmatch(word) for word in WORDS if second.fullmatch(word))
    assert contains(a, b) == (combined([b], unwanted=[a]) == NOTHING)


@settings(deadline=None, max_examples=50)
@given(few)
def test_lengths(node):
    low, high = lengths(node)
    found = [len(word) for word in WORDS if re.fullmatch(text(node), word)]
    assert low > 4 or min(found) == low
    assert high is None or high > 4 or max(found) == high


@pytest.mark.parametrize(
    ("wanted", "unwanted", "shortest", "longest", "expected"),
    [
        (["[a-z]+"], [], 0, 10, "[a-z]{1,10}"),
        (["[a-z][a-z0-9-]*"], [], 3, 63, r"[a-z][0-9a-z\-]{2,62}"),
        (["(?:ab)*"], [], 3, 7, "(?:ab){2,3}"),
        (["[a-z]+@[a-z]+"], [], 5, None, "[a-z]{3,}@[a-z]+|[a-z]@[a-z]{3,}|[a-z]{2}@[a-z]{2,}"),
        (["a+b*"], [], 0, 2, "ab?|aa"),
        (["a?"], [], 0, 0, "(?:)"),
        (["(?:(?:a?){90}){90}", "(?:(?:a{1,2}){60}){60}"], [], 0, 7000, "a{3600,7000}"),
        (["[a-z]{2,9}", "[^x]{3,}", ".*"], [], 0, 5, "[a-wyz]{3,5}"),
        (["[a-z]{2,9}", "[^x]{3,}"], [], 0, 2, None),
        (["[a-z]*", r"[\s\S]*x[\s\S]*"], [], 0, None, "[a-wyz]*x[a-z]*"),
        (["a*", "b*"], [], 0, None, "(?:)"),
        (["a+", "b+"], [], 0, None, None),
        (["[ab]"], ["a"], 0, None, "b"),
        (["[ab]{2}"], ["ab", "ba", "aa", "bb"], 0, None, None),
        (["abc"], [], 4, None, None),
        ([], [], 1, 2, r"[\u0000-\uD7FF\uE000-\U0010FFFF]{1,2}"),
    ],
)
def test_known_ones(wanted, unwanted, shortest, longest, expected):
    found = combined(
        map(parse, wanted), unwanted=[literal(one) for one in unwanted], shortest=shortest, longest=longest
    )
    assert (None if found == NOTHING else text(found)) == expected


def test_all_but_some_texts():
    found = re.compile(text(combined([ANYTHING], unwanted=[literal(""), literal("no"), literal("n")])))
    assert [one for one in ("", "n", "no", "non", "o", "on", "\n", "😀") if found.fullmatch(one)] == [
        "non",
        "o",
        "on",
        "\n",
        "😀",
    ]


HOSTILE = [
    (["[ab]*a[ab]{12}", ".*y.*"], 0, None),
    ([".{0,2000}x.{0,2000}", ".*y.*"], 0, None),
    (["(?:[a-z]{2,3}-?)+"], 0, 40),
    (["(?:a+b+)*(?:b+c+)*(?:c+a+)*"], 20, 2000),
    (["[a-c]*a[a-c]*b[a-c]*c[a-c]*"], 0, 5000),
    (["".join(f"[{chr(i)}-{chr(i + 300)}]" for i in range(0x100, 0x600)), ".*"], 0, None),
    (["(?:a{7})*", "(?:a{11})*", "(?:a{13})*", "(?:a{17})*"], 0, None),
]


def test_what_comes_out_can_be_read_again():
    node = combined([parse("(?:[a-z]+@)?[a-z]+", "search"), parse("^[^x]*$", "search")], longest=60)
    assert text(parse(text(node))) == text(node)
    with pytest.raises(TooLargeError):
        combined([parse("[0-9]{3}", "search")], longest=300)
    assert matches(combined([parse("[0-9]{3}", "search")], longest=200), "x" * 100 + "123" + "y" * 97)


@pytest.mark.parametrize(("wanted", "shortest", "longest"), HOSTILE)
def test_too_much_is_refused(wanted, shortest, longest):
    with pytest.raises(TooLargeError) as refused:
        combined(map(parse, wanted), shortest=shortest, longest=longest)
    assert isinstance(refused.value, RequestError)
    assert str(refused.value) == "regular expressions that are too large together to be worked out exactly"


def test_one_alone_is_never_worked_out():
    node = parse("[ab]*a[ab]{12}")
    assert combined([node, node, ANYTHING]) is node


def test_a_match_takes_no_exponential_time():
    assert matches(parse("[ab]*a[ab]{30}"), "aabb" * 9) and not matches(parse("[ab]*a[ab]{3}"), "abbb" * 9 + "b")
    assert not matches(parse("(?:(?:a|aa|aaa)+)+"), "a" * 500 + "b")
    assert matches(parse("(?:(?:a?){30}a{30})+"), "a" * 300)
    with pytest.raises(TooLargeError):
        matches(parse("(?:a?b?){2000}"), "a" * 4000)
