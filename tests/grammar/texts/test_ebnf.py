"""Grammars: what they mean, where they are refused, and that the libraries read the canonical text alike."""

import pytest
import readers
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.errors import RequestError
from rtk.grammar.ebnf import EbnfError, parse, text
from rtk.grammar.ebnf.nodes import EMPTY, Choice, Ref, Row, Times, choice, row, times
from rtk.grammar.regex.nodes import Chars


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= root "-" d | d\nd ::= [0-9]', ["7", "1-2-3"], ["-1", "1-", ""]),
        ("root ::= [\\u4e00-\\u9fff]+", ["漢", "漢字"], ["", "a"]),
        ('root ::= "\\x41\\u00e9\\n"', ["Aé\n"], ["Aé", "Aé\\n"]),
        ('root ::= (item ";"?)*\nitem ::= "x"?', ["", "x;", "xx;;", "x;;;x"], ["y"]),
        (
            'root ::= [^"\\\\\\u0000-\\u001f]{2,3} | [\\^\\]\\-a]',
            ["ab", "😀漢é", "^", "]", "-"],
            ['"a', "\n\n", "[", "abcd"],
        ),
        ('root ::= "\\"" "\\\\/\\/\\\'\'" "\\U0001F600" "\\u{1f600}" "\\ud83d\\ude00"', ["\"\\//''😀😀😀"], ['"']),
        (
            'root ::= "(" root* ")" x?\nx ::= ("-" | root x{0,1}){1,2}',
            ["()", "(()())", "()-", "()()-"],
            ["", "(", "()("],
        ),
        ('root ::= ("ab" | "a") ("b" | "c")', ["abb", "ab", "ac", "abc"], ["a", "abbb"]),
        ('root ::= a root "x" | "y"\na ::= "q"?', ["y", "yx", "qyx", "qqyxx"], ["qy", "x"]),
        ('root ::= "ab"{2} [+]{2,} ("c" | ""){0,2}', ["abab++", "abab+++cc"], ["abb++", "abab+", "abab++ccc"]),
        ('root ::= true Token ("a"|"b")\nToken ::= start?\nstart ::= "z"\ntrue ::= ""', ["a", "zb"], ["", "zz"]),
        ('root ::= "\\0\\x01" [1\\x01\\0]', ["\0\x011", "\0\x01\0"], ["\0\x01\x11", "\0\x01a"]),
    ],
)
def test_what_clients_write(grammar, good, bad):
    found = parse(grammar)
    for name, accepts in readers.ebnf_readers(text(found)).items():
        assert [one for one in (*good, *bad) if accepts(one)] == good, name


@pytest.mark.parametrize(
    ("grammar", "canonical"),
    [
        (
            'root ::= b a # c\n  | c\nc::="x" | "y"\na ::= "1"\r\nb ::= "2"\n',
            'root ::= r1 r2 | r3\nr1 ::= "2"\nr2 ::= "1"\nr3 ::= "x" | "y"\n',
        ),
        ('unused ::= "a"\nroot ::= "b"', 'root ::= "b"\n'),
        ('root ::= "a" | "a" | | ("" | "b") ', 'root ::= "a" | "" | "b"\n'),
        ('root ::= x{0} "a"{1} ""* ("b" "c") "d" {2}\nx ::= x', 'root ::= "abc" "d"{2}\n'),
        ('root ::= ("a" | "b" "c")+ "d"* [e-e]', 'root ::= ("a" | "bc")+ "d"* "e"\n'),
        ('root ::= ("a" "b")? ("c"?)*', 'root ::= ("ab")? ("c"?)*\n'),
        ('root ::= (\n"a"\n|\n\n"b"\n)\n', 'root ::= "a" | "b"\n'),
        ('root ::= [\\x01-\\x1f/9] "\\"\\\\\\n"', 'root ::= [9\\u0001-\\u001F/] "\\"\\\\\\u000A"\n'),
    ],
)
def test_the_canonical_text(grammar, canonical):
    assert text(parse(grammar)) == canonical
    assert text(parse(canonical)) == canonical


REFUSED = [
    ("", 1, 1, "there is no rule in it"),
    (" \n# nothing\n", 1, 1, "there is no rule in it"),
    ('start ::= "a"', 1, 1, "there is no rule 'root', with which a grammar starts"),
    ('root ::= "a" tail', 1, 14, "the rule 'tail' is not defined"),
    ('root ::= "b"\nx ::= "a"\n  tail', 3, 3, "the rule 'tail' is not defined"),
    ('root ::= "abc', 1, 10, "a literal without its closing '\"'"),
    ('root ::= "abc\n"', 1, 10, "a literal without its closing '\"'"),
    ('root := "a"', 1, 6, "unexpected ':' where '::=' should follow the name 'root'"),
    ('root ::= "a"\nb := "a"', 2, 3, "unexpected ':'"),
    ("root", 1, 5, "the end where '::=' should follow the name 'root'"),
    ('1a ::= "x"', 1, 1, "unexpected '1' where a rule should begin: NAME ::= ..."),
    ("root ::= [z-a]", 1, 11, "a bad range 'z-a': its ends are the wrong way round"),
    ('root ::= "a"{3,2}', 1, 13, "a bad repetition '{3,2}': 3 is more than 2"),
    ('root ::= "a"{,2}', 1, 13, "a repetition that is none of {m}, {m,} and {m,n}"),
    ('root ::= "a"\nroot ::= "b"', 2, 1, "a second rule 'root'"),
    ("root ::= ", 1, 1, "the rule 'root' is empty; write \"\" for the empty text"),
    ('root ::= b\n\nb ::=\nc ::= "x"', 3, 1, "the rule 'b' is empty; write \"\" for the empty text"),
    ('root ::= ("a"', 1, 10, "an unbalanced '('"),
    ('root ::= "a")', 1, 13, "an unbalanced ')'"),
    ('root ::= ("a"\nb ::= "x"', 2, 1, "a rule inside a group that is not closed"),
    ('root ::= "a" b ::= "c"', 1, 14, "a rule that does not begin on a line of its own"),
    ("root ::= []", 1, 10, "an empty class, or one that begins with ']'; write '\\]' for the character"),
    ("root ::= [^\\0-\\U0010ffff]", 1, 10, "a class without a character"),
    ("root ::= [a", 1, 10, "a class without its closing ']'"),
    ("root ::= [a\n]", 1, 10, "a class without its closing ']'"),
    ("root ::= [\\w]", 1, 11, "an unknown escape 'w' after '\\'"),
    ('root ::= "\\q"', 1, 11, "an unknown escape 'q' after '\\'"),
    ('root ::= "\\-"', 1, 11, "an unknown escape '-' after '\\'"),
    ('root ::= "\\x4"', 1, 11, "an escape '\\x' without its hexadecimal digits"),
    ('root ::= "\\x419"', 1, 11, "'\\x41' before '9' is read in two ways; write '\\u0041'"),
    ('root ::= "\\ud800"', 1, 11, "half of a surrogate pair"),
    ('root ::= "\ud800"', 1, 11, "half of a surrogate pair"),
    ('root ::= "\\U00110000"', 1, 11, "an escape above U+10FFFF"),
    ('root ::= "\\01"', 1, 11, "an octal escape; write '\\xHH'"),
    ("root ::= .", 1, 10, "unexpected '.'"),
    ("root ::= 'a'", 1, 10, 'unexpected "\'"'),
    ('root ::= "a"**', 1, 14, "nothing to repeat for '*'"),
    ("root ::= ( * )", 1, 12, "nothing to repeat for '*'"),
    ('root ::= "a" (= "b")', 1, 14, "look-ahead '(=' is not supported"),
    ("root ::= root", 1, 1, "the rule 'root' can never match: 'root' needs 'root', with no way out"),
    ('root ::= x\nx ::= x "a"', 2, 1, "the rule 'x' can never match: 'x' needs 'x', with no way out"),
    ("root ::= a\na ::= b\nb ::= a", 2, 1, "the rule 'a' can never match: 'a' needs 'b' needs 'a', with no way out"),
    ('root ::= "a" | "b" x\nx ::= "c" (x | x+)', 2, 1, "the rule 'x' can never match: 'x' needs 'x', with no way out"),
]


@pytest.mark.parametrize(("grammar", "line", "column", "problem"), REFUSED)
def test_refused_with_the_place(grammar, line, column, problem):
    with pytest.raises(EbnfError) as refused:
        parse(grammar)
    error = refused.value
    assert (error.line, error.column, error.problem) == (line, column, problem)
    assert isinstance(error, RequestError) and error.status == 400
    assert str(error).startswith(f"the grammar is refused at line {line}, column {column}: ") and "\n" not in str(error)


def _chain(count):
    return "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(count))


MANY = [f"r{i}" for i in range(3000)]

HOSTILE = {
    "long": ('root ::= "' + "a" * 100_000 + '"', "100011 characters, 65536 are allowed"),
    "deep": ("root ::= " + "(" * 50_000, "more than 50 groups in groups"),
    "counts": ('root ::= "a"{999999}', "more than 50000 characters and names"),
    "counts of counts": ('root ::= ((("a"{99}){99}){99}){99}', "more than 50000 characters and names"),
    "counts of rules": (
        "".join(f'{n} ::= "a"{{40000}}\n' for n in ("root", "b")),
        "more than 50000 characters and names",
    ),
    "spaces": ('root ::= "a"{1,' + " " * 60_000 + "x", "a repetition that is none of"),
    "comments": ("#" * 65_000, "there is no rule in it"),
    "brackets": ("root ::= " + "[" * 60_000, "a class without its closing"),
    "classes": ("root ::= " + "[^a]" * 10_000, "more than 131072 characters, once classes are written out"),
    "a long circle": (_chain(4000) + "r4000 ::= r0\n", "the rule 'r0' can never match"),
    "a long chain": (_chain(4000) + 'r4000 ::= "x"\n', None),
    "many rules": (f"root ::= {' '.join(MANY)}" + "".join(f'\n{name} ::= "x"' for name in MANY), None),
    "bars": ("root ::= " + "|" * 60_000, None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ones_end_soon(name):
    grammar, problem = HOSTILE[name]
    if problem is None:
        assert len(text(parse(grammar))) <= 131_072
        return
    with pytest.raises(EbnfError, match=problem) as refused:
        parse(grammar)
    assert len(str(refused.value)) < 400


# --- random grammars, whose short texts are worked out by sets -----------------------------------------------------

NAMES = ("root", "x", "y")
LONGEST = 4
WORDS = [""]
for _ in range(LONGEST):
    WORDS += [word + c for word in WORDS if len(word) == len(WORDS[-1]) for c in "ab"]

counts = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (1, 2)])
parts = st.recursive(
    st.sampled_from([Chars(((97, 97),)), Chars(((98, 98),)), Chars(((97, 98),)), EMPTY, *map(Ref, NAMES)]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(row),
        st.lists(inner, min_size=1, max_size=3).map(choice),
        st.tuples(inner, counts).map(lambda p: times(p[0], *p[1])),
    ),
    max_leaves=5,
)


def _words(expr, known):
    """The short texts of an expression, given those of the rules."""
    if isinstance(expr, Chars):
        return {chr(code) for low, high in expr.ranges for code in range(low, high + 1)}
    if isinstance(expr, Ref):
        return known[expr.name]
    if isinstance(expr, Choice):
        return set().union(*(_words(option, known) for option in expr.options))
    if isinstance(expr, Row):
        found = {""}
        for item in expr.items:
            found = _joined(found, _words(item, known))
        return found
    item, found, power = _words(expr.item, known), set(), {""}
    for count in range(LONGEST + 3 if expr.high is None else expr.high + 1):
        found |= power if count >= expr.low else set()
        power = _joined(power, item)
    return found


def _joined(first, second):
    return {a + b for a in first for b in second if len(a + b) <= LONGEST}


def _short_texts(rules):
    known = {name: set() for name in rules}
    while True:
        more = {name: _words(rule, known) for name, rule in rules.items()}
        if more == known:
            return known["root"]
        known = more


def _written(expr):
    """An expression as a client might write it."""
    if isinstance(expr, Chars):
        return f"[{chr(expr.ranges[0][0])}-{chr(expr.ranges[0][1])}]"
    if isinstance(expr, Ref):
        return expr.name
    if isinstance(expr, Choice):
        return "(" + " | ".join(map(_written, expr.options)) + ")"
    if isinstance(expr, Times):
        return f"({_written(expr.item)}){{{expr.low},{'' if expr.high is None else expr.high}}}"
    return "(" + (" ".join(map(_written, expr.items)) or '""') + ")"


@settings(deadline=None, max_examples=100)
@given(st.tuples(parts, parts, parts))
def test_random_grammars(rules):
    grammar = "\n".join(f"{name} ::= {_written(rule)}" for name, rule in zip(NAMES, rules, strict=True))
    expected = _short_texts(dict(zip(NAMES, rules, strict=True)))
    try:
        found = parse(grammar)
    except EbnfError as error:
        assert "can never match" in error.problem
        return
    assert _short_texts(found.rules) == expected
    again = parse(text(found))
    assert _short_texts(again.rules) == expected and text(again) == text(found)
    for name, accepts in readers.ebnf_readers(text(found)).items():
        assert {word for word in WORDS if accepts(word)} == expected, name
