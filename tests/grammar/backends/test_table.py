"""The table's claims against the installed libraries: a newer one that reads a grammar otherwise fails here."""

import json
import random
import re
from functools import cache

import pytest
from jsonschema import Draft202012Validator
from schema_claims import CLAIMS, has_a_key_twice, parsed, texts

from rtk.plugin import Options
from rtk.plugin.grammar import Spec
from rtk.plugin.testing.grammar import allowed
from rtk.plugin.testing.grammar_examples import END, VOCABULARY
from rtk_grammar.llguidance.backend import LLGuidance
from rtk_grammar.outlines.backend import Outlines
from rtk_grammar.table import TABLE
from rtk_grammar.xgrammar.backend import XGrammar

BACKENDS = {"xgrammar": XGrammar, "llguidance": LLGuidance, "outlines": Outlines}
IDS = [json.dumps(schema)[:70] for _, schema in CLAIMS]
SPACE = re.compile(r"[ \t\r\n]{9}|^[ \t\r\n]|[ \t\r\n]$")


@cache
def backend(name):
    pytest.importorskip(BACKENDS[name].library)
    return BACKENDS[name](Options())


def spec(schema, whitespace=8):
    return Spec("json_schema", json.dumps(schema), whitespace)


def can_say(matcher, text):
    fork = matcher.fork()
    return all(map(fork.accept, text.encode())) and fork.accept(END)


def is_valid(validator, text):
    try:
        return validator.is_valid(parsed(text))
    except (ValueError, OverflowError):
        return False


TEXTS = texts()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("verdict", "schema"), CLAIMS, ids=IDS)
def test_what_the_table_claims_is_so(name, verdict, schema):
    judgement = backend(name).judge(spec(schema))
    if name == "outlines" and judgement.verdict == "refused" and "recursive" in judgement.reasons[0].problem:
        return
    assert judgement.verdict == verdict, judgement
    if verdict == "refused":
        return
    matcher = backend(name).compile(spec(schema), VOCABULARY)
    validator = Draft202012Validator(schema)
    for text in TEXTS:
        said, valid = can_say(matcher, text), is_valid(validator, text)
        assert valid or not said, f"{text!r} can be said and is not valid"
        if verdict == "exact" and valid and not SPACE.search(text):
            assert said, f"{text!r} is valid and cannot be said"
    for seed in range(4):
        text = walk(backend(name), matcher.fork(), random.Random(seed))
        assert text is None or has_a_key_twice(text) or validator.is_valid(parsed(text)), (
            f"{text!r} was said and is not valid"
        )


def walk(backend, matcher, rng):
    """What comes of random tokens; None where it comes to no end."""
    said = b""
    for _ in range(120):
        choices = allowed(backend, matcher)
        assert choices, f"after {said!r} nothing is allowed"
        close = [token for token in choices if VOCABULARY.tokens[token] in (b"]", b"}", b'"')]
        token = rng.choice(close if close and rng.random() < 0.4 else choices)
        token = END if END in choices and rng.random() < 0.5 else token
        assert matcher.accept(token)
        if token == END:
            return said.decode()
        said += VOCABULARY.tokens[token]
    return None


def test_every_entry_of_the_table_is_claimed(monkeypatch):
    looked_up = set()

    class Watched(dict):
        def get(self, key, default=None):
            looked_up.add(key)
            return super().get(key, default)

    watching = XGrammar(Options())
    monkeypatch.setattr(XGrammar, "table", Watched(TABLE))
    for _, schema in CLAIMS:
        watching.judge(spec(schema))
    assert set(TABLE) - looked_up == set()


@pytest.mark.parametrize("name", BACKENDS)
def test_no_name_that_is_known_comes_twice(name):
    null = {"type": "null"}
    open_keys = spec({"type": "object", "properties": {"a": null, "b": null}, "additionalProperties": null})
    matcher = backend(name).compile(open_keys, VOCABULARY)
    assert can_say(matcher, '{"a":null,"b":null,"c":null}')
    for again in ('"a"', '"\\u0061"', '"b"'):
        assert not can_say(matcher, f'{{"a":null,"b":null,{again}:null}}')
        assert not can_say(matcher, f'{{"a":null,"b":null,"c":null,{again}:null}}')


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("most", [0, 1, 8])
def test_white_space_is_bounded(name, most):
    null = {"type": "null"}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": null}}, "additionalProperties": False}
    matcher = backend(name).compile(spec(schema, most), VOCABULARY)
    for count in range(most + 2):
        space = (" \n\t\r" * 3)[:count]
        for tokens in (
            ["{", "}"],
            ["{", '"a"', ":", "[", "]", "}"],
            ["{", '"a"', ":", "[", "null", ",", "null", "]", "}"],
        ):
            assert can_say(matcher, space.join(tokens)) is (count <= most)
            for i in range(1, len(tokens)):
                text = "".join(tokens[:i]) + space + "".join(tokens[i:])
                assert can_say(matcher, text) is (count <= most), text
    for around in (" {}", "{} ", "\n{}", '{"a"\x0b:[]}', '{"a"\u00a0:[]}'):
        assert not can_say(matcher, around)
