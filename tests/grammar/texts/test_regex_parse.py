"""What a client's regular expression means, and where it is refused."""

import itertools
import re

import pytest

from rtk.errors import RequestError
from rtk.grammar.regex import RegexError, anchored, parse, text

LINE = r"[\u0000-\u0009\u000B\u000C\u000E-\u2027\u202A-\uD7FF\uE000-\U0010FFFF]"
ANY = r"[\u0000-\uD7FF\uE000-\U0010FFFF]"
SPACE = r"[\u0009-\u000D \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF]"


@pytest.mark.parametrize(
    ("pattern", "canonical"),
    [
        ("abc", "abc"),
        ("", "(?:)"),
        (r"\d{2}-\w+\s?", f"[0-9]{{2}}-[0-9A-Za-z_]+{SPACE}?"),
        (r"https:\/\/[a-z]+\.org\/", r"https://[a-z]+\.org/"),
        (".", LINE),
        (r"[\s\S]", ANY),
        (r"[^\S ]x", r"[\u0009-\u000D\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF]x"),
        ("[\u4e00-\u9fff]{2}", r"[\u4E00-\u9FFF]{2}"),
        (r"[\U0001F600-\U0001F64F]+", r"[\U0001F600-\U0001F64F]+"),
        (r"\u{1F600}\ud83d\ude00\x41\u00e9\0\cJ\t\v\f", r"\U0001F600\U0001F600A\u00E9\u0000\u000A\u0009\u000B\u000C"),
        (r"\.\^\$\*\+\?\(\)\[\]\{\}\|\\\/\-\<\ ", r"\.\^\$\*\+\?\(\)\[\]\{\}\|\\/-< "),
        (r"[\b\]\\\-\^&~|]", r"[\u0008\u0026\-\\-\^\u007C\u007E]"),
        ("[-a]|[b-]|]|}", r"[ab\-\]}]"),
        ("[$-.]", r"[$-.]"),
        ("a|b|cd|a", "[ab]|cd"),
        ("a|", "a?"),
        ("|ab", "(?:ab)?"),
        ("(?:a|b)(c)(?<n>d)(?P<m>e)", "[ab]cde"),
        ("(?:a*)+|(?:b+)?|(?:c?){3}|(?:d{2}){3}|(?:e{2}){2,3}", "a*|b*|c{0,3}|d{6}|(?:e{2}){2,3}"),
        ("a??b*?c+?d{2}?e{2,}?f{2,3}?", "a?b*c+d{2}e{2,}f{2,3}"),
        ("aa*b{2}bc?c?", "a+b{3}c{0,2}"),
        ("a{0}b{1}(?:){5}", "b"),
        ("^ab$", "ab"),
        (r"\Aab\Z|^cd\z|^", "(?:ab|cd)?"),
        ("(^a|b)(c|$)", "bc|ac|[ab]"),
        ("^$", "(?:)"),
        ("a?^b", "b"),
    ],
)
def test_a_whole_match_is_written_out(pattern, canonical):
    assert text(parse(pattern)) == canonical
    assert text(parse(canonical)) == canonical


@pytest.mark.parametrize(
    ("pattern", "canonical"),
    [
        ("^a|b$", f"a{ANY}*|{ANY}*b"),
        ("[0-9]{3}", f"{ANY}*[0-9]{{3}}{ANY}*"),
        ("^x_", f"x_{ANY}*"),
        ("z$", f"{ANY}*z"),
        ("^(?:a|b)$", "[ab]"),
        ("^(?:a|b$)", f"a{ANY}*|b"),
        ("(^|,)a(,|$)", f"{ANY}*,a,{ANY}*|a,{ANY}*|{ANY}*,a|a"),
        ("a*", f"{ANY}*"),
        ("", f"{ANY}*"),
        ("^", f"{ANY}*"),
        ("(?:^a)?b$", f"{ANY}*b|ab"),
    ],
)
def test_a_search_may_have_text_around_it(pattern, canonical):
    assert text(parse(pattern, "search")) == canonical
    assert anchored(parse(pattern, "search")) == f"^(?:{canonical})$"


@pytest.mark.parametrize(
    ("pattern", "canonical"),
    [
        ("^(?=.*[0-9])[a-z0-9]+$", "[a-z]*[0-9][0-9a-z]*"),
        ("^(?!.*--)[a-z-]+$", "-|(?:[a-z]|-[a-z])+-?"),
        ("^(?=.{2,9}$)[a-z]+@[a-z]*$", None),
        ("^(?=a|b)(?!.*c)", None),
        (r"^(?!\s)(?!.*\s$).+$", None),
        (r"^(?=.*[A-Z])(?=.*\d).{3,5}$", None),
    ],
)
def test_look_aheads_from_the_beginning(pattern, canonical):
    found = text(parse(pattern, "search"))
    assert canonical is None or found == canonical
    words = ["".join(word) for length in range(5) for word in itertools.product("ab-A1@", repeat=length)]
    whole = re.compile(found)
    assert [word for word in words if whole.fullmatch(word)] == [word for word in words if re.search(pattern, word)]


SEARCHED = [
    "^a|b$",
    "(^|,)a(,|$)",
    "(?:^a)?b$",
    "^a?$|b",
    "(a|^)(b|$)",
    "(?:^|a)b?(?:a$|b)",
    "^(?:^a|$)",
    "a?^b",
    "a$b?",
    "(^a?|b)$",
]


@pytest.mark.parametrize("pattern", SEARCHED)
def test_searches_agree_with_python(pattern):
    whole = re.compile(text(parse(pattern, "search")))
    words = ["".join(word) for length in range(5) for word in itertools.product("ab,", repeat=length)]
    assert [bool(whole.fullmatch(word)) for word in words] == [bool(re.search(pattern, word)) for word in words]


REFUSED = [
    ("([a-z", 2, "an unbalanced '['"),
    ("^*[0-9]$", 2, "nothing to repeat"),
    ("a{3,2}", 2, "a bad repetition '{3,2}': 3 is more than 2"),
    ("a(?=.*[0-9])[a-z]+", 2, "look-ahead '(?=' is not supported"),
    ("(?:(?=a)b|c)", 4, "look-ahead '(?=' is not supported"),
    ("^(?=(?!a))b", 5, "look-ahead '(?!' is not supported"),
    ("a|^(?=b)", 4, "a look-ahead beside other alternatives is not supported"),
    ("^(?=a)*b", 2, "nothing to repeat: a look-ahead matches no text"),
    ("^(?=a", 2, "unbalanced '('"),
    ("^(?=ab)b", 1, "nothing can match: its look-aheads rule out all texts"),
    ("^(?=[ab]*a[ab]{12}$)[ab]*b", 2, "a look-ahead that is too large to be worked out exactly"),
    ("a(?!b)", 2, "look-ahead '(?!' is not supported"),
    ("(?<=a)b", 1, "look-behind '(?<=' is not supported"),
    ("(?<!a)b", 1, "look-behind '(?<!' is not supported"),
    (r"(a)\1", 4, r"a back-reference '\1' is not supported"),
    (r"(?<n>a)\k<n>", 8, r"a back-reference '\k' is not supported"),
    ("(?P<n>a)(?P=n)", 9, "a back-reference '(?P=' is not supported"),
    (r"a\bc", 2, r"a word boundary '\b' is not supported"),
    (r"\Ba", 1, r"a word boundary '\B' is not supported"),
    ("(?i)a", 1, "an inline flag '(?i)' is not supported"),
    ("(?s-m:a)", 1, "an inline flag '(?s-m:' is not supported"),
    (r"\p{L}+", 1, r"a Unicode property '\p' is not supported"),
    (r"[a\P{L}]", 3, r"a Unicode property '\P' is not supported"),
    ("(?>a)b", 1, "an atomic group '(?>' is not supported"),
    ("(a)(?(1)b|c)", 4, "a condition '(?(' is not supported"),
    ("(?#x)a", 1, "a comment '(?#' is not supported"),
    ("(?~a)", 1, "an unknown group '(?'"),
    ("(?<a>x)(?<a>y)", 8, "a second group of the name 'a'"),
    ("a*+", 2, "a possessive quantifier '*+' is not supported"),
    ("a{1,2}+", 2, "a possessive quantifier '{1,2}+' is not supported"),
    ("a**", 3, "nothing to repeat for '*'"),
    ("a{2}{3}", 5, "nothing to repeat for '{'"),
    ("a|*", 3, "nothing to repeat for '*'"),
    ("(?:+)", 4, "nothing to repeat for '+'"),
    ("a{", 2, r"a '{' that begins no quantifier; write '\{' for the character"),
    ("a{,3}", 2, r"a '{' that begins no quantifier; write '\{' for the character"),
    ("{2}", 1, r"a '{' with nothing to repeat; write '\{' for the character"),
    ("(?:a", 1, "unbalanced '('"),
    ("a)", 2, "unbalanced ')'"),
    ("[]", 1, r"an empty class, or one that begins with ']'; write '\]' for the character"),
    ("[^]", 1, r"an empty class, or one that begins with ']'; write '\]' for the character"),
    (r"[^\s\S]", 1, "a class without a character"),
    ("[z-a]", 2, "a bad range 'z-a': its ends are the wrong way round"),
    (r"[a-\d]", 2, r"a bad range 'a-\\d': a set is no end of one"),
    ("[[:alpha:]]", 2, r"a named class of POSIX is not supported; write '\[' for the character"),
    ("[a-z&&b]", 5, "an intersection '&&' of classes is not supported; write '&' for the character"),
    (r"\q", 1, r"an unknown escape 'q' after '\'"),
    (r"\01", 1, r"an octal escape; write '\xHH'"),
    (r"\x4", 1, r"an escape '\x' without its hexadecimal digits"),
    (r"\u{110000}", 1, "an escape above U+10FFFF"),
    (r"\ud83d", 1, "half of a surrogate pair"),
    (r"[\ude00]", 2, "half of a surrogate pair"),
    ("a\ud800", 2, "half of a surrogate pair"),
    ("a\\", 2, r"a '\' at the end"),
    ("(?:^a)*", 1, "a repeated anchor"),
    ("a$b", 1, "nothing can match: its anchors stand where no text begins or ends"),
]


@pytest.mark.parametrize(("pattern", "position", "problem"), REFUSED)
def test_refused_with_the_place(pattern, position, problem):
    with pytest.raises(RegexError) as refused:
        parse(pattern)
    error = refused.value
    assert (error.position + 1, error.problem) == (position, problem)
    assert isinstance(error, RequestError) and error.status == 400
    assert str(error).startswith("the regex ") and f"is refused at character {position}: " in str(error)
    assert "\n" not in str(error)


def test_other_anchors_are_no_anchors_of_a_schema():
    with pytest.raises(RegexError, match=r"'\\A' is no anchor of ECMA-262; write '\^'"):
        parse(r"\Aa", "search")


HOSTILE = {
    "long": "a" * 100_000,
    "deep": "(" * 100_000,
    "deep enough to be read": "(" * 4000 + "a" + ")" * 4000,
    "huge count": "a{999999}",
    "count beyond": "a{99999999999999999999}",
    "counts of counts": "(?:(?:(?:a{99}){99}){99}){99}",
    "counts of nothing": "(?:(?:(?:a?){99}){99}){99}",
    "many counts": "a{9999}" * 1000,
    "anchors": "(^|a)" * 1600,
    "anchors in groups": "(" * 40 + "(^|a)(b|$)" * 19 + ")(^|c)" * 40,
    "brackets": "[" * 8000,
    "bars": "|" * 8192,
    "classes": "".join(f"[{chr(i)}-{chr(i + 300)}]" for i in range(0x100, 0x700)),
    "stars": "*" * 8000,
    "line ends": "\n" * 9000,
    "dots": "." * 5000,
    "deep and read": "(?:a" * 60 + "x" + "b|d)*" * 60,
    "looks": "^" + "(?=.*a.*b.*c)" * 500 + ".*",
    "looks that grow": "^" + "".join(f"(?=.{{0,{n}}}a)" for n in range(3, 90)) + ".*",
}


@pytest.mark.parametrize("use", ["match", "search"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ones_end_soon(name, use):
    try:
        found = text(parse(HOSTILE[name], use))
        assert len(found) <= 20_000 and text(parse(found)) == found
    except RequestError as error:
        assert len(str(error)) < 300
