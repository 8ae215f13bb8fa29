"""Specs whose answers are known, and the vocabularies that they are spelled in, for the suite of grammar backends."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtk.plugin.grammar import Spec, Vocabulary

END = 300
WORDS = (
    *("ye", "yes", "no", "ab", "abb", "aa", "cat", "ars", "00", "true", "red", "1}", "12"),
    *('{"', '"a"', '":', '": ', '{"a":', "é", "ést", "\n ", '"}'),
)
VOCABULARY = Vocabulary(
    tokens=[
        *(bytes([i]) for i in range(256)),
        *(word.encode() for word in WORDS),
        *[b""] * (END + 2 - 256 - len(WORDS)),
    ],
    ends=frozenset({END}),
)
"""Every byte, some longer tokens, special ones without bytes, and an end among these; 302 fill no whole word."""
OTHER = Vocabulary(
    tokens=[b"", *VOCABULARY.tokens[::-1], *(VOCABULARY.tokens[i] for i in (*b"aeny0", 256, 257)), *[b""] * 10],
    ends=frozenset({0, 319}),
)
"""The same bytes under other ids, some of them twice, and two ends; 320 fill whole words."""


@dataclass(frozen=True, slots=True)
class Example:
    """A spec, and what is known of its answers."""

    spec: Spec
    accepts: tuple[str, ...]
    rejects: tuple[str, ...] = ()
    complete: bool = False
    """Whether there are no other answers than `accepts`."""
    valid: Callable[[str], bool] | None = None
    """Tells other answers."""

    def holds(self, text: str) -> bool:
        """Whether the spec describes the text."""
        return text in self.accepts or (self.valid is not None and self.valid(text))

    def __str__(self) -> str:
        return f"{self.spec.kind} {self.spec.text}"


def _choice(*texts: str) -> Example:
    return Example(
        Spec("choice", json.dumps(texts, ensure_ascii=False)), texts, ("", "maybe", "yesx", "ye"), complete=True
    )


def _regex(pattern: str, accepts: Sequence[str], *rejects: str, complete: bool = False) -> Example:
    known = re.compile(pattern)
    spec = Spec("regex", pattern)
    return Example(spec, tuple(accepts), rejects, complete, lambda text: known.fullmatch(text) is not None)


def _schema(schema: object, valid: Callable[[object], bool], accepts: Sequence[str], *rejects: str) -> Example:
    def parsed(text: str) -> bool:
        try:
            return valid(json.loads(text))
        except ValueError:
            return False

    return Example(Spec("json_schema", json.dumps(schema)), tuple(accepts), rejects, valid=parsed)


def _ebnf(grammar: str, accepts: Sequence[str], *rejects: str, like: str = "(?!)", complete: bool = False) -> Example:
    known = re.compile(like)
    spec = Spec("ebnf", grammar)
    return Example(spec, tuple(accepts), rejects, complete, lambda text: known.fullmatch(text) is not None)


def _tags(more: dict[str, object], like: str, accepts: Sequence[str], *rejects: str) -> Example:
    known = re.compile(like)
    spec = Spec("structural_tag", json.dumps({"tags": TAGS["tags"], **more}))
    return Example(spec, tuple(accepts), rejects, valid=lambda text: known.fullmatch(text) is not None)


def _tagged(text: str) -> bool:
    """Whether every `<f` begins `<f=` and a boolean and `>`."""
    return re.fullmatch(r"(<f=(true|false)>)*", re.sub(r"^[^<]+|(?<=>)[^<]+|<(?!f)[^<]*", "", text)) is not None


def _has_a_number(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"a"} and type(value["a"]) is int


NUMBER_A = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TAGS = {"triggers": ["<f"], "tags": [{"begin": "<f=", "schema": {"type": "boolean"}, "end": ">"}]}
RUN = {"begin": "[", "between": ",", "end": "]"}
EXAMPLES = (
    _choice("yes", "no", "yesterday"),
    _choice("é", "ést", "e"),
    _choice("abc"),
    Example(Spec("choice", '["", "ab"]'), ("", "ab"), ("a", "b", "abb"), complete=True),
    _regex("a{1,3}b?", ["a", "aa", "aaa", "ab", "aab", "aaab"], "", "b", "aaaa", "abb", complete=True),
    _regex("(cat|car)s?", ["cat", "car", "cats", "cars"], "ca", "catss", complete=True),
    _regex("[0-9]+(é|yes)", ["1é", "0012yes"], "é", "1", "1yes1"),
    _schema({"enum": ["red", "green"]}, lambda value: value in ("red", "green"), ['"red"', '"green"'], "red", '"blue"'),
    _schema({"type": "boolean"}, lambda value: isinstance(value, bool), ["true", "false"], "yes", "1", '"true"'),
    _schema(NUMBER_A, _has_a_number, ['{"a":1}', '{"a":-120}'], "{}", '{"a":"1"}', '{"a":1,"b":2}', '{"a":1'),
    _ebnf('root ::= x x\nx ::= "0" | "1"', ["00", "01", "10", "11"], "0", "000", "02", complete=True),
    _ebnf('root ::= "a" b*\nb ::= "b" | "c"', ["a", "abbc"], "", "b", "ad", like="a[bc]*"),
    Example(
        Spec("structural_tag", json.dumps(TAGS)),
        ("", "yes", "no <f=true>", "<f=false>cat<f=true> <ab"),
        ("<f=yes>", "<f=true", "no <f", "<fa"),
        valid=_tagged,
    ),
    _tags({"run": RUN}, r"\[<f=(true|false)>(,<f=(true|false)>)*\]", ["[<f=true>]", "[<f=true>,<f=false>]"], "", "[]"),
    _tags({"otherwise": {"enum": [None]}}, "(?!)", ["null", "<f=true>", "<f=false>"], "", "no", "null<f=true>"),
    _tags(
        {"openers": ["<"]},
        r"(?s)<f=(true|false)>|[ \t\r\n]*([^< \t\r\n].*)?",
        ["<f=true>", "", "no <f"],
        " <",
        "<f=true>a",
    ),
    Example(
        Spec("structural_tag", json.dumps({**TAGS, "once": True})),
        ("", "yes", "no <f=true> <", "<f=false>"),
        ("<f=true><f=true>", "<f=true", "<fa"),
        valid=lambda text: _tagged(text) and text.count("<f") < 2,
    ),
)
MALFORMED = {
    "choice": ("", "yes", "[]", "[1]", '{"a": "b"}', '["a"', r'["\ud800"]', "[" * 100_000),
    "ebnf": ("", 'start ::= "a"', 'root ::= "abc', 'root ::= "a" tail', "root ::= [z-a]"),
    "json_schema": ("", "{", "[]", '{"type": "no-such-type"}', '{"enum": []}', '{"anyOf":[' * 50_000),
    "regex": ("(", "[z-a]", "a{3,2}", "*"),
    "structural_tag": ("", "[]", '{"triggers": [], "tags": []}', '{"triggers": ["<f"], "tags": [{"begin": "[x]"}]}'),
}
