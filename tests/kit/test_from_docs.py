"""`from_docs/`: a package of every kind, by authors who had the documentation and an installed rtk, and no source.

They say whether the pages are enough. Built as wheels, and used through the command where rtk has no source tree.
"""

import json

import pytest
from workshop import ROOT, passed

from rtk import Engine
from rtk.plugin.info import KINDS
from rtk.plugin.testing import suite

FOLDER = ROOT / "tests/kit/from_docs"
PACKAGES = {
    "attention": "loops",
    "eviction": "twoq",
    "grammar": "words",
    "observer": "jsonl",
    "schedule": "slack",
    "storage": "folder",
}


@pytest.fixture(scope="module")
def packages(workshop):
    """The folders by kind, installed."""
    folders = {kind: FOLDER / f"rtk-{kind}-{name}" for kind, name in PACKAGES.items()}
    workshop.install(*folders.values())
    return folders


def test_there_is_one_of_every_kind():
    assert sorted(PACKAGES) == sorted(KINDS)
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"rtk-{k}-{n}" for k, n in PACKAGES.items())


@pytest.mark.parametrize("kind", PACKAGES)
def test_it_passes_its_tests_and_the_contract(workshop, packages, kind):
    assert passed(workshop.pytest("-W", "error", cwd=packages[kind])) > len(suite(kind))


def test_they_are_listed_by_distribution(workshop, packages):
    listed = {
        (entry["kind"], entry["name"]): entry["distribution"]
        for entry in json.loads(workshop.run("rtk", "plugins", "list", "--json"))["plugins"]
    }
    assert {key: listed[key] for key in PACKAGES.items()} == {
        (kind, name): f"rtk-{kind}-{name}" for kind, name in PACKAGES.items()
    }


def test_an_answer_is_the_same_with_all_of_them(workshop, packages, zoo, tmp_path):
    """A tiny random model with a tokenizer of one token a word."""
    folder = zoo.folder("llama")
    words = {f"w{i}": i for i in range(99)}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}
    tokenizer |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Engine({"model.path": str(folder), "cache.pool_tokens": 64}) as engine:
        wanted = engine.generate("w1 w2 w3", {"max_new_tokens": 6, "temperature": 0}).text
    flags = ["--model", str(folder), "--pool-tokens", "64", "--attention", "loops", "--eviction", "twoq"]
    flags += ["--schedule", "slack", "--observe", '["jsonl"]', "--set", f"observe.jsonl.path={tmp_path / 'log'}"]
    assert workshop.run("rtk", "generate", "w1 w2 w3", "--raw", "--max-tokens", "6", *flags) == f"{wanted}\n"
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["output_tokens"] == 6
