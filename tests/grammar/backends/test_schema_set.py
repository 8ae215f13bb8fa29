"""The set of schemas from real reports: by each backend, and by the best of them, nothing that is invalid comes out."""

import json
from pathlib import Path

import pytest
from test_table import BACKENDS, backend, can_say

from rtk.grammar.schema import SchemaError, normalise
from rtk.plugin.grammar import Spec
from rtk.plugin.testing.grammar_examples import VOCABULARY

CASES = json.loads((Path(__file__).parents[2] / "data" / "schema_cases.json").read_text(encoding="utf-8"))
SERVED = {"xgrammar": 43, "llguidance": 43, "outlines": 36}
"""Of the 43 that something satisfies: all texts that must be possible are, and none that must not be."""
BEST = ("exact", "narrowed", "refused")


def normal(case):
    """The case as a spec; None where the host refuses it."""
    try:
        return Spec("json_schema", normalise(case["schema"]).text)
    except SchemaError:
        return None


SPECS = [(case, normal(case)) for case in CASES]


def serves(name, case, spec):
    """Whether it takes the schema; nothing that is invalid comes out if so."""
    if spec is None or backend(name).judge(spec).verdict == "refused":
        return False
    assert not case["must_refuse"], f"{case['id']}: {name} takes it"
    matcher = backend(name).compile(spec, VOCABULARY)
    said = [text for text in case["must_reject"] if can_say(matcher, text)]
    assert not said, f"{case['id']}: by {name}, {said} can be said"
    return all(can_say(matcher, text) for text in case["must_accept"])


@pytest.mark.parametrize("name", BACKENDS)
def test_each_backend_is_sound_and_serves_what_it_did(name):
    assert sum(serves(name, case, spec) for case, spec in SPECS) == SERVED[name]


def test_the_best_backend_serves_all():
    served = 0
    for case, spec in SPECS:
        if spec is not None:
            judged = {name: backend(name).judge(spec) for name in BACKENDS}
            name = min(judged, key=lambda name: (BEST.index(judged[name].verdict), len(judged[name].reasons)))
            served += serves(name, case, spec)
    assert served == 43
