"""Layered loading: who wins, where a value came from, and how a mistake is told."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

import pydantic
import pytest
from pydantic import Field, SecretStr, model_validator

from rtk.config.keys import Key, walk
from rtk.config.load import LoadedConfig, config_from, load_config, load_files
from rtk.config.models import Config
from rtk.config.tree import config_model
from rtk.errors import ConfigError, printable
from rtk.plugin import Options, Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Failure, Origin, Registered, Registry

KEYS = list(walk(config_model(installed())))
EVICTION = ", ".join(installed().names("eviction"))
OTHER_PLUGINS = {
    "eviction.policy": "slru",
    "schedule.policy": "hrrn",
    "attention.backend": "torch",
    "grammar.backend": "none",
}


class Knobs(Options):
    weights: list[float] = Field(default_factory=lambda: [1.0])
    eager: bool = True
    limit: int | None = Field(4, ge=1)
    low: int = 0
    high: int = 9

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        if self.low < 0:
            raise {-1: KeyError, -2: SystemExit}[self.low](f"no such low: {self.low}")
        return self


def extended(*plugins: Plugin, failures: tuple[Failure, ...] = ()) -> Registry:
    """What is installed, and `plugins` from another distribution."""
    origin = Origin("entry", "rtk-extra", "2.0")
    return Registry([*installed().all(), *(Registered(plugin, origin) for plugin in plugins)], failures)


def plugin(name: str = "fast-lru", **about: Any) -> Plugin:
    return Plugin(**({"kind": "eviction", "name": name, "summary": "s", "target": "m:C", "options": Knobs} | about))


def load(flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None, *sets: str) -> LoadedConfig:
    return load_config(installed(), flags or {}, environ or {}, sets)


def refusal(*args: Any, registry: Registry | None = None) -> str:
    """The message that these flags, variables and --set texts are refused with."""
    flags, environ, *sets = (*args, {}, {})[: max(2, len(args))]
    with pytest.raises(ConfigError) as caught:
        load_config(registry or installed(), flags, environ, sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def sample(key: Key) -> tuple[str, Any]:
    """A text that sets `key` to something else than its default, and the value it stands for."""
    kind = key.types[0]
    if key.path in OTHER_PLUGINS:
        return OTHER_PLUGINS[key.path], OTHER_PLUGINS[key.path]
    if get_origin(kind) is Literal:
        return get_args(kind)[-1], get_args(kind)[-1]
    if kind is bool:
        return ("false", False) if key.default else ("true", True)
    if key.path == "observe.plugins":  # none is installed with rtk
        return "[]", ()
    if key.path == "plugins.require":
        return '{"rtk-inference": ">=0"}', {"rtk-inference": ">=0"}
    if key.path == "serve.tenants.limits":
        return '{"acme": {"max_requests": 3}}', {"acme": {"max_requests": 3}}
    if key.path == "serve.dead_after_s":  # not before it is unwell
        return "6.5", 6.5
    if key.path == "serve.cors_origins":
        return '["http://a"]', ("http://a",)
    if get_origin(kind) is tuple:
        return '["a"]', ("a",)
    if get_origin(kind) is dict:
        return '{"a": 3.0}', {"a": 3.0}
    if key.is_secret:
        return "s3cret", SecretStr("s3cret")
    return {int: ("77", 77), float: ("0.25", 0.25), Path: ("/some/folder", Path("/some/folder"))}.get(
        kind, ("cpu", "cpu")
    )


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_key_can_be_set_through_the_environment(key: Key) -> None:
    text, value = sample(key)
    loaded = load({}, {key.variable: text})
    assert key.value(loaded.config) == value
    assert loaded.sources[key.path] == f"variable {key.variable}"


@pytest.mark.parametrize("key", [key for key in KEYS if key.flag], ids=lambda key: key.path)
def test_every_flag_sets_its_key(key: Key) -> None:
    text, value = sample(key)
    loaded = load({str(key.flag): text})
    assert key.value(loaded.config) == value
    assert loaded.sources[key.path] == f"flag {key.flag}"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_key_can_be_set_by_path(key: Key) -> None:
    text, value = sample(key)
    loaded = load({}, {}, f"{key.path.replace('_', '-')}={text}")
    assert key.value(loaded.config) == value
    assert loaded.sources[key.path] == f"--set {key.path}"


FREE_TEXT = {
    *("model.path", "model.served_name", "model.cache_dir", "model.thinking_end"),
    *("serve.host", "serve.admin_api_key", "serve.api_keys"),
    *("serve.tls.cert_file", "serve.tls.key_file", "serve.tls.key_password", "serve.tls.client_ca_file"),
}


@pytest.mark.parametrize("key", [key for key in KEYS if key.path not in FREE_TEXT], ids=lambda key: key.path)
def test_a_bad_value_names_variable_key_value_and_what_is_allowed(key: Key) -> None:
    message = refusal({}, {key.variable: "wr?ng"})
    assert message.startswith(f"{key.path} = 'wr?ng' (variable {key.variable}): ")
    assert "must be" in message or "installed:" in message


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", "on"])
def test_the_ways_to_say_yes(text: str) -> None:
    assert load({}, {"RTK_CACHE__DISABLE": text}).config.cache.disable is True


@pytest.mark.parametrize("text", ["false", "FALSE", "0", "no", "off"])
def test_false_means_false(text: str) -> None:
    assert load({}, {"RTK_CACHE__DISABLE": text}).config.cache.disable is False


def test_null_takes_a_limit_away() -> None:
    registry = extended(plugin())
    loaded = load_config(registry, {}, {"RTK_EVICTION__FAST_LRU__LIMIT": "null"})
    assert loaded.config.eviction.options("fast-lru").limit is None


def test_lists_and_switches_of_plugins_through_the_environment() -> None:
    variables = {"RTK_EVICTION__FAST_LRU__WEIGHTS": "[1, 2.5]", "RTK_EVICTION__FAST_LRU__EAGER": "off"}
    options = load_config(extended(plugin()), {}, variables).config.eviction.options("fast_lru")
    assert isinstance(options, Knobs)
    assert (options.weights, options.eager) == ([1, 2.5], False)


@pytest.mark.parametrize(
    ("text", "reason"), [("1, 2", "must be a JSON array"), ('["a"]', "must be a valid number"), ("{}", "JSON array")]
)
def test_a_bad_list_names_its_variable(text: str, reason: str) -> None:
    message = refusal({}, {"RTK_EVICTION__FAST_LRU__WEIGHTS": text}, registry=extended(plugin()))
    assert message.startswith(f"eviction.fast_lru.weights = {text!r} (variable RTK_EVICTION__FAST_LRU__WEIGHTS): ")
    assert reason in message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, '{"a": ">=1", "a": ">=2"}', '{"a": '])
def test_what_is_no_json_object_is_refused_in_a_line(text: str) -> None:
    message = refusal({}, {"RTK_PLUGINS__REQUIRE": text})
    shown = repr(text) if len(text) < 200 else f"{repr(text)[:200]}…"
    assert message == f"plugins.require = {shown} (variable RTK_PLUGINS__REQUIRE): must be a JSON object"


def test_a_home_folder_that_there_is_not_is_refused() -> None:
    message = refusal({"--cache-dir": "~nobody-here/x"})
    assert message.startswith("model.cache_dir = '~nobody-here/x' (flag --cache-dir): must be a path; there is no home")


@pytest.mark.parametrize("text", ["a\udcff", "a\0b"])
def test_text_that_nothing_can_hold_is_refused(text: str) -> None:
    assert refusal({"--cache-dir": text}) == printable(
        f"model.cache_dir = {text!r} (flag --cache-dir): must be text without NUL, of characters that UTF-8 has"
    )


@pytest.mark.parametrize(
    ("item", "meant"),
    [
        ("serve.admin_api_key:s3cret==", "serve.admin_api_key"),
        ("serve.admin_api_key s3cret=", "serve.admin_api_key"),
        ("serve.api_key=s3cret", "serve.api_keys"),
    ],
)
def test_a_secret_that_became_part_of_a_key_is_not_shown(item: str, meant: str) -> None:
    message = refusal({}, {}, item)
    assert "s3cret" not in message
    assert message.endswith(f"did you mean {meant}?")


def test_a_bad_option_of_a_strangers_plugin_is_told_with_whose_it_is() -> None:
    wrong = ("eviction.fast_lru.limit=0", "eviction.slru.protect_after_hits=0")
    assert refusal({}, {}, *wrong, registry=extended(plugin())) == (
        "eviction.fast_lru.limit = '0' (--set eviction.fast_lru.limit): must be an integer from 1 up, or null; "
        "options of rtk-extra 2.0; "
        "eviction.slru.protect_after_hits = '0' (--set eviction.slru.protect_after_hits): must be an integer from 1 up"
    )


def test_flag_wins_over_environment_wins_over_default() -> None:
    path, variable, flag = "schedule.max_prefill_tokens", "RTK_SCHEDULE__MAX_PREFILL_TOKENS", "--max-prefill-tokens"
    both = load({flag: "256"}, {variable: "128"})
    assert (both.config.schedule.max_prefill_tokens, both.sources[path]) == (256, f"flag {flag}")
    without_flag = load({}, {variable: "128"})
    assert (without_flag.config.schedule.max_prefill_tokens, without_flag.sources[path]) == (
        128,
        f"variable {variable}",
    )
    neither = load()
    assert (neither.config.schedule.max_prefill_tokens, neither.sources[path]) == (16384, "default")


def test_a_losing_value_is_not_held_against_anybody() -> None:
    assert load({"--page-size": "4"}, {"RTK_CACHE__PAGE_SIZE": "wrong"}).config.cache.page_size == 4


@pytest.mark.parametrize("variable", ["RTK_SCHEDULE__MAX_PREFILL_TOKENS", "RTK_NO_SUCH_THING"])
def test_an_empty_variable_counts_as_absent(variable: str) -> None:
    loaded = load({}, {variable: ""})
    assert loaded.config == load().config
    assert set(loaded.sources.values()) == {"default"}


@pytest.mark.parametrize(
    "variable",
    [
        "RTK_CACHE_PAGE_SIZE",
        "RTK_CACHE__PAGE_SISE",
        "RTK__CACHE__PAGE_SIZE",
        "RTK_PAGE_SIZE",
        "RTKI_CACHE__PAGE_SIZE",
        "rtk_cache__page_size",
    ],
)
def test_a_misspelt_variable_or_prefix_is_unknown(variable: str) -> None:
    assert refusal({}, {variable: "4"}) == f"unknown variable {variable}; did you mean RTK_CACHE__PAGE_SIZE?"


@pytest.mark.parametrize("variable", ["PATH", "CACHE__PAGE_SIZE", "MYAPP_CACHE__PAGE_SIZE", "RTKLIB_HOME"])
def test_variables_of_others_are_left_alone(variable: str) -> None:
    assert load({}, {variable: "4"}).config == load().config


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("scheduling_polcy=lpm", "unknown key 'scheduling_polcy'; did you mean schedule.policy?"),
        ("cache.page_sise=16", "unknown key 'cache.page_sise'; did you mean cache.page_size?"),
        ("eviction.slru.protect=1", "did you mean eviction.slru.protect_after_hits?"),
        ("cache=1", "it is a section with the keys cache.disable, cache.page_size"),
        ("eviction.slur.protect_after_hits=1", f"unknown eviction plugin 'slur'; installed: {EVICTION}; did you mean"),
        ("cache.page_size", "has no value; write --set key=value"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(item: str, message: str) -> None:
    assert refusal({}, {}, item).startswith(f"--set {item.partition('=')[0]}: ")  # the value might be secret
    assert message in refusal({}, {}, item)


@pytest.mark.parametrize("key", ["", "two words", "trailing\n", "schlüssel"])
def test_a_secret_is_shown_nowhere(key: str) -> None:
    path, reason = "serve.admin_api_key", "must be printable ASCII characters without spaces, which a header can carry"
    if key:
        shown = f"{path} = '**********' (variable RTK_SERVE__ADMIN_API_KEY): {reason}"
        assert refusal({}, {"RTK_SERVE__ADMIN_API_KEY": key}) == shown
    message = refusal({"--admin-api-key": key}, {}, f"{path}={key}", f"serve.admin_api_kee={key}", "cache.page_size=0")
    assert refusal({}, {}, f"{path}:{key}") == f"--set {path}…: has no value; write --set key=value"
    assert f"{path} = '**********' (--set {path}): must be" in message
    with pytest.raises(ConfigError) as caught:
        config_from({path: key or 7})
    assert not key or key not in message + str(caught.value)


def test_nor_is_one_that_works() -> None:
    loaded = load({}, {"RTK_SERVE__ADMIN_API_KEY": "s3cret"})
    config = loaded.config
    assert config.serve.admin_api_key is not None
    assert config.serve.admin_api_key.get_secret_value() == "s3cret"
    for text in (repr(loaded), config.model_dump_json(), str(config.model_dump(mode="json", by_alias=True))):
        assert "s3cret" not in text
        assert "**********" in text


def test_an_unknown_flag_is_refused_with_the_nearest_name() -> None:
    assert refusal({"--page-sise": "1"}) == "unknown flag --page-sise; did you mean --page-size?"


def test_every_problem_is_listed_in_one_line() -> None:
    message = refusal(
        {"--page-size": "0", "--eviction": "lur"},
        {"RTK_SERVE__PORT": "70000", "RTK_FOO": "1"},
        "model.dtype=int3",
        "nonsense.key=1",
    )
    for part in (
        "cache.page_size = '0' (flag --page-size): must be an integer from 1 to 2147483647, or null",
        f"eviction.policy = 'lur' (flag --eviction): unknown eviction plugin 'lur'; installed: {EVICTION}; ",
        "serve.port = '70000' (variable RTK_SERVE__PORT): must be an integer from 0 to 65535",
        "unknown variable RTK_FOO",
        "model.dtype = 'int3' (--set model.dtype): must be one of auto, float32, bfloat16, float16",
        "--set nonsense.key: unknown key 'nonsense.key'",
    ):
        assert part in message


def test_one_key_given_twice_on_a_command_line_is_refused() -> None:
    message = refusal({"--page-size": "4"}, {}, "cache.page_size=8")
    assert message == "cache.page_size is given twice: flag --page-size and --set cache.page_size; drop one"


def test_a_policy_that_needs_the_cache_is_refused_without_it() -> None:
    message = refusal({"--schedule": "hrrn"}, {"RTK_CACHE__DISABLE": "true"})
    assert message.startswith("schedule.policy = 'hrrn' (flag --schedule): requires prefix_match ")
    assert "cache.disable = true (variable RTK_CACHE__DISABLE) switches off" in message


def test_a_policy_that_needs_the_cache_is_fine_with_it() -> None:
    assert load({"--schedule": "hrrn"}).config.schedule.policy == "hrrn"


def test_installing_a_plugin_changes_nothing_until_it_is_named() -> None:
    before = load_config(installed(), {}, {}).config.model_dump(by_alias=True)
    after = load_config(extended(plugin(), plugin("worst", kind="schedule")), {}, {}).config.model_dump(by_alias=True)
    assert after["eviction"].pop("fast_lru") == Knobs().model_dump()
    assert after["schedule"].pop("worst") == Knobs().model_dump()
    assert after == before


def test_an_unasked_broken_plugin_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    broken = Failure(Origin("eviction-bad", "rtk-bad", "0.3"), "ImportError: no module named x")
    with caplog.at_level(logging.WARNING):
        load_config(extended(failures=(broken,)), {}, {})
    assert caplog.messages == [
        "plugin rtk-bad 0.3 (entry point 'eviction-bad') is not available: ImportError: no module named x"
    ]


def test_a_broken_plugin_that_is_asked_for_is_fatal() -> None:
    broken = Failure(Origin("eviction-bad", "rtk-bad", "0.3"), "ImportError: no module named x")
    message = refusal({"--eviction": "bad"}, registry=extended(failures=(broken,)))
    assert message == (
        "eviction.policy = 'bad' (flag --eviction): eviction plugin 'bad' of rtk-bad 0.3 (entry point 'eviction-bad') "
        "cannot be used: ImportError: no module named x"
    )


def test_a_plugin_that_nobody_has_is_refused_beside_what_failed() -> None:
    broken = Failure(Origin("eviction-bad", "rtk-bad", "0.3"), "ImportError: no module named x")
    message = refusal({"--eviction": "good"}, registry=extended(failures=(broken,)))
    assert f"unknown eviction plugin 'good'; installed: {EVICTION}; " in message
    assert "rtk-bad 0.3 (entry point 'eviction-bad') failed to load: ImportError: no module named x" in message


@pytest.mark.parametrize("written", ["fast-lru", "fast_lru", "FAST-LRU"])
def test_dashes_and_underscores_are_alike_in_plugin_names(written: str) -> None:
    config = load_config(extended(plugin()), {"--eviction": written}, {}).config
    assert config.eviction.policy == "fast-lru"
    assert config.eviction.options() == config.eviction.options("fast_lru") == Knobs()


def test_options_of_a_plugin_that_do_not_go_together() -> None:
    message = refusal(
        {}, {}, "eviction.fast-lru.low=5", "eviction.fast-lru.high=3", "cache.page_size=0", registry=extended(plugin())
    )
    assert "eviction.fast_lru: low must not be above high" in message
    assert "cache.page_size = '0'" in message


@pytest.mark.parametrize(("low", "error"), [(-1, "KeyError: 'no such low: -1'"), (-2, "SystemExit: no such low: -2")])
def test_options_whose_validation_fails_are_refused(tmp_path: Path, low: int, error: str) -> None:
    registry = extended(plugin())
    why = (
        f"eviction plugin 'fast-lru' of rtk-extra 2.0 (entry point 'entry') fails at these: {error}; "
        "change them, or tell its authors, or do without it"
    )
    set_low = f"eviction.fast_lru.low={low}"
    assert refusal({}, {}, set_low, "cache.page_size=0", registry=registry) == (
        "cache.page_size = '0' (--set cache.page_size): must be an integer from 1 to 2147483647, or null; "
        f"eviction.fast_lru: {why} (--set eviction.fast_lru.low)"
    )
    file = tmp_path / "a.toml"
    file.write_text(f"[eviction]\nfast_lru.low = {low}\n")
    with pytest.raises(ConfigError) as caught:
        load_files(registry, [file])
    assert str(caught.value) == f"{file}:2: eviction.fast_lru: {why} ({file}:2)"


def test_a_plugin_named_like_a_key_of_ours_cannot_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    registry = extended(plugin("max-running", kind="schedule"))
    label = "schedule plugin 'max-running' of rtk-extra 2.0 (entry point 'entry')"
    why = "schedule.max_running is a key of rtk's own; its authors must rename it"
    assert load_config(registry, {}, {}).config.schedule.policy == "fcfs"
    assert caplog.messages == [f"{label} is not available: {why}"]
    message = refusal({"--schedule": "max-running"}, registry=registry)
    assert message == f"schedule.policy = 'max-running' (flag --schedule): {label} cannot be used: {why}"
    strict = refusal({"--strict-plugins": "true"}, registry=registry)
    assert strict == f"plugins.strict = 'true' (flag --strict-plugins): {label} is not available: {why}"


def test_strict_about_plugins_refuses_what_is_else_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    broken = [Failure(Origin(f"e{i}", f"rtk-bad{i}", "0.3"), f"ImportError: {i}; uninstall rtk-bad{i}") for i in (1, 2)]
    with pytest.raises(ConfigError) as caught:
        config_from({"plugins.strict": True}, extended(failures=tuple(broken)))
    given = "plugins.strict = True (argument plugins.strict): plugin"
    assert caught.value.problems == (
        f"{given} rtk-bad1 0.3 (entry point 'e1') is not available: ImportError: 1; uninstall rtk-bad1",
        f"{given} rtk-bad2 0.3 (entry point 'e2') is not available: ImportError: 2; uninstall rtk-bad2",
    )
    assert caplog.messages == []
    assert config_from({"plugins.strict": True}, extended(plugin())).plugins.strict is True


@pytest.mark.parametrize(
    "values", [{"cache": {"page_size": 16}}, {"cache.page_size": 16}, {"cache": {"page-size": "16"}}]
)
def test_python_values_nested_or_dotted(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_CACHE__PAGE_SIZE", "4")
    assert config_from(values).cache.page_size == 16


def test_python_values_reach_the_options_of_plugins() -> None:
    config = config_from({"eviction": {"policy": "slru", "slru": {"protect_after_hits": 5}}})
    assert config.eviction.options("slru").model_dump() == {"protect_after_hits": 5}
    assert config.eviction.options() == config.eviction.options("slru")


def test_a_configuration_can_be_built_again_from_what_it_holds() -> None:
    config = load({"--eviction": "slru", "--page-size": "4"}, {}, "eviction.slru.protect_after_hits=9").config
    assert config_from(config.model_dump(mode="json", by_alias=True)) == config


def test_python_values_are_refused_like_others() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from({"cache": {"page_size": 0}, "model": "tiny", "colour": {}})
    assert "cache.page_size = 0 (argument cache.page_size): must be an integer from 1 to 2147483647, or null" in str(
        caught.value
    )
    assert "configuration: unknown key 'model'; it is a section with the keys model.path" in str(caught.value)
    assert "unknown key 'colour'" in str(caught.value)


def test_a_configuration_is_frozen() -> None:
    config = config_from({})
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.cache.page_size = 2  # type: ignore[misc]


def test_a_configuration_made_by_hand_says_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"holds no options of eviction plugin 'slru'.*config_from"):
        Config().eviction.options("slru")


def test_rows_list_every_key_in_the_order_of_the_tree() -> None:
    rows = list(load({"--page-size": "4"}).rows())
    assert [key.path for key, _, _ in rows] == [key.path for key in KEYS]
    assert ("cache.page_size", 4, "flag --page-size") in [(key.path, value, source) for key, value, source in rows]


def test_a_home_folder_is_expanded() -> None:
    assert load({}, {"RTK_MODEL__CACHE_DIR": "~/models"}).config.model.cache_dir == Path.home() / "models"
