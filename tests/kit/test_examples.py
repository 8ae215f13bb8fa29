"""The packages of examples/: built as wheels, installed where there is no source tree, and used through the command."""

import json

import pytest
from workshop import ROOT, passed

from rtk import Engine
from rtk.plugin.testing import suite

PACKAGES = {"eviction": "gdsf", "schedule": "edf"}


@pytest.fixture(scope="module")
def examples(workshop):
    """The folders by kind, installed."""
    folders = {kind: ROOT / "examples" / f"rtk-{kind}-{name}" for kind, name in PACKAGES.items()}
    workshop.install(*folders.values())
    return folders


@pytest.mark.parametrize("kind", PACKAGES)
def test_an_example_passes_its_tests(workshop, examples, kind):
    assert passed(workshop.pytest("-W", "error", cwd=examples[kind])) > 2 * len(suite(kind))


def test_they_are_listed_by_distribution(workshop, examples):
    listed = {entry["name"]: entry for entry in json.loads(workshop.run("rtk", "plugins", "list", "--json"))["plugins"]}
    assert (listed["gdsf"]["distribution"], listed["gdsf"]["version"]) == ("rtk-eviction-gdsf", "1.2")
    assert (listed["edf"]["distribution"], listed["edf"]["version"]) == ("rtk-schedule-edf", "1.0")
    assert listed["lru"]["distribution"] == "rtk-inference"


def test_installing_them_changes_nothing_until_they_are_named(workshop, examples):
    lines = workshop.run("rtk", "config", "show").splitlines()
    assert {"eviction.policy = lru", "schedule.policy = fcfs", "eviction.gdsf.attention_tokens = 4096"} <= set(lines)
    flags = ["--eviction", "gdsf", "--schedule", "edf", "--set", "schedule.edf.default_s=60"]
    lines = workshop.run("rtk", "config", "show", "--sources", *flags).splitlines()
    assert "eviction.policy = gdsf  # flag --eviction" in lines
    assert "schedule.edf.default_s = 60.0  # --set schedule.edf.default_s" in lines


def test_options_of_an_example_are_checked(workshop, examples):
    said = workshop.run("rtk", "config", "show", "--set", "eviction.gdsf.attention_tokens=0", code=1)
    assert (
        "eviction.gdsf.attention_tokens = '0' (--set eviction.gdsf.attention_tokens): must be an integer from 1" in said
    )
    assert "did you mean eviction.gdsf.attention_tokens?" in workshop.run(
        "rtk", "config", "show", "--set", "eviction.gdsf.atention_tokens=3", code=1
    )


def test_a_model_is_served_under_both(workshop, examples, zoo):
    """A tiny random model with a tokenizer of one token a word; the same answer as under the built-in policies."""
    folder = zoo.folder("llama")
    words = {f"w{i}": i for i in range(99)}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}
    tokenizer |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"model.path": str(folder), "cache.pool_tokens": 64}
    with Engine(settings) as engine:
        wanted = engine.generate("w1 w2 w3", {"max_new_tokens": 6, "temperature": 0}).text
    assert len(wanted.split()) == 6
    flags = ["--model", str(folder), "--pool-tokens", "64", "--eviction", "gdsf", "--schedule", "edf"]
    flags += ["--grammar", "none"]  # which knows no such tokenizer
    assert workshop.run("rtk", "generate", "w1 w2 w3", "--raw", "--max-tokens", "6", *flags) == f"{wanted}\n"
