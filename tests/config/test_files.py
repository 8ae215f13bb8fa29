"""Configuration files: who wins, where each value came from, and what is refused with file and line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import typer
from pydantic import Field, SecretStr, field_validator, model_validator
from typer.testing import CliRunner

from rtk.config import moved as moves
from rtk.config.load import LoadedConfig, load_config, load_files
from rtk.config.moved import Moved
from rtk.errors import ConfigError
from rtk.plugin import Options, Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Failure, Origin, Registered, Registry
from rtk_cli.options import with_config

Write = Callable[..., Path]


class Knobs(Options):
    """The validators quote what they are given, as those of strangers do."""

    low: int = 0
    high: int = 9
    token: SecretStr | None = None
    tokens: list[SecretStr] = Field(default_factory=list)
    weights: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            told = "" if self.token is None else f" with {self.token.get_secret_value()}"
            raise ValueError(f"low must not be above high{told}")
        return self

    @field_validator("token", mode="before")
    @classmethod
    def _long(cls, token: Any) -> Any:
        if token == "s3cret-1":
            raise ValueError(f"{token} is too short")
        if str(token).endswith("cret-2"):
            raise KeyError(token)
        return token


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the current folder, so that messages are short."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "rtk.toml") -> Path:
        Path(name).write_text(text, encoding="utf-8")
        return Path(name)

    return write


def with_knobs(*, failures: tuple[Failure, ...] = ()) -> Registry:
    described = Plugin(kind="eviction", name="fast-lru", summary="s", target="m:C", options=Knobs)
    return Registry([*installed().all(), Registered(described, Origin("e", "rtk-extra", "2.0"))], failures)


def problems(*files: Path, registry: Registry | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_files(registry or installed(), files)
    return list(caught.value.problems)


def load(*files: Path, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> LoadedConfig:
    return load_config(installed(), flags or {}, environ or {}, (), files)


TOML = """
[schedule]
policy = "hrrn"
max-prefill-tokens = 64
[eviction]
policy = "slru"
[eviction.slru]
protect_after_hits = 3
[schedule.hrrn]
# nothing of its own
"""
YAML = """
schedule:
  policy: hrrn
  max-prefill-tokens: 64
eviction:
  policy: slru
  slru: {protect_after_hits: 3}
schedule.hrrn:
"""


@pytest.mark.parametrize(("text", "name", "lines"), [(TOML, "a.toml", (3, 8)), (YAML, "a.yaml", (3, 7))])
def test_both_formats_say_the_same(write: Write, text: str, name: str, lines: tuple[int, int]) -> None:
    loaded = load(write(text, name))
    assert loaded.config.schedule.policy == "hrrn"
    assert loaded.config.eviction.options().model_dump() == {"protect_after_hits": 3}
    assert loaded.sources["schedule.policy"] == f"{name}:{lines[0]}"
    assert loaded.sources["schedule.max_prefill_tokens"] == f"{name}:{lines[0] + 1}"
    assert loaded.sources["eviction.slru.protect_after_hits"] == f"{name}:{lines[1]}"
    assert loaded.sources["cache.page_size"] == "default"


def test_line_over_environment_over_file_over_default(write: Write) -> None:
    key, file = "schedule.max_prefill_tokens", write("[schedule]\nmax_prefill_tokens = 64\n")
    flags, environ = {"--max-prefill-tokens": "256"}, {"RTK_SCHEDULE__MAX_PREFILL_TOKENS": "128"}

    def found(loaded: LoadedConfig) -> tuple[int, str]:
        return loaded.config.schedule.max_prefill_tokens, loaded.sources[key]

    assert found(load(file, flags=flags, environ=environ)) == (256, "flag --max-prefill-tokens")
    assert found(load(file, environ=environ)) == (128, "variable RTK_SCHEDULE__MAX_PREFILL_TOKENS")
    assert found(load(file, environ=dict.fromkeys(environ, ""))) == (64, "rtk.toml:2")
    assert found(load(write(""))) == (16384, "default")


def test_later_files_win(write: Write) -> None:
    first = write("[serve]\nport = 1\nhost = 'a'\n", "a.toml")
    second = write("serve:\n  port: 2\n", "b.yml")
    both = load(first, second)
    assert (both.config.serve.port, both.sources["serve.port"]) == (2, "b.yml:2")
    assert (both.config.serve.host, both.sources["serve.host"]) == ("a", "a.toml:3")
    assert load(second, first).sources["serve.port"] == "a.toml:2"


def test_options_of_several_policies_may_be_there_at_once(write: Write) -> None:
    config = load(write("[eviction.slru]\nprotect_after_hits = 4\n[schedule.lpm]\nfallback_above = 9\n")).config
    assert (config.eviction.policy, config.schedule.policy) == ("lru", "fcfs")
    assert config.eviction.options("slru").model_dump()["protect_after_hits"] == 4
    assert config.schedule.options("lpm").model_dump()["fallback_above"] == 9


def test_every_problem_is_told_at_once_with_file_and_line(write: Write) -> None:
    file = write(
        "scheduling_polcy = 'lpm'\n"
        "[cache]\n"
        "page_sise = 16\n"
        "page_size = 0\n"
        "[schedul]\n"
        "policy = 'lpm'\n"
        "[serve]\n"
        "port = 70000\n"
    )
    assert sorted(problems(file)) == [
        "rtk.toml:1: unknown key 'scheduling_polcy'; did you mean schedule.policy?",
        "rtk.toml:3: unknown key 'cache.page_sise'; did you mean cache.page_size?",
        "rtk.toml:4: cache.page_size = 0: must be an integer from 1 to 2147483647, or null",
        "rtk.toml:5: unknown key 'schedul'; did you mean schedule?",
        "rtk.toml:8: serve.port = 70000: must be an integer from 0 to 65535",
    ]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("cache: {page_size: 1e3}", "cache.page_size = 1000.0: must be an integer from 1 to 2147483647, or null"),
        ("cache: {page_size: '16'}", "cache.page_size = '16': must be an integer from 1 to 2147483647, or null"),
        ("cache: {page_size: true}", "cache.page_size = true: must be an integer from 1 to 2147483647, or null"),
        ("cache: {page_size: [16]}", "cache.page_size = [16]: must be an integer from 1 to 2147483647, or null"),
        ("schedule: {max_running: null}", "schedule.max_running = null: must be an integer from 1 to 2147483647"),
        ("cache: {disable: yes}", "cache.disable = 'yes': must be true or false"),
        ("observe: {plugins: x}", "observe.plugins = 'x': must be a list"),
        ("plugins: {require: [x]}", 'plugins.require = ["x"]: must be a mapping'),
        ("cache: {disable: 1}", "cache.disable = 1: must be true or false"),
        ("serve: {host: 1}", "serve.host = 1: must be text that is not empty"),
        ("model: {served_name: 12:30, path: 5}", "model.path = 5: must be text that is not empty"),
        ("schedule: {policy: off}", "schedule.policy = 'off': unknown schedule plugin 'off'; installed: "),
        ("schedule: {policy: 5}", "schedule.policy = 5: must be text"),
    ],
)
def test_a_value_of_another_type_is_not_turned_into_the_right_one(write: Write, line: str, allowed: str) -> None:
    (problem,) = problems(write(f"\n{line}\n", "a.yaml"))
    assert problem.startswith(f"a.yaml:2: {allowed}")


@pytest.mark.parametrize(
    ("text", "name"), [("[cache]\npool_tokens = 'null'\n", "b.toml"), ("cache: {pool_tokens: null}", "b.yaml")]
)
def test_null_takes_back_what_a_file_below_says(write: Write, text: str, name: str) -> None:
    below = write("[cache]\npool_tokens = 500\n")
    assert load(below).config.cache.pool_tokens == 500
    assert load(below, write(text, name)).config.cache.pool_tokens is None


def test_an_integer_is_a_number(write: Write) -> None:
    assert load(write("[schedule]\nconservativeness = 2\n")).config.schedule.conservativeness == 2.0


def test_paths_are_texts(write: Write) -> None:
    assert load(write("[model]\ncache_dir = '/x'\n")).config.model.cache_dir == Path("/x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cache = 5\n", "rtk.toml:1: cache: it is a section with the keys cache.disable, cache.page_size, "),
        ("[cache.page_size]\nx = 1\n", 'rtk.toml:1: cache.page_size = {"x": 1}: must be an integer from 1 to '),
        ("[eviction.polcy]\nx = 1\n", "rtk.toml:1: unknown key 'eviction.polcy'; unknown eviction plugin 'polcy'; "),
        ("[eviction.slur]\n\nx = 1\n", "rtk.toml:1: unknown key 'eviction.slur'; unknown eviction plugin 'slur'; "),
        ("[eviction]\npolcy = 'slru'\n", "rtk.toml:2: unknown key 'eviction.polcy'; did you mean eviction.policy?"),
        ("[eviction.slru]\nhits = 1\n", "rtk.toml:2: unknown key 'eviction.slru.hits'; "),
        ("[a.b.c]\nd = 1\n", "rtk.toml:1: unknown key 'a'; see 'rtk config show'"),
        (
            "[cache]\npage_size = 1\npage-size = 2\n",
            "rtk.toml:3: cache.page_size: is given twice: rtk.toml:2 and rtk.toml:3; ",
        ),
        ("version = 2\n", "rtk.toml:1: version = 2: this rtk reads files of the versions 1 to 1; "),
        ("version = '1'\n", "rtk.toml:1: version = '1': this rtk reads files of the versions 1 to 1; "),
        ("[observe]\nplugins = ['a', 1]\n", 'rtk.toml:2: observe.plugins = ["a", 1]: item 2: must be a valid string'),
        (
            "[model]\ncache_dir = '~nobody-here/x'\n",
            "rtk.toml:2: model.cache_dir = '~nobody-here/x': must be a path; there is ",
        ),
        (
            "[plugins]\nrequire = {'a b' = ''}\n",
            "rtk.toml:2: plugins.require.a b = '': the key 'a b' must be the name of a package, ",
        ),
        ("version = true\n", "rtk.toml:1: version = true: this rtk reads files of the versions 1 to 1; "),
        ("[cache]\npage_size = \n", "rtk.toml:2: is not valid TOML: Invalid value"),
    ],
)
def test_what_cannot_be_used_is_refused(write: Write, text: str, problem: str) -> None:
    (found,) = problems(write(text))
    assert found.startswith(problem)


def test_options_of_a_policy_that_is_not_there_say_what_failed_to_load(write: Write) -> None:
    broken = Failure(Origin("gdsf", "rtk-eviction-gdsf", "1.2"), "ImportError: no module named x")
    file = write("[eviction]\npolicy = 'gdsf'\n[eviction.gdsf]\nx = 1\n")
    unknown, chosen = problems(file, registry=with_knobs(failures=(broken,)))
    problem = "eviction plugin 'gdsf' of rtk-eviction-gdsf 1.2 (entry point 'gdsf') cannot be used: ImportError: "
    assert unknown == f"rtk.toml:3: unknown key 'eviction.gdsf'; {problem}no module named x"
    assert chosen == f"rtk.toml:2: eviction.policy = 'gdsf': {problem}no module named x"


def test_options_are_validated_by_the_plugins_own_model(write: Write) -> None:
    registry = with_knobs()
    file = write("[eviction.fast_lru]\nlow = 5\nhigh = 3\n")
    assert problems(file, registry=registry) == [
        "rtk.toml:2: eviction.fast_lru: low must not be above high (rtk.toml:2, rtk.toml:3); options of rtk-extra 2.0"
    ]
    file = write("[eviction.fast-lru.weights]\na = 1\n\nb = 'x'\nc = 'y'\n")
    assert problems(file, registry=registry) == [
        "rtk.toml:4: eviction.fast_lru.weights.b = 'x': must be a valid number; options of rtk-extra 2.0",
        "rtk.toml:5: eviction.fast_lru.weights.c = 'y': must be a valid number; options of rtk-extra 2.0",
    ]


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (None, "no.toml", "no.toml: cannot be read: No such file or directory"),
        (b"", "rtk.json", "rtk.json: a configuration file's name ends in .toml, .yaml, .yml"),
        (b"a = \xff", "a.toml", "a.toml:1: is not UTF-8: byte 4"),
        (b"#" * (1024 * 1024) + b"\xff", "a.toml", "a.toml: is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read(write: Write, content: bytes | None, name: str, problem: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert problems(Path(name)) == [problem]


@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_what_never_ends_is_not_read(write: Write, target: str) -> None:
    os.mkfifo("pipe")
    Path("rtk.toml").symlink_to(target)
    assert problems(Path("rtk.toml")) == ["rtk.toml: cannot be read: it is no regular file"]


@pytest.mark.parametrize("name", ["a.toml", "a.yaml"])
@pytest.mark.parametrize("number", ["0x" + "f" * 9999, "0o" + "7" * 9999, "9" * 4000])
def test_numbers_have_an_end(write: Write, name: str, number: str) -> None:
    key = "[serve]\nlist = [\n{}]\n" if name == "a.toml" else "serve:\n  list:\n    - {}\n"
    assert problems(write(key.format(number), name)) == [f"{name}:2: has a number that is too large"]


@pytest.mark.parametrize("text", ["a = " + "[" * 200 + "]" * 200, ".".join("a" * 200) + " = 1"])
def test_toml_has_as_many_levels_as_yaml(write: Write, text: str) -> None:
    assert problems(write(text)) == ["rtk.toml: is nested too deeply"]


UNFIT = "must be text without NUL, of characters that UTF-8 has"


def test_text_that_nothing_can_hold_is_refused_beside_the_rest(write: Write) -> None:
    file = write(
        'model: {cache_dir: "\\ud800", path: "a\\0"}\ncache: {page_size: "16"}\nplugins: {require: {"\\ud800": ""}}\n',
        "a.yaml",
    )
    assert problems(file) == [
        f"a.yaml:1: model.cache_dir = '\\ud800': {UNFIT}",
        f"a.yaml:1: model.path = 'a\\x00': {UNFIT}",
        f'a.yaml:3: plugins.require = {{"\\ud800": ""}}: {UNFIT}',
        "a.yaml:2: cache.page_size = '16': must be an integer from 1 to 2147483647, or null",
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_key(write: Write) -> None:
    Path("bom.yaml").write_bytes(b"\xef\xbb\xbfserve: {port: 1}\n")
    assert load(Path("bom.yaml")).config.serve.port == 1


def test_a_losing_value_is_not_held_against_anybody(write: Write) -> None:
    below, above = write("[cache]\npage_size = 'x'\n", "a.toml"), write("[cache]\npage_size = 4\n", "b.toml")
    assert load(below, above).config.cache.page_size == 4


def test_unknown_keys_can_be_allowed(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    file = write("colour = 'red'\n[serve]\nport = 5\n[eviction.gdsf]\nx = 1\n")
    loaded = load_config(installed(), {}, {"RTK_FOO": "1"}, ("bar=1",), [file], allow_unknown=True)
    assert loaded.config.serve.port == 5
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "--set bar: unknown key 'bar'",
        "unknown variable RTK_FOO",
        "rtk.toml:1: unknown key 'colour'",
        "rtk.toml:4: unknown key 'eviction.gdsf'",
    ]
    with pytest.raises(ConfigError, match="must be an integer"):
        load_config(installed(), {}, {"RTK_SERVE__PORT": "x"}, allow_unknown=True)


SECRETS = """
[serve]
admin_api_key = {key}
[eviction.fast-lru]
token = {token}
tokens = {tokens}
"""


@pytest.mark.parametrize(
    ("key", "token", "tokens"),
    [
        ("'s3cret'", "'s3cret'", "['s3cret']"),
        ("'s3 cret'", "'s3cret'", "'s3cret'"),
        ("'s3cret'", "'s3cret-1'", "[]"),
        ("'s3cret'", "'s3cret'\nlow = 11", "[]"),
        ("{ s3cret = 's3cret' }", "['s3cret']", "[['s3cret']]"),
        ("s3cret", "1", "1"),
        ("'s3cret", "1", "1"),
        ("'''s3\ncret", "1", "1"),
    ],
)
@pytest.mark.parametrize("twice", ["", "[cache]\npage_size = 0\n"])
def test_a_secret_in_a_file_is_shown_nowhere(write: Write, key: str, token: str, tokens: str, twice: str) -> None:
    file = write(SECRETS.format(key=key, token=token, tokens=tokens) + twice)
    try:
        loaded = load_files(with_knobs(), [file])
    except ConfigError as error:
        assert "s3" not in str(error)
        assert "cret" not in str(error)
    else:
        assert "s3cret" not in repr(list(loaded.rows()))


@pytest.mark.parametrize(
    ("text", "name", "named"),
    [
        (
            "serve: {admin_api_key:s3cret==}\n",
            "a.yaml",
            "unknown key 'serve.admin_api_key…'; did you mean serve.admin_api_key?",
        ),
        (
            "serve: {admin_api_key s3cret}\n",
            "a.yaml",
            "unknown key 'serve.admin_api_key…'; did you mean serve.admin_api_key?",
        ),
        (
            "'serve.admin_api_key=s3cret' = 1\n",
            "a.toml",
            "unknown key 'serve.admin_api_key…'; did you mean serve.admin_api_key?",
        ),
        ("serve: {admin_api_key: {s3cret: 1, s3cret: 2}}\n", "a.yaml", "gives a key twice: in line 1 too"),
        ("['s3cret']\n['s3cret']\n", "a.toml", "is not valid TOML: Cannot declare (…,) twice"),
    ],
)
def test_a_secret_that_became_part_of_a_key_is_not_shown(write: Write, text: str, name: str, named: str) -> None:
    (problem,) = problems(write(text, name))
    assert problem.partition(": ")[2] == named


def test_options_that_a_plugin_cannot_check_are_told_with_the_plugin(write: Write) -> None:
    file = write("[eviction.fast-lru]\nlow = 1\ntoken = 's3cret-2'\n[cache]\npage_size = 0\n")
    assert problems(file, registry=with_knobs()) == [
        "rtk.toml:5: cache.page_size = 0: must be an integer from 1 to 2147483647, or null",
        "rtk.toml:2: eviction.fast_lru: eviction plugin 'fast-lru' of rtk-extra 2.0 (entry point 'e') fails at these: "
        "KeyError; change them, or tell its authors, or do without it (rtk.toml:2, rtk.toml:3)",
    ]


# --- packages that must be there ------------------------------------------------------------------------------------


def test_required_packages_are_looked_for(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"rtk-eviction-gdsf": "1.1", "rtk-schedule-edf": "2.0rc1"}

    def version(name: str) -> str:
        from importlib.metadata import PackageNotFoundError

        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    assert load(write('[plugins]\nrequire = {"rtk-eviction-gdsf" = ">=1,<2", "rtk-schedule-edf" = ">1"}\n'))
    file = write('[plugins.require]\n"rtk-eviction-gdsf" = ">=1.2"\nrtk-schedule-edf = ""\nrtk-none = "==1"\n')
    assert problems(file) == [
        "rtk.toml:2: plugins.require.rtk-eviction-gdsf = '>=1.2': 1.1 is installed; "
        "pip install 'rtk-eviction-gdsf>=1.2'",
        "rtk.toml:4: plugins.require.rtk-none = '==1': it is not installed; pip install 'rtk-none==1'",
    ]
    file = write('[plugins.require]\nrtk-eviction-gdsf = "=1"\nrtk-none = ""\n')
    assert [problem.partition(" = ")[0] for problem in problems(file)] == [
        "rtk.toml:2: plugins.require.rtk-eviction-gdsf",
        "rtk.toml:3: plugins.require.rtk-none",
    ]
    with pytest.raises(ConfigError) as caught:
        load(environ={"RTK_PLUGINS__REQUIRE": '{"rtk-none": "==1"}'})
    assert str(caught.value) == (
        "plugins.require.rtk-none = '==1' (variable RTK_PLUGINS__REQUIRE): it is not installed; "
        "pip install 'rtk-none==1'"
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('rtk-x = "1.2"', "plugins.require.rtk-x = '1.2': must be a version specifier, such as >=1.2 or >=1.2,<2; "),
        ("rtk-x = 1.2", "plugins.require.rtk-x = 1.2: must be a valid string"),
    ],
)
def test_what_is_no_version_specifier(write: Write, entry: str, problem: str) -> None:
    (found,) = problems(write(f"[plugins.require]\n{entry}\n"))
    assert found.startswith(f"rtk.toml:2: {problem}")


# --- keys with a new name -------------------------------------------------------------------------------------------


@pytest.fixture
def old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        Moved("schedule.order", "schedule.policy", 2, flag="--order"),
        Moved("cache.budget", "cache.pins.budget", 3),
        Moved("eviction.gdsf.a", "eviction.gdsf.b", 3),
    )
    monkeypatch.setattr(moves, "MOVED", table)
    monkeypatch.setattr("rtk.config.sources.VERSION", 3)


@pytest.mark.usefixtures("old_names")
def test_an_old_name_works_and_warns_with_the_new_one(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(write("[schedule]\norder = 'lpm'\n[cache]\nbudget = 7\n"))
    assert (loaded.config.schedule.policy, loaded.sources["schedule.policy"]) == ("lpm", "rtk.toml:2")
    assert loaded.config.cache.pins.budget == 7
    assert caplog.messages == [
        "rtk.toml:2: schedule.order is deprecated; write schedule.policy",
        "rtk.toml:4: cache.budget is deprecated; write cache.pins.budget",
    ]


@pytest.mark.usefixtures("old_names")
@pytest.mark.parametrize(
    ("flags", "environ", "sets", "warning"),
    [
        ({"--order": "lpm"}, {}, (), "command line: --order is deprecated; write --schedule"),
        (
            {},
            {"RTK_SCHEDULE__ORDER": "lpm"},
            (),
            "environment: RTK_SCHEDULE__ORDER is deprecated; write RTK_SCHEDULE__POLICY",
        ),
        ({}, {}, ("schedule.order=lpm",), "--set schedule.order: schedule.order is deprecated; write schedule.policy"),
    ],
)
def test_an_old_name_works_wherever_it_is_used(
    flags: Any, environ: Any, sets: Any, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_config(installed(), flags, environ, sets).config.schedule.policy == "lpm"
    assert caplog.messages == [warning]


@pytest.mark.usefixtures("old_names")
def test_an_old_flag_works_and_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    app, found = typer.Typer(rich_markup_mode=None), []

    @app.command()
    @with_config()
    def command(loaded: LoadedConfig) -> None:
        found.append(loaded.config.schedule.policy)

    assert CliRunner().invoke(app, ["--order", "lpm"]).exit_code == 0
    assert found == ["lpm"]
    assert caplog.messages == ["command line: --order is deprecated; write --schedule"]
    assert "--order" not in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.usefixtures("old_names")
def test_old_and_new_name_together_are_one_key_given_twice(write: Write) -> None:
    file = write("[schedule]\norder = 'lpm'\npolicy = 'hrrn'\n")
    assert problems(file) == ["rtk.toml:3: schedule.policy: is given twice: rtk.toml:2 and rtk.toml:3; drop one"]


@pytest.mark.usefixtures("old_names")
def test_a_file_that_says_it_is_newer_has_no_old_names(write: Write) -> None:
    text = "version = 2\n[schedule]\norder = 'lpm'\n[cache]\nbudget = 7\n"
    assert problems(write(text)) == [
        "rtk.toml:3: unknown key 'schedule.order'; it is schedule.policy since version 2 of files"
    ]
    assert load(write(text.replace("order", "policy"))).config.cache.pins.budget == 7


@pytest.mark.usefixtures("old_names")
def test_an_old_name_of_a_plugin_that_is_not_there_is_unknown(write: Write) -> None:
    (problem,) = problems(write("[eviction.gdsf]\na = 1\n"))
    assert problem.startswith("rtk.toml:1: unknown key 'eviction.gdsf'; unknown eviction plugin 'gdsf'; ")
