"""Which grammar plugins an engine starts with, and what happens where one cannot be used."""

from types import SimpleNamespace

import pytest
import tokenizers
from grammar_toys import entry
from tiny_tokenizer import byte_level

from rtk.config.load import config_from, load_config
from rtk.config.lock import lock_text
from rtk.errors import ConfigError, ModelError, PluginError
from rtk.grammar.manager import GrammarSettings, default_workers
from rtk.plugin.host import installed
from rtk.plugin.registry import Registry
from rtk.plugin.testing.toys import Choices
from rtk.serve import runtime
from rtk.serve.tokenizer import Tokenizer

CHOICES, OTHER, BROKEN, ABSENT = (
    entry(target, name)[0]
    for target, name in [
        ("rtk.plugin.testing.toys:Choices", "choices"),
        ("rtk.plugin.testing.toys:Choices", "other-one"),
        ("rtk.plugin.testing.toys:nothing", "broken"),
        ("a_package_that_is_not_there:Backend", "absent"),
    ]
)
OTHERS = [entry for entry in installed().all() if entry.plugin.kind != "grammar"]
COMPUTING = SimpleNamespace(vocab_size=200, end_tokens=frozenset({2}))


@pytest.fixture
def start(monkeypatch):
    def starting(*entries, tokenizer=None, **values):
        registry = Registry([*OTHERS, *entries])
        monkeypatch.setattr(runtime, "installed", lambda: registry)
        config = config_from({"grammar": values}, registry)
        return runtime.start_grammars(config, COMPUTING, tokenizer or byte_level(), lambda: None)

    return starting


def test_auto_is_all_that_are_installed(start):
    manager = start(OTHER, CHOICES)
    assert [*manager.backends] == ["choices", "other-one"]
    assert all(isinstance(backend, Choices) for backend in manager.backends.values())
    assert (len(manager.vocabulary.tokens), manager.vocabulary.ends) == (200, {2})
    assert manager.vocabulary.tokens[3 + ord("a")] == b"a"


def test_one_that_is_named_is_the_only_one_and_none_is_none(start):
    assert [*start(OTHER, CHOICES, backend="Other_One").backends] == ["other-one"]
    assert start(OTHER, CHOICES, backend="none") is None
    assert start() is None


def test_one_that_is_not_installed_refuses_the_start(start):
    with pytest.raises(ConfigError, match="unknown grammar plugin 'otter-one'; installed: other-one; did you mean"):
        start(OTHER, backend="otter-one")


def test_one_whose_package_is_not_installed_is_left_out_without_a_warning(start, caplog):
    caplog.set_level("INFO")
    assert [*start(ABSENT, CHOICES).backends] == ["choices"]
    (said,) = [record for record in caplog.records if "'absent'" in record.message]
    assert (said.levelname, said.message.rpartition("; ")[2]) == ("INFO", "it is not used")
    with pytest.raises(PluginError, match="No module named 'a_package_that_is_not_there'; install what it imports"):
        start(ABSENT, backend="absent")


def test_one_that_cannot_be_built_refuses_the_start_where_it_is_named_and_is_left_out_else(start, caplog):
    assert [*start(BROKEN, CHOICES).backends] == ["choices"]
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("grammar plugin 'broken' of rtk-grammar-broken 0.1") and said.endswith("; it is not used")
    assert start(BROKEN) is None
    with pytest.raises(PluginError, match="grammar plugin 'broken'"):
        start(BROKEN, backend="broken")


def test_a_tokenizer_whose_bytes_are_not_known_does_the_same(start, caplog):
    plain = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")))
    caplog.set_level("INFO")
    assert start(CHOICES, tokenizer=plain) is None
    assert (caplog.records[-1].levelname, caplog.records[-1].message) == (
        "INFO",
        "the bytes of this model's tokens are not known: its tokenizer's decoder is none; "
        "there is no structured output",
    )
    with pytest.raises(ModelError):
        start(CHOICES, backend="choices", tokenizer=plain)


def test_the_defaults_are_the_same_everywhere(start):
    assert start(CHOICES)._settings == GrammarSettings()
    assert default_workers() >= 1


def test_every_limit_is_set_by_its_key(start):
    manager = start(
        CHOICES,
        compile_workers=3,
        compile_timeout_s=1.5,
        compile_memory_bytes=4,
        cache_bytes=5,
        max_spec_bytes=6,
        max_queue=7,
    )
    limits = {"workers": 3, "timeout_s": 1.5, "memory_bytes": 4, "cache_bytes": 5, "max_spec_bytes": 6, "max_queue": 7}
    assert manager._settings == GrammarSettings(**limits)
    pool = manager._pool
    (setup,) = pool.setups.values()
    assert (pool._most, pool.limit_s, setup.memory_bytes, setup.result_bytes) == (3, 1.5, 4, 5)
    assert [*pool.setups] == ["choices"]
    assert not pool._threads  # nothing is started before it is needed


def test_the_lock_holds_all_that_auto_may_use():
    registry = Registry([*OTHERS, CHOICES, OTHER])
    found = {
        name: {one for one in ("rtk-grammar-choices", "rtk-grammar-other-one") if one in lock_text(loaded, registry)}
        for name in ("auto", "other-one", "none")
        for loaded in [load_config(registry, {"--grammar": name}, {})]
    }
    assert found == {
        "auto": {"rtk-grammar-choices", "rtk-grammar-other-one"},
        "other-one": {"rtk-grammar-other-one"},
        "none": set(),
    }
