"""`rtk config check | init | schema | diff | lock`, `rtk serve --locked` and `--dry-run`."""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import Field, SecretStr
from typer.testing import CliRunner

from rtk import native
from rtk.config.keys import KeyTable, walk
from rtk.config.load import load_files
from rtk.config.lock import check_lock, lock_text
from rtk.config.models import Config
from rtk.config.schema import json_schema
from rtk.config.tree import config_model
from rtk.config.written import as_toml, as_yaml, toml_template, yaml_template
from rtk.config.yaml_file import read_yaml
from rtk.errors import ConfigError
from rtk.plugin import AttentionBackend, Capabilities, Options, Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Origin, Registered, Registry
from rtk.plugin.testing.toys import RecorderOptions
from rtk_cli.main import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rtk(*args: str) -> tuple[int, list[str], list[str]]:
    result = CliRunner().invoke(app, args)
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()


def write(text: str, name: str = "rtk.toml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


class Knobs(Options):
    token: SecretStr = SecretStr("s3cret")
    folder: Path = Path("x")
    made: Callable[[], int] | None = None
    limit: int | None = None


def with_knobs(name: str) -> Registered:
    return Registered(
        Plugin(kind="eviction", name=name, summary="s", target="m:C", options=Knobs), Origin("e", "x", "1")
    )


WITH_KNOBS = Registry([*installed().all(), with_knobs("fast-lru"), with_knobs("slow-lru")])


class Narrow(AttentionBackend):
    """A backend that takes one size of pages."""

    capabilities = Capabilities(frozenset({"cpu"}), frozenset({"float32"}), page_sizes=frozenset({64}))

    def __init__(self, options: Options) -> None:
        pass

    layout = write = plan = forward = None  # type: ignore[assignment]


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_prints_problems_in_the_order_of_the_lines_and_exits_with_1() -> None:
    file = write("[serve]\nport = 70000\n[cache]\npage_sise = 16\n[eviction]\npolicy = 'slur'\n")
    code, out, err = rtk("config", "check", file)
    assert (code, err) == (1, [])
    assert out[0] == "rtk.toml:2: serve.port = 70000: must be an integer from 0 to 65535"
    assert out[1] == "rtk.toml:4: unknown key 'cache.page_sise'; did you mean cache.page_size?"
    assert out[2].startswith("rtk.toml:6: eviction.policy = 'slur': unknown eviction plugin 'slur'; installed: ")
    assert out[2].endswith("; did you mean 'slru'?")
    assert len(out) == 3


def test_check_looks_at_each_file_alone_or_at_all_together() -> None:
    one, two = write("[cache]\ndisable = true\n", "a.toml"), write("[schedule]\npolicy = 'hrrn'\n", "b.toml")
    assert rtk("config", "check", one, two) == (0, ["a.toml: ok", "b.toml: ok"], [])
    code, out, _ = rtk("config", "check", "--together", one, two)
    assert code == 1
    assert out[0].startswith("b.toml:2: schedule.policy = 'hrrn': requires prefix_match ")
    assert "cache.disable = true (a.toml:2) switches off" in out[0]
    assert rtk("config", "check", "--together", one, write("[schedule]\n", "c.toml"))[1] == ["a.toml + c.toml: ok"]


def test_check_keeps_the_problems_of_a_file_together() -> None:
    one, two = write("\n\nx = 1\n", "a.toml"), write("y = 1\n[cache]\npage_size = 1\npage-size = 1\n", "b.toml")
    lines = rtk("config", "check", "--together", two, one)[1]
    assert [line.partition(": ")[0] for line in lines] == ["a.toml:3", "b.toml:1", "b.toml:4"]


def test_check_reads_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_CACHE__PAGE_SIZE", "wrong")
    assert rtk("config", "check", write("")) == (0, ["rtk.toml: ok"], [])


def test_check_can_pass_unknown_keys_over(caplog: pytest.LogCaptureFixture) -> None:
    assert rtk("config", "check", write("colour = 1\n"), "--allow-unknown")[:2] == (0, ["rtk.toml: ok"])
    assert caplog.messages == ["rtk.toml:1: unknown key 'colour'; see 'rtk config show'"]


def test_one_bad_file_does_not_hide_another() -> None:
    assert rtk("config", "check", write("a", "a.toml"), write("", "b.toml"), "c.toml") == (
        1,
        [
            "a.toml:1: is not valid TOML: Expected '=' after a key in a key/value pair",
            "b.toml: ok",
            "c.toml: cannot be read: No such file or directory",
        ],
        [],
    )


# --- init -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rtk.toml", "other.yaml", "other.yml"])
def test_a_new_file_changes_nothing_and_has_every_key(name: str) -> None:
    assert rtk("config", "init", name) == (0, [f"wrote {name}"], [])
    assert rtk("config", "check", name)[0] == 0
    loaded = load_files(installed(), [Path(name)])
    assert set(loaded.sources.values()) == {"default"}

    active = re.sub(r"^( *)#(\w+ ?[:=])", r"\1\2", Path(name).read_text(), flags=re.MULTILINE)
    loaded_too = load_files(installed(), [Path(write(active, f"active-{name}"))])
    assert loaded_too.config == loaded.config
    assert "default" not in loaded_too.sources.values()


def test_a_new_file_says_what_each_key_means() -> None:
    rtk("config", "init")
    text = Path("rtk.toml").read_text()
    for key in walk(config_model(installed())):
        assert f"# {' '.join(key.description.split())} ({key.allowed})\n#{key.path.rpartition('.')[2]} = " in text


def test_a_file_that_is_there_is_kept() -> None:
    write("[serve]\nport = 5\n")
    assert rtk("config", "init") == (1, [], ["error: rtk.toml is there already; --force replaces it"])
    assert Path("rtk.toml").read_text() == "[serve]\nport = 5\n"
    assert rtk("config", "init", "--force")[0] == 0
    assert "port = 8000" in Path("rtk.toml").read_text()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("rtk.json", "rtk.json: a configuration file's name ends in .toml, .yaml, .yml"),
        ("no/rtk.toml", "no/rtk.toml cannot be written: No such file or directory"),
    ],
)
def test_where_no_file_can_be(name: str, problem: str) -> None:
    assert rtk("config", "init", name) == (1, [], [f"error: {problem}"])


@pytest.mark.parametrize("template", [toml_template, yaml_template])
def test_a_plugins_own_secret_is_in_no_template(template: Callable[[type[Config]], str]) -> None:
    text = template(config_model(WITH_KNOBS))
    assert "token" in text
    assert "s3cret" not in text


VALUES = [
    *(None, True, 5, -1.5, 1e300, "", "a \"b\" \\ \t\n\x7f\x01 é 😀 #", "null", [], [1, [2.5, "x"]], {}),
    *({"a.b": {"c d": [True]}}, [{"é": 1}]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_written_as_they_are_read(value: Any) -> None:
    assert tomllib.loads(f"key = {as_toml(value)}")["key"] == ("null" if value is None else value)
    if "\x7f" not in str(value):  # which YAML has no place for
        assert read_yaml(f"key: {as_yaml(value)}").values["key"] == value


# --- schema ---------------------------------------------------------------------------------------------------------


def property_of(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for part in path.split("."):
        if "properties" not in schema:  # a section
            schema = ROOT["$defs"][schema["$ref"].rpartition("/")[2]]
            assert schema["type"] == ["object", "null"]
        schema = schema["properties"][part]
    return schema


ROOT = json_schema(installed())


def test_the_schema_is_printed() -> None:
    code, out, _ = rtk("config", "schema")
    assert code == 0
    assert json.loads("\n".join(out)) == ROOT


def test_every_key_is_in_the_schema_with_description_and_default() -> None:
    for key in walk(config_model(installed())):
        found = property_of(ROOT, key.path)
        assert found["description"] == key.description
        if key.field.default_factory is None and not key.is_secret:
            assert found["default"] == ([*key.default] if isinstance(key.default, tuple) else key.default)


def test_the_schema_knows_ranges_plugins_and_their_options() -> None:
    assert property_of(ROOT, "serve.port")["maximum"] == 65535
    assert property_of(ROOT, "eviction.policy")["enum"] == installed().names("eviction")
    assert property_of(ROOT, "eviction.slru.protect_after_hits")["minimum"] == 1
    assert property_of(ROOT, "version") == property_of(ROOT, "version") | {"minimum": 1, "maximum": 1}
    assert {"type": "null"} in property_of(ROOT, "cache.pool_tokens")["anyOf"]
    assert property_of(ROOT, "cache.pool_tokens")["anyOf"][-1]["const"] == "null"
    for definition in (ROOT, *ROOT["$defs"].values()):
        assert definition["additionalProperties"] is False


def test_no_secret_and_no_home_folder_is_in_a_schema() -> None:
    schema = json_schema(WITH_KNOBS)
    text = json.dumps(schema)
    assert "s3cret" not in text
    assert "******" not in text
    assert str(Path.home()) not in text
    assert schema["$defs"]["Knobs"]["properties"]["token"]["writeOnly"] is True
    assert schema["$defs"]["Knobs"]["properties"]["folder"]["format"] == "path"
    limit = schema["$defs"]["Knobs"]["properties"]["limit"]["anyOf"]
    assert [option.get("type", option.get("const")) for option in limit] == ["integer", "null", "null"]


def refused_by(schema: dict[str, Any], values: Any) -> list[str]:
    """What a validator that is not rtk's has against a file's values: where, and by which rule."""
    errors = Draft202012Validator(schema).iter_errors(values)
    return sorted(f"{'.'.join(map(str, error.absolute_path))}: {error.validator}" for error in errors)


@pytest.mark.parametrize("registry", [installed(), WITH_KNOBS], ids=["plain", "plugins"])
def test_the_schema_is_one(registry: Registry) -> None:
    Draft202012Validator.check_schema(json_schema(registry))


def test_the_schema_takes_what_rtk_takes() -> None:
    example = Path(__file__).parents[2] / "examples" / "deployment" / "rtk.toml"
    assert refused_by(ROOT, tomllib.loads(example.read_text())) == []
    for template, read in ((toml_template, tomllib.loads), (yaml_template, yaml.safe_load)):
        text = template(config_model(installed()))
        assert refused_by(ROOT, read(text)) == []
        assert refused_by(ROOT, read(re.sub(r"^( *)#(\w+ ?[:=])", r"\1\2", text, flags=re.MULTILINE))) == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"cache": {"page_sise": 16}}, "cache: additionalProperties"),
        ({"cahce": {}}, ": additionalProperties"),
        ({"eviction": {"slru": {"protect": 2}}}, "eviction.slru: additionalProperties"),
        ({"eviction": {"policy": "lur"}}, "eviction.policy: enum"),
        ({"cache": {"page_size": "16"}}, "cache.page_size: anyOf"),
        ({"schedule": {"max_running": "16"}}, "schedule.max_running: type"),
        ({"schedule": {"max_running": 0}}, "schedule.max_running: minimum"),
        ({"cache": {"pool_tokens": "nil"}}, "cache.pool_tokens: anyOf"),
        ({"cache": 5}, "cache: type"),
        ({"plugins": {"strict": "yes"}}, "plugins.strict: type"),
        ({"observe": {"plugins": ["tape"]}}, "observe.plugins.0: enum"),
        ({"version": 2}, "version: maximum"),
    ],
    ids=str,
)
def test_the_schema_refuses_what_rtk_refuses(values: dict[str, Any], problem: str) -> None:
    assert refused_by(ROOT, values) == [problem]
    Path("wrong.yaml").write_text(json.dumps(values))
    assert rtk("config", "check", "wrong.yaml")[0] == 1


# --- observers: the one kind of which several are chosen ------------------------------------------------------------


def observer(name: str) -> Registered:
    plugin = Plugin(
        kind="observer", name=name, summary="s", target="rtk.plugin.testing.toys:Recorder", options=RecorderOptions
    )
    return Registered(plugin, Origin(name, f"rtk-observer-{name}", "3.0"))


WITH_OBSERVERS = Registry([*installed().all(), *map(observer, ("tape", "probe", "idle"))])


def test_the_schema_knows_observers() -> None:
    section = json_schema(WITH_OBSERVERS)["$defs"]["ObserveConfig"]["properties"]
    assert section["plugins"]["items"] == {"type": "string", "enum": ["idle", "probe", "tape"]}
    assert section.keys() == {"plugins", "log_format", "log_level", "traces", "tape", "probe", "idle"}


def test_observers_of_a_file_are_told_with_their_line() -> None:
    file = Path(write("[observe]\nplugins = ['tape', 'tapes']\n[observe.prob]\npath = 'x'\n"))
    with pytest.raises(ConfigError) as caught:
        load_files(WITH_OBSERVERS, [file])
    hint = "installed: idle, probe, tape; did you mean"
    assert caught.value.problems == (
        f"rtk.toml:3: unknown key 'observe.prob'; unknown observer plugin 'prob'; {hint} 'probe'?",
        f"rtk.toml:2: observe.plugins = [\"tape\", \"tapes\"]: unknown observer plugin 'tapes'; {hint} 'tape'?",
    )


def test_the_lock_holds_all_chosen_observers() -> None:
    loaded = load_files(WITH_OBSERVERS, [Path(write("observe:\n  plugins: [tape, probe]\n", "rtk.yaml"))])
    lock = tomllib.loads(lock_text(loaded, WITH_OBSERVERS))
    assert lock["packages"].keys() == {"rtk-inference", "rtk-observer-tape", "rtk-observer-probe"}
    assert {key: value for key, value in lock["values"].items() if key.startswith("observe.")} == {
        "observe.plugins": ["tape", "probe"],
        "observe.log_format": "text",
        "observe.log_level": "info",
        "observe.traces": "null",
        "observe.probe.path": "rtk-reports.txt",
        "observe.tape.path": "rtk-reports.txt",
    }
    Path("rtk.lock.toml").write_text(lock_text(loaded, WITH_OBSERVERS))
    check_lock(loaded, WITH_OBSERVERS)


# --- diff -----------------------------------------------------------------------------------------------------------


def test_diff_names_values_and_sources() -> None:
    one = write("[cache]\npage_size = 16\n[serve]\nadmin_api_key = 'first'\n", "a.toml")
    two = write("cache: {page_size: 1}\nserve: {admin_api_key: second, port: 5}\n", "b.yaml")
    assert rtk("config", "diff", one, two) == (
        1,
        [
            "cache.page_size: 16 (a.toml:2) -> 1 (b.yaml:1)",
            "serve.port: 8000 (default) -> 5 (b.yaml:2)",
            "serve.admin_api_key: ********** (a.toml:4) -> ********** (b.yaml:2)",
        ],
        [],
    )


def test_files_that_mean_the_same_do_not_differ() -> None:
    one, two = write("[schedule]\nmax_running = 64\n", "a.toml"), write("", "b.yaml")
    assert rtk("config", "diff", one, two) == (0, [], [])
    code, out, err = rtk("config", "diff", one, write("x = 1", "c.toml"))
    assert (code, out, err) == (1, [], ["error: c.toml:1: unknown key 'x'; see 'rtk config show'"])


# --- lock -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []
    launch = SimpleNamespace(serve=lambda loaded, fetching: started.append(loaded.config))
    monkeypatch.setitem(sys.modules, "rtk.serve.launch", launch)
    return started


BASE = "[eviction]\npolicy = 'slru'\n[schedule.lpm]\nfallback_above = 7\n[plugins.require]\npydantic = '>=2'\n"


def test_a_locked_start_is_the_start_that_was_locked(served: list[Any]) -> None:
    Path("etc").mkdir()
    file = write(BASE + "[serve]\nlocked = true\nadmin_api_key = 's3cret'\n", "etc/rtk.toml")
    assert rtk("config", "lock", "--config", file, "--port", "5") == (0, ["wrote etc/rtk.lock.toml"], [])
    text = Path("etc/rtk.lock.toml").read_text()
    lock = tomllib.loads(text)
    assert lock["packages"].keys() == {"rtk-inference", "pydantic"}
    assert lock["values"]["eviction.slru.protect_after_hits"] == 2
    assert lock["values"]["serve.port"] == 5
    assert lock["values"]["cache.pool_tokens"] == "null"
    assert "s3cret" not in text
    for absent in ("serve.admin_api_key", "serve.locked", "model.cache_dir", "schedule.lpm.fallback_above"):
        assert absent not in lock["values"]
    own = {key.path for key in KeyTable(Config) if not key.is_secret} - {"serve.locked", "model.cache_dir"}
    auto = {key.path for key in KeyTable(config_model(installed())) if key.path.startswith("attention.")}
    assert lock["values"].keys() == {*own, *auto, "eviction.slru.protect_after_hits"}

    assert rtk("serve", "--config", file, "--port", "5") == (0, [], [])
    assert [config.serve.port for config in served] == [5]


def test_anything_else_is_refused(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rtk("config", "lock", "--config", write(BASE))
    lines = Path("rtk.lock.toml").read_text().splitlines()
    line = {text.partition(" = ")[0].strip('"'): number for number, text in enumerate(lines, 1)}
    monkeypatch.setenv("RTK_SCHEDULE__MAX_QUEUE", "9")
    monkeypatch.setenv("RTK_SCHEDULE__RETRACTION", "priority")
    code, out, err = rtk("serve", "--locked", "--config", "rtk.toml", "--page-size", "4", "--eviction", "lru")
    assert (code, out, served) == (1, [], [])
    assert err == [
        f'error: rtk.lock.toml:{line["cache.page_size"]}: cache.page_size = "null" is locked, not 4 (flag --page-size)',
        f'error: rtk.lock.toml:{line["eviction.policy"]}: eviction.policy = "slru" is locked, '
        'not "lru" (flag --eviction)',
        f'error: rtk.lock.toml:{line["schedule.retraction"]}: schedule.retraction = "length" is locked, '
        'not "priority" (variable RTK_SCHEDULE__RETRACTION)',
        f'error: rtk.lock.toml:{line["schedule.max_queue"]}: schedule.max_queue = "null" is locked, '
        "not 9 (variable RTK_SCHEDULE__MAX_QUEUE)",
    ]


def test_a_plugins_secret_is_not_locked_and_its_package_is() -> None:
    file = Path(write("[eviction]\npolicy = 'fast-lru'\nfast_lru.token = 's3cret-2'\nfast_lru.limit = 3\n"))
    text = lock_text(load_files(WITH_KNOBS, [file]), WITH_KNOBS)
    lock = tomllib.loads(text)
    assert lock["packages"]["x"] == "1"
    own = {path: value for path, value in lock["values"].items() if path.startswith("eviction.")}
    assert own == {
        "eviction.policy": "fast-lru",
        "eviction.fast_lru.folder": "x",
        "eviction.fast_lru.made": "null",
        "eviction.fast_lru.limit": 3,
    }
    assert "s3cret" not in text


def test_a_chosen_plugin_brings_its_options_into_the_lock(served: list[Any]) -> None:
    rtk("config", "lock", "--config", write(""))
    code, _, err = rtk("serve", "--locked", "--config", "rtk.toml", "--eviction", "slru")
    assert code == 1
    assert "error: rtk.lock.toml: eviction.slru.protect_after_hits = 2 (default) is not locked" in err
    rtk("config", "lock", "--eviction", "slru", "--set", "eviction.slru.protect_after_hits=3")
    assert rtk("serve", "--locked", "--eviction", "slru", "--set", "eviction.slru.protect_after_hits=3")[0] == 0


def test_other_package_versions_are_refused(served: list[Any]) -> None:
    rtk("config", "lock", "--config", write(BASE))
    lock = Path("rtk.lock.toml")
    text = lock.read_text()
    version = re.search(r'"pydantic" = "(.*)"', text)
    assert version
    lock.write_text(text.replace(version[0], '"pydantic" = "1.0"\n"rtk-gone" = "2.0"'))
    assert rtk("serve", "--locked", "--config", "rtk.toml")[2] == [
        f"error: rtk.lock.toml:5: pydantic 1.0 is locked, {version[1]} is in use",
        "error: rtk.lock.toml:6: rtk-gone 2.0 is locked, and is neither chosen nor required here",
    ]
    lock.write_text(text.replace(version[0], ""))
    assert rtk("serve", "--locked", "--config", "rtk.toml")[2] == [
        f"error: rtk.lock.toml: pydantic {version[1]} is not locked"
    ]


SECRET = ":{}: serve.admin_api_key is locked, and a lock holds no secrets; take it out"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"serve.port" = 8000', '"serve.port" = 8000.0', ":{}: serve.port = 8000.0 is locked, not 8000 (default)"),
        (
            '"schedule.max_running" = 64',
            '"schedule.max_running" = true',
            ":{}: schedule.max_running = true is locked, not 64 (default)",
        ),
        ('"serve.port" = 8000', "serve.port = 8000", ":{}: serve is locked, and no key here"),
        (
            '"serve.port" = 8000',
            '"serve.port" = 1979-01-01',
            ':{}: serve.port = "1979-01-01" is locked, not 8000 (default)',
        ),
        ('"serve.port" = 8000', '"serve.port" = 0x' + "f" * 9999, ":{}: has a number that is too large; write it with"),
        ('"serve.port" = 8000', '"serve.port" = 8000\n"serve.admin_api_key" = "s3cret"', SECRET),
    ],
)
def test_a_lock_that_was_edited_by_hand(served: list[Any], old: str, new: str, problem: str) -> None:
    rtk("config", "lock", "--config", write(""))
    lock = Path("rtk.lock.toml")
    text = lock.read_text()
    line = text[: text.index(old)].count("\n") + 1
    lock.write_text(text.replace(old, new))
    code, _, err = rtk("serve", "--locked", "--config", "rtk.toml")
    assert (code, served) == (1, [])
    assert err[0].startswith(f"error: rtk.lock.toml{problem.format(line + (problem is SECRET))}")


class Grouped(Options):
    group: frozenset[str] = frozenset("abcdefgh")
    groups: dict[str, set[str]] = Field(default_factory=lambda: {"all": set("abcdefgh")})
    limits: dict[str, int | None] = Field(default_factory=lambda: {"b": None, "a": 1})
    share: float = float("nan")
    names: Sequence[str] = ()


WITH_GROUPS = Registry(
    [
        *installed().all(),
        Registered(
            Plugin(kind="eviction", name="grouped", summary="s", target="m:C", options=Grouped), Origin("e", "x", "1")
        ),
    ]
)


def test_what_is_no_number_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: WITH_GROUPS)
    one, two = write("", "a.toml"), write("eviction:\n  grouped: {share: .nan, names: []}\n", "b.yaml")
    assert rtk("config", "diff", one, two) == (0, [], [])


def test_a_lock_holds_what_has_no_order_and_what_toml_lacks() -> None:
    registry = WITH_GROUPS
    loaded = load_files(registry, [Path(write("[eviction]\npolicy = 'grouped'\n"))])
    text = lock_text(loaded, registry)
    letters = '["a", "b", "c", "d", "e", "f", "g", "h"]'
    assert f'"eviction.grouped.group" = {letters}\n' in text
    assert f'"eviction.grouped.groups" = {{ "all" = {letters} }}\n' in text
    write(text, "rtk.lock.toml")
    check_lock(loaded, registry)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "rtk.lock.toml: cannot be read: No such file or directory; write it with 'rtk config lock'"),
        ("version = ", "rtk.lock.toml:1: is not valid TOML: Invalid value; write it with 'rtk config lock'"),
        ("", "rtk.lock.toml: is no lock that this rtk reads; write it anew with 'rtk config lock'"),
        ("version = 1\nvalues = 5\n", "rtk.lock.toml: is no lock that this rtk reads; write it anew with "),
    ],
)
def test_what_is_no_lock(served: list[Any], text: str | None, problem: str) -> None:
    if text is not None:
        write(text, "rtk.lock.toml")
    code, _, (error,) = rtk("serve", "--locked")
    assert (code, served) == (1, [])
    assert error.startswith(f"error: {problem}")


# --- values that would pass for lines --------------------------------------------------------------------------------


def test_a_value_stays_on_its_line(folder: Path) -> None:
    name = "x\x1b[31m\nserve.port = 1"
    shown = r"model.served_name = x\x1b[31m\nserve.port = 1"
    _, out, _ = rtk("config", "show", "--sources", "--served-name", name)
    assert f"{shown}  # flag --served-name" in out
    _, out, _ = rtk("serve", "--dry-run", "--device", "cpu", "--served-name", name, "--cache-dir", str(folder))
    assert f"{shown}  # flag --served-name" in out
    plain, odd = write("", "a.toml"), write('model: {served_name: "x\\e[31m\\nserve.port = 1"}\n', "b.yaml")
    assert rtk("config", "diff", plain, odd)[1] == [
        r"model.served_name: null (default) -> x\x1b[31m\nserve.port = 1 (b.yaml:1)"
    ]


# --- dry run --------------------------------------------------------------------------------------------------------


GRAMMARS = ("llguidance", "outlines", "xgrammar")


def test_a_dry_run_says_what_would_run(zoo: Any) -> None:
    from rtk.serve.tokenizer import Tokenizer

    model = zoo.folder("llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "load", lambda folder: None)
        patch.setattr("rtk.native.COMPILERS", ())
        native._library.cache_clear()
        args = ("--model", str(model), "--eviction", "slru", "--port", "0", "--admin-api-key", "s3cret")
        code, out, err = rtk("serve", "--dry-run", "--device", "cpu", *args)
    native._library.cache_clear()
    assert (code, err) == (0, [])
    version = installed().get("eviction", "slru").origin
    assert "; not triton: device cpu (it runs on cuda)" in out[5]
    out[5] = out[5].partition(";")[0]
    assert out == [
        f"model: {model}: llama, float32 on cpu",
        "sizes: up to 64 requests of 2,048 tokens, prompts in pieces of 1,024 tokens, decoding along "
        "with pieces of 96, steps one after the other",
        "KV pool: up to 131,074 tokens in pages of 1, from 0.5 of what is free beside the weights",
        f"eviction: slru of {version.distribution} {version.version} (protect_after_hits = 2)",
        f"schedule: fcfs of {version.distribution} {version.version}",
        f"attention: torch of {version.distribution} {version.version}, pages of 1 token, by auto",
        *(f"grammar: {name} of {version.distribution} {version.version}" for name in GRAMMARS),
        "address: http://127.0.0.1:0 (any free port)",
        f"model.path = {model}  # flag --model",
        "model.device = cpu  # flag --device",
        "eviction.policy = slru  # flag --eviction",
        "serve.port = 0  # flag --port",
        "serve.admin_api_key = **********  # flag --admin-api-key",
    ]


def test_a_dry_run_says_that_weights_are_rounded(zoo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rtk.serve.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "load", lambda folder: None)
    monkeypatch.setattr("rtk.model.linear.Quantizer", lambda: None)
    model = zoo.folder("llama")
    args = ("--model", str(model), "--device", "cpu", "--quantize", "int8")
    code, out, _ = rtk("serve", "--dry-run", *args)
    assert (code, out[0]) == (0, f"model: {model}: llama, float32 with int8 weights on cpu")
    assert "model.quantize = int8  # flag --quantize" in out
    code, _, err = rtk("serve", "--dry-run", *args[:-1], "int4")
    assert (code, len(err)) == (1, 1)
    assert "model.quantize" in err[0]
    assert "int8" in err[0]


@pytest.mark.parametrize(
    ("args", "pool"),
    [
        (("--pool-tokens", "100", "--page-size", "16"), "112 tokens in pages of 16"),
        (
            ("--mem-fraction", "0.3", "--page-size", "64", "--max-running", "2", "--context-length", "100"),
            "up to 384 tokens in pages of 64, from 0.3 of what is free beside the weights",
        ),
    ],
)
def test_a_dry_run_says_what_is_known_of_the_pool(
    zoo: Any, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], pool: str
) -> None:
    monkeypatch.setattr("rtk.serve.tokenizer.Tokenizer.load", lambda folder: None)
    code, out, _ = rtk("serve", "--dry-run", "--device", "cpu", "--model", str(zoo.folder("llama")), *args)
    assert (code, out[2]) == (0, f"KV pool: {pool}")


def test_a_pool_that_is_sized_twice_is_no_configuration() -> None:
    file = write("[cache]\npage_size = 16\npool_tokens = 100\nmem_fraction = 0.5\n")
    twice = "cache: pool_tokens and mem_fraction both size the KV pool; set one of them"
    assert rtk("config", "check", file)[:2] == (1, [f"{file}:3: {twice} ({file}:3, {file}:4)"])
    one = write("[cache]\npool_tokens = 100\n", "one.toml")
    _, _, err = rtk("config", "show", "--config", one, "--mem-fraction", "0.5")
    assert err == [f"error: {one}:2: {twice} ({one}:2, flag --mem-fraction)"]
    assert rtk("config", "show", "--config", one, "--mem-fraction", "0.5", "--pool-tokens", "null")[0] == 0


def test_a_dry_run_builds_observers_and_says_which(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("rtk.plugin.host", "rtk.config.load", "rtk.serve.runtime"):
        monkeypatch.setattr(f"{place}.installed", lambda: WITH_OBSERVERS)
    args = ("--observe", '["tape"]', "--set", f"model.cache_dir={folder}", "--set", "observe.tape.path=said")
    code, out, _ = rtk("serve", "--dry-run", "--device", "cpu", "--attention", "torch", *args)
    assert code == 0
    assert "observer: tape of rtk-observer-tape 3.0 (path = said)" in out
    assert Path("said").read_text() == "closed\n"


def test_a_dry_run_fetches_nothing(folder: Path) -> None:
    args = ("--set", f"model.cache_dir={folder}")
    code, out, _ = rtk("serve", "--dry-run", "--device", "cpu", "--attention", "torch", *args)
    assert code == 0
    assert out[0] == "model: smollm2-135m-instruct, to be fetched; device cpu"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--model", "no-such-model"), "unknown model 'no-such-model'"),
        (("--context-length", "9999"), "model.context_length = 9999: the model takes at most 2048 tokens"),
        (("--page-size", "16385"), "schedule.max_prefill_tokens = 16384: prompts are cut at borders of pages, "),
        (("--device", "nothing"), "model.device = 'nothing': not usable here: "),
        (("--eviction", "broken"), "eviction plugin 'broken' of rtk-broken 0.3 (entry point 'e') cannot be built: "),
        (("--observe", '["blind"]'), "observer plugin 'blind' of rtk-broken 0.3 (entry point 'e') cannot be built: "),
        (
            ("--attention", "narrow", "--page-size", "16"),
            "attention backend 'narrow' cannot serve cache.page_size = 16 (it takes 64); choose ",
        ),
    ],
)
def test_a_dry_run_fails_where_the_start_would(
    zoo: Any, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], problem: str
) -> None:
    origin = Origin("e", "rtk-broken", "0.3")
    broken = Plugin(kind="eviction", name="broken", summary="s", target="no_such_module:C")
    narrow = Plugin(kind="attention", name="narrow", summary="s", target=f"{Narrow.__module__}:Narrow")
    blind = Plugin(kind="observer", name="blind", summary="s", target="no_such_module:C")
    registry = Registry([*installed().all(), *(Registered(plugin, origin) for plugin in (broken, narrow, blind))])
    for place in ("rtk.plugin.host", "rtk.config.load", "rtk.serve.runtime"):
        monkeypatch.setattr(f"{place}.installed", lambda: registry)
    monkeypatch.setitem(sys.modules, Narrow.__module__, sys.modules[__name__])
    monkeypatch.setattr("rtk.serve.tokenizer.Tokenizer.load", lambda folder: None)
    given = {"--model": str(zoo.folder("llama")), "--device": "cpu"} | dict(zip(args[::2], args[1::2], strict=True))
    code, out, (error,) = rtk("serve", "--dry-run", *(text for pair in given.items() for text in pair))
    assert (code, out) == (1, [])
    assert error.startswith(f"error: {problem}")
