"""Random schemas and random answers under them: whatever comes out is valid, and it comes to an end."""

import json
import random
from functools import cache

import pytest
from json_judge import parsed, validator
from walking import VOCABULARY, walk
from wide_schemas import Wide

from rtk.grammar.schema import SchemaError, normalise
from rtk.plugin import Options
from rtk.plugin.grammar import Spec
from rtk_grammar.llguidance.backend import LLGuidance
from rtk_grammar.outlines.backend import Outlines
from rtk_grammar.xgrammar.backend import XGrammar

BACKENDS = {"xgrammar": XGrammar, "llguidance": LLGuidance, "outlines": Outlines}
SCHEMAS = 250
SERVED = {"xgrammar": 204, "llguidance": 204, "outlines": 161}
"""Of those, how many each backend takes, so that nobody gets sound by refusing."""


@cache
def schemas():
    """Schemas, in normal form, and who judges their documents."""
    found = []
    for seed in range(SCHEMAS):
        source = Wide(random.Random(seed))
        schema = source.root()
        try:
            found.append((seed, normalise(json.dumps(schema)), validator(schema, source.draft)))
        except SchemaError as error:
            assert error.pointer.startswith("#")
    return found


@pytest.mark.parametrize("name", BACKENDS)
def test_whatever_comes_out_is_valid(name):
    pytest.importorskip(BACKENDS[name].library)
    backend, served = BACKENDS[name](Options()), 0
    for seed, normal, judge in schemas():
        spec = Spec("json_schema", normal.text, seed % 3)
        if backend.judge(spec).verdict == "refused":
            continue
        served += 1
        matcher = backend.compile(spec, VOCABULARY)
        for turn in range(2):
            said = walk(backend, matcher, normal.text, random.Random(2 * seed + turn), open_keys=normal.open_keys)
            assert judge.is_valid(parsed(said)), (seed, said)
    assert served == SERVED[name]
