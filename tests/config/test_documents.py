"""TOML and YAML: what a text means, and where its keys stand."""

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.config.document import Document, FileError, without_quotes
from rtk.config.toml_file import read_toml
from rtk.config.written import as_toml
from rtk.config.yaml_file import read_yaml

TOML = '''\
# a comment with [brackets] and = signs
top = "a # b"
"quoted \\u00e9".'lit.eral' = 1

[ table . sub ]   # header
plain = """
[not.a.table]
x = 1
\\""" still inside"""
other = \'\'\'
it's = 'one' text\'\'\'\'\'
inline = { a = 1, "b c" = { d = [1, 2] }, e = "}" }
list = [
  1,  # ]
  "],[",
  { x = 1 },
  [2000-01-01 10:20:30, 1e3],
]
when = 1979-05-27 07:32:00
last = true
[[many]]
name = "one"
[[many]]
name = "two"
[empty]
'''
TOML_LINES = {
    ("top",): 2,
    ("quoted é", "lit.eral"): 3,
    ("table", "sub"): 5,
    ("table", "sub", "plain"): 6,
    ("table", "sub", "other"): 10,
    ("table", "sub", "inline"): 12,
    ("table", "sub", "inline", "a"): 12,
    ("table", "sub", "inline", "b c"): 12,
    ("table", "sub", "inline", "b c", "d"): 12,
    ("table", "sub", "inline", "e"): 12,
    ("table", "sub", "list"): 13,
    ("table", "sub", "list", "2", "x"): 16,
    ("table", "sub", "when"): 19,
    ("table", "sub", "last"): 20,
    ("many",): 23,
    ("many", "name"): 24,
    ("empty",): 25,
}
YAML = """\
# a comment: with a colon
top: a # not part of it
'quoted: é': 1
table:
  sub:
    plain: |
      not: a key
    inline: {a: 1, "b c": {d: [1, 2]},
      e: "}"}
    list:
      - 1
      - {x: 1}
    last: true
empty:
"""
YAML_LINES = {
    ("top",): 2,
    ("quoted: é",): 3,
    ("table",): 4,
    ("table", "sub"): 5,
    ("table", "sub", "plain"): 6,
    ("table", "sub", "inline"): 8,
    ("table", "sub", "inline", "a"): 8,
    ("table", "sub", "inline", "b c"): 8,
    ("table", "sub", "inline", "b c", "d"): 8,
    ("table", "sub", "inline", "e"): 9,
    ("table", "sub", "list"): 10,
    ("table", "sub", "list", "1", "x"): 12,
    ("table", "sub", "last"): 13,
    ("empty",): 14,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_key_of_toml_has_its_line(newline: str) -> None:
    document = read_toml(TOML.replace("\n", newline))
    assert {path: place.line for path, place in document.places.items()} == TOML_LINES
    assert document.values["table"]["sub"]["inline"] == {"a": 1, "b c": {"d": [1, 2]}, "e": "}"}


def test_every_key_of_yaml_has_its_line() -> None:
    document = read_yaml(YAML)
    assert {path: place.line for path, place in document.places.items()} == YAML_LINES
    assert document.values["table"]["sub"] == {
        "plain": "not: a key\n",
        "inline": {"a": 1, "b c": {"d": [1, 2]}, "e": "}"},
        "list": [1, {"x": 1}],
        "last": True,
    }


@pytest.mark.parametrize("document", [read_toml(TOML), read_yaml(YAML)], ids=["toml", "yaml"])
def test_names_and_pairs_are_found_to_the_character(document: Document) -> None:
    for path, place in document.places.items():
        name = document.text[slice(*place.name)]
        assert name.strip("\"'").replace("\\u00e9", "é") == path[-1]
        assert name in document.text[slice(*place.whole)]
    assert document.text[slice(*document.places["table", "sub", "last"].whole)] in ("last = true", "last: true")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, None) for text in ("", "~", "null", "NULL")),
        *((text, True) for text in ("true", "TRUE")),
        ("False", False),
        *(
            (text, text)
            for text in ("yes", "no", "on", "off", "y", "12:30", "1_000", "0b1", "=", "2001-01-01", "1.2.3")
        ),
        *(("0", 0), ("-7", -7), ("+7", 7), ("010", 10), ("0o17", 15), ("0xfF", 255)),
        *(
            ("1e3", 1000.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("-2.5E-1", -0.25),
            (".inf", float("inf")),
            ("-.Inf", -float("inf")),
        ),
        *(("'1'", "1"), ('"null"', "null"), ("|-\n  on", "on")),
    ],
)
def test_scalars_of_yaml_mean_what_json_would_say(text: str, value: Any) -> None:
    found = read_yaml(f"key: {text}\n").values["key"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("key", ["yes", "on", "null", "1e3", "12:30", "1"])
def test_keys_of_yaml_are_texts(key: str) -> None:
    assert read_yaml(f"{key}: 5\n").values == {key: 5}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: &x 1\nb: *x\n", 1, "has an anchor or an alias; write the value itself"),
        ("a: 1\nb: *s3cret\n", 2, "has an anchor or an alias; write the value itself"),
        ("a: &x\n  b: *x\n", 1, "has an anchor or an alias; write the value itself"),
        ("a: !!python/name:os.system x\n", 1, "has a tag; what a value is follows from its key"),
        ("a: 1\n\na: 2\n", 3, "gives a key twice: in line 1 too"),
        ("s:\n  a: 1\n  a: 2\n", 3, "gives a key twice: in line 2 too"),
        ("a: 1\n---\nb: 2\n", 2, "holds more than one document; write one file for each"),
        ("- 1\n", 1, "must be a mapping of sections"),
        ("hello\n", 1, "must be a mapping of sections"),
        ("? [a, b]\n: 1\n", 1, "has a key that is no plain text"),
        ("a: " + "9" * 5000, 1, "has a number that is too large"),
        ("a: " + "[" * 150 + "]" * 150, 1, "is nested too deeply"),
        ("a: 1\nb: [s3cret\n", 3, "is not valid YAML: "),
        ("a: 1\n b: 2\n", 2, "is not valid YAML: "),
        ("a: [1\nb: 2", 2, "is not valid YAML: expected ',' or ']', but got ':'"),
        ("a: %s3cret\n", 1, "is not valid YAML: "),
        ("a: 'b\n", 2, "is not valid YAML: "),
        ("a: 1\nb: \x01s3cret\n", 2, "is not valid YAML: it holds characters that YAML does not allow"),
    ],
)
def test_what_yaml_cannot_be_read(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(FileError) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(reason)
    assert caught.value.line == line
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("expected ',' or ']', but got '<scalar>'", "expected ',' or ']', but got '<scalar>'"),
        ("found 's3cret' and \"s3cret\", then ':'", "found … and …, then ':'"),
        (r"found 'it\'s \"s3cret' there", "found … there"),
        ('found \'\' or "<s3cret>" or "\'"', 'found … or … or "\'"'),
    ],
)
def test_what_a_parser_quotes_of_a_file_is_not_told(reason: str, shown: str) -> None:
    assert without_quotes(reason) == shown


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a = 1\nb = s3cret\n", 2, "is not valid TOML: Invalid value"),
        ("[a]\nb = 1\nb = 2\n", 3, "is not valid TOML: Cannot overwrite a value"),
        ("a = 1\nb = [1,", 2, "is not valid TOML: "),
        ("a = " + "9" * 5000, None, "is not valid TOML: "),
        ("a = " + "[" * 9999 + "]" * 9999, None, "is nested too deeply"),
    ],
)
def test_what_toml_cannot_be_read(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(FileError) as caught:
        read_toml(text)
    assert str(caught.value).startswith(reason)
    assert caught.value.line == line
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n"])
def test_an_empty_file_says_nothing(text: str) -> None:
    assert read_toml(text) == Document(text, {}, {})
    assert read_yaml(text) == Document(text, {}, {})


NAMES = st.text(st.sampled_from("ab-_ .é\"'#[]="), max_size=4)
TEXTS = st.text(st.sampled_from("ab\"'\\#[]{}=, \né"), max_size=8)


@st.composite
def toml_names(draw: st.DrawFn) -> tuple[str, str]:
    """A name, and a way to write it."""
    name = draw(NAMES)
    ways = [as_toml(name)]
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        ways.append(name)
    if "'" not in name:
        ways.append(f"'{name}'")
    return name, draw(st.sampled_from(ways))


@st.composite
def toml_values(draw: st.DrawFn) -> str:
    """A way to write some value that is no table."""
    text = draw(TEXTS)
    ways = [as_toml(text), "1e3", "1979-05-27 07:32:00", "true", f"[{as_toml(text)}, # ]\n [1, {{ x = 1 }}],\n]"]
    ways.append(
        '"""' + text.replace("\\", "\\\\").replace('"""', '""\\"') + ('\\""""' if text.endswith('"') else '"""')
    )
    if "'" not in text:
        ways.append(f"'''{text}'''")
    return draw(st.sampled_from(ways))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(toml_names(), min_size=1, max_size=3), toml_values(), TEXTS), max_size=8)
)
def test_whatever_tomllib_takes_has_its_keys_at_their_lines(
    lines: list[tuple[bool, list[tuple[str, str]], str, str]],
) -> None:
    text, table, expected = "", (), {}
    for is_header, names, value, comment in lines:
        path = tuple(name for name, _ in names)
        written = " . ".join(way for _, way in names)
        line = text.count("\n") + 1
        added = f"[{written}]" if is_header else f"{written} = {value}"
        added += f"  # {comment}".replace("\n", " ") + "\n"
        try:
            tomllib.loads(text + added)
        except tomllib.TOMLDecodeError:
            continue
        text += added
        table = path if is_header else table
        expected[path if is_header else (*table, *path)] = line
    places = read_toml(text).places
    assert {path: place.line for path, place in places.items() if path in expected} == expected
    for path, place in places.items():
        assert "x" in path or path in expected
        assert text[slice(*place.name)] in text[slice(*place.whole)]
