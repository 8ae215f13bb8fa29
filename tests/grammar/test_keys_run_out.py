"""Objects of few names, and a model that only knows those it has said: what it may say never leads nowhere."""

import json

import numpy as np
import pytest

from rtk.grammar.constraint import Constraint, ask, runs_out_of_keys
from rtk.grammar.schema import normalise
from rtk.grammar.unique_keys import KeyIndex, UniqueKeys
from rtk.plugin import Options
from rtk.plugin.grammar import Spec, read_row
from rtk.plugin.testing.grammar_examples import VOCABULARY
from rtk_grammar.llguidance.backend import LLGuidance
from rtk_grammar.xgrammar.backend import XGrammar

INDEX = KeyIndex(VOCABULARY)
BACKENDS = {"xgrammar": XGrammar, "llguidance": LLGuidance}


def written(backend, schema, wants):
    """What a model says that always wants the first of these tokens which it may have."""
    pytest.importorskip(backend.library)
    normal = normalise(json.dumps(schema))
    assert normal.open_keys and runs_out_of_keys(normal.text)
    compiling = backend(Options())
    matcher = compiling.compile(Spec("json_schema", normal.text, 0), VOCABULARY)
    keys = UniqueKeys(INDEX)
    state = Constraint(matcher, compiling, "x", VOCABULARY, stops=VOCABULARY.ends, keys=keys, scarce=True)
    said, mask = b"", np.zeros((1, VOCABULARY.words), dtype=np.int32)
    for _ in range(200):
        ask([state], mask, [0])
        state.refine(mask[0])
        state.look_ahead(mask[0])
        if state.state == "ended":
            return said.decode()
        assert state.state != "dead", said
        allowed = set(read_row(mask[0]))
        token = next(
            (VOCABULARY.tokens.index(data) for data in wants if VOCABULARY.tokens.index(data) in allowed), None
        )
        token = min(allowed) if token is None else token
        assert state.accept(token)
        said += VOCABULARY.tokens[token]
    raise AssertionError(said)


def wants(text):
    return [bytes([byte]) for byte in text.encode()]


def names(pattern, **more):
    null = {"type": "null"}
    return {"type": "object", "patternProperties": {pattern: null}, "additionalProperties": False, **more}


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize(
    ("schema", "order", "text"),
    [
        (names("^[ab]$"), wants(',"ab'), '{"a":null,"b":null}'),
        (names("^(a|b+)$", maxProperties=3), wants(',"ab'), '{"a":null,"b":null,"bb":null}'),
        (names("^(a|b+)$", maxProperties=3), [b'"a"', *wants(',"ab')], '{"a":null,"b":null,"bb":null}'),
        (names("^[0-9]*x$", maxProperties=3), wants(',"x1'), '{"x":null,"1x":null,"11x":null}'),
        (names("^a_[a-z]{1,2}$", maxProperties=4), wants(',"_a'), '{"a_a":null,"a_aa":null,"a_ab":null,"a_ac":null}'),
        (names('^["\\\\é]$'), wants(',\\"\xc3'), '{"\\\\":null,"\\"":null,"é":null}'),
        (
            {"type": "array", "items": names("^[ab]$"), "minItems": 2, "maxItems": 2},
            wants(',"ab'),
            '[{"a":null,"b":null},{"a":null,"b":null}]',
        ),
        (
            {"anyOf": [names("^[ab]$"), {**names("^[abc]$"), "maxProperties": 3}]},
            wants(',"ab'),
            '{"a":null,"b":null,"c":null}',
        ),
        (
            names("^[ab]$", properties={"z": {"type": "string", "maxLength": 1}}),
            wants(',"zab'),
            '{"z":",","a":null,"b":null}',
        ),
    ],
)
def test_a_model_that_repeats_itself_comes_to_an_end(backend, schema, order, text):
    assert written(backend, schema, order) == text


def test_names_that_are_any_but_a_few_never_run_out():
    for schema in ({"type": "object"}, {"type": "object", "properties": {"a": True, "b": False}}):
        assert not runs_out_of_keys(normalise(json.dumps(schema)).text)
