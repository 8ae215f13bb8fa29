"""The benchmark of structured output at a tiny size: what it counts is exact; what it times is not looked at."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from rtk.grammar.schema import normalise
from rtk.plugin.grammar import Spec, Vocabulary


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # as for a script that lies there
    try:
        names = ("cost", "jump", "load", "specs")
        return SimpleNamespace(**{name: importlib.import_module(f"grammar_{name}") for name in names})
    finally:
        sys.path.pop(0)


class Letters:
    """Bytes as tokens."""

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens, "a document begins in the middle of an answer"
        return list(text.encode())


VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), frozenset({256}))


def test_documents_are_valid(bench):
    for schema, document in bench.specs.REAL.values():
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    assert list(bench.specs.REAL) == ["invoice", "person", "tool call", "weather report", "ten long keys"]


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_masks_are_filled_along_whole_documents(bench, name):
    backend = bench.cost.backends({})[name]
    figures = bench.cost.fill(backend, Letters(), VOCABULARY)
    assert set(figures) == {"first", "first_p90", "again", "again_p90", "longest", "accept"}
    assert figures["longest"] >= figures["again_p90"] >= figures["again"] > 0


def test_hard_schemas_differ_and_are_what_they_are_said_to_be(bench):
    backends = bench.cost.backends({})

    def served(text):
        spec = Spec("json_schema", normalise(text).text)
        return any(backend.judge(spec).verdict != "refused" for backend in backends.values())

    large, beyond = bench.specs.large(50), bench.specs.beyond(50)
    assert (len(set(large)), len(set(beyond)), len(set(bench.specs.endless(10)))) == (50, 50, 10)
    assert [served(text) for text in large[:4]] == [True] * 4
    assert not served(beyond[0])
    assert len(json.loads(beyond[0])["properties"]) == 150


def test_rates_and_gaps_are_of_their_spans(bench):
    times = [[0.0, 1.0, 2.0, 5.0, 6.0], [0.5, 1.5, 2.5]]
    assert bench.load.rate(times, 1.0, 3.0) == 2.0
    assert bench.load.longest_gap(times, 0.0, 2.0) == 1.0
    assert bench.load.longest_gap(times, 3.0, 4.0) == 3.0


def test_steps_are_counted_and_answers_compared(bench, monkeypatch, capsys):
    class Toy:
        """Takes half the steps with jump-forward."""

        def __init__(self, config):
            self.steps, self.pace = 0, 2 if config["grammar.jump_forward"] else 1

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def generate(self, prompt, params):
            self.steps += 8 // self.pace
            return SimpleNamespace(token_ids=(1, 2), text="{}")

        def stats(self):
            return {"steps": self.steps}

    monkeypatch.setattr(bench.jump, "Engine", Toy)
    out = bench.jump.measure({}, ["person"])
    assert (out["person"]["off"]["steps"], out["person"]["on"]["steps"]) == (8, 4)
    assert (out["person"]["fewer"], out["person"]["same"]) == (2.0, True)
    assert "| person | 2 | 8 | 4 | 2.00 |" in capsys.readouterr().out
