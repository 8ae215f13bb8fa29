"""`rtk plugins`."""

import json
import threading
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Failure, Origin, Registered, Registry
from rtk.plugin.testing.toys import RecorderOptions
from rtk_cli.main import app

BAD = Failure(Origin("bad", "rtk-bad", "0.3"), "ImportError: [broken] \N{GREEK SMALL LETTER RHO}")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One plugin with a long description, and one failure."""
    plugin = Plugin(kind="schedule", name="calm", summary="[a] " + "word " * 40, target="m:C")
    found = Registry([Registered(plugin, Origin("calm", "rtk-schedule-calm", "2.0"))], [BAD])
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: found)
    return found


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["plugins", *args])
    assert result.exit_code == 0
    return result.stdout


def test_every_installed_plugin_is_one_line() -> None:
    lines = run().splitlines()
    assert lines[0].split() == ["kind", "name", "distribution", "version", "what", "it", "does"]
    assert [line.split()[:2] for line in lines[1:]] == [[e.plugin.kind, e.plugin.name] for e in installed().all()]


def test_nothing_is_cut_or_read_as_markup(registry: Registry) -> None:
    _, line, failure = run().splitlines()
    assert line.split()[:5] == ["schedule", "calm", "rtk-schedule-calm", "2.0", "[a]"]
    assert line.count("word") == 40
    assert failure == f"not available: rtk-bad 0.3 (entry point 'bad'): {BAD.reason}"


def test_json_for_machines(registry: Registry) -> None:
    answer = json.loads(run("--json"))
    assert answer["plugins"] == [
        {
            "kind": "schedule",
            "name": "calm",
            "summary": registry.all()[0].plugin.summary,
            "distribution": "rtk-schedule-calm",
            "version": "2.0",
            "entry_point": "calm",
        }
    ]
    assert answer["failures"] == [
        {"distribution": "rtk-bad", "version": "0.3", "entry_point": "bad", "reason": BAD.reason}
    ]


# --- show, doctor ---------------------------------------------------------------------------------------------------


def test_list_is_the_same_command() -> None:
    assert run("list") == run()
    assert run("list", "--json") == run("--json")


def test_a_plugin_is_shown_with_what_it_requires_and_its_options() -> None:
    lines = run("show", "hrrn").splitlines()
    assert lines[:3] == [
        "kind: schedule",
        "name: hrrn",
        "summary: highest response ratio next: short uncached work first, waiting requests rise",
    ]
    assert "requires prefix_match: the prefix cache, for matched lengths of waiting requests" in lines
    option = "schedule.hrrn.in_batch_check = 32  # an integer from 0 up: requests are checked that hit at most so many "
    assert f"{option}tokens" in lines


def test_a_plugin_is_shown_as_data() -> None:
    shown = json.loads(run("show", "SLRU", "--json"))
    assert shown["target"] == "rtk_eviction.slru:Slru"
    assert shown["requires"] == {}
    assert [option["key"] for option in shown["options"]] == ["eviction.slru.protect_after_hits"]


@pytest.mark.parametrize(
    ("kind", "chosen_by"), [("storage", "nothing yet; nor are options keys"), ("observer", "observe.plugins")]
)
def test_a_plugin_is_shown_with_what_chooses_it(
    monkeypatch: pytest.MonkeyPatch, kind: Literal["storage", "observer"], chosen_by: str
) -> None:
    plugin = Plugin(kind=kind, name="tape", summary="s", target="m:C")
    found = Registry([Registered(plugin, Origin("tape", "rtk-tape", "2.0"))])
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: found)
    assert f"chosen by: {chosen_by}" in run("show", "tape").splitlines()


def test_the_options_of_an_observer_are_shown_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(kind="observer", name="long-tape", summary="s", target="m:C", options=RecorderOptions)
    found = Registry([Registered(plugin, Origin("tape", "rtk-observer-tape", "2.0"))])
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: found)
    shown = json.loads(run("show", "long-tape", "--json"))
    assert [option["key"] for option in shown["options"]] == ["observe.long_tape.path"]


class Limits(BaseModel):
    low: int = 1
    high: int = Field(default_factory=lambda data: data["low"] + 1)


class Limited(Options):
    limits: Limits = Limits(low=5)


def test_the_defaults_of_options_are_those_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(kind="eviction", name="limited", summary="s", target="m:C", options=Limited)
    found = Registry([Registered(plugin, Origin("e", "rtk-x", "2.0"))])
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: found)
    options = json.loads(run("show", "limited", "--json"))["options"]
    assert {option["key"]: option["default"] for option in options} == {
        "eviction.limited.limits.low": "5",
        "eviction.limited.limits.high": "6",
    }


def refused(*args: str) -> str:
    result = CliRunner().invoke(app, ["plugins", *args])
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


@pytest.mark.parametrize("command", ["show", "doctor"])
def test_a_name_that_is_not_one_plugin(command: str) -> None:
    assert refused(command, "lur") == "error: unknown plugin 'lur'; did you mean 'lru'?\n"
    assert "write eviction:priority or schedule:priority" in refused(command, "priority")
    assert "unknown kind 'evict' of 'evict:lru'; kinds: eviction, schedule" in refused(command, "evict:lru")
    assert "unknown schedule plugin 'lru'; installed: dfs-weight, fcfs" in refused(command, "schedule:lru")


def test_one_that_is_broken_is_shown_as_that(registry: Registry) -> None:
    told = f"error: plugin 'bad' of rtk-bad 0.3 (entry point 'bad') cannot be used: {BAD.reason}\n"
    assert refused("show", "bad") == told


class Unsteady(EvictionPolicy):
    facts = frozenset({"last_use"})

    def __init__(self, options: Options) -> None:
        self.asked = 0

    def key(self, node: NodeView) -> tuple[int]:
        self.asked += 1
        return (self.asked,)


class Rude(Unsteady):
    def key(self, node: NodeView) -> tuple[int]:
        raise SystemExit("[gone]\nand more")


def doctored(
    monkeypatch: pytest.MonkeyPatch, *targets: str, failures: tuple[Failure, ...] = ()
) -> tuple[int, list[str]]:
    found = [
        Registered(
            Plugin(kind="eviction", name=f"p{i}", summary="s", target=target), Origin(f"e{i}", "rtk-eviction-p", "2.0")
        )
        for i, target in enumerate(targets)
    ]
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: Registry(found, failures))
    result = CliRunner().invoke(app, ["plugins", "doctor"])
    return result.exit_code, result.stdout.splitlines()


def test_the_doctor_finds_nothing_in_a_sound_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    code, (header, line) = doctored(monkeypatch, "rtk_eviction.lru:Lru")
    assert header.split() == ["kind", "name", "distribution", "version", "passed", "skipped", "result"]
    assert line.split() == ["eviction", "p0", "rtk-eviction-p", "2.0", "5", "0", "ok"]
    assert code == 0


def test_the_doctor_says_what_fails_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = doctored(
        monkeypatch, f"{__name__}:Unsteady", f"{__name__}:Rude", "no_such_module:X", "rtk_eviction.lru:Lru"
    )
    assert code == 1
    assert [line.split()[-1] for line in lines[1:5]] == ["FAILED", "FAILED", "FAILED", "ok"]
    who = "eviction plugin 'p{0}' of rtk-eviction-p 2.0 (entry point 'e{0}')"
    failed = [line.removeprefix("failed: ") for line in lines[5:]]
    assert failed[0] == f"{who.format(0)}: keys are stable: key() answers differently when asked again"
    assert f"{who.format(1)}: keys are stable: SystemExit: [gone] and more" in failed
    assert failed[-1].startswith(f"{who.format(2)}: cannot be built: ModuleNotFoundError: ")


class Wants(Unsteady):
    def __init__(self, options: Options) -> None:
        raise ModuleNotFoundError("swift is not installed; run: pip install swift")


@pytest.mark.parametrize(("distribution", "result"), [("rtk-inference", "absent"), ("rtk-eviction-p", "FAILED")])
def test_a_built_in_that_wants_an_optional_package_is_absent(
    monkeypatch: pytest.MonkeyPatch, distribution: str, result: str
) -> None:
    plugin = Plugin(kind="eviction", name="p", summary="s", target=f"{__name__}:Wants")
    found = Registry([Registered(plugin, Origin("e", distribution, "2.0"))])
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: found)
    code, named = (CliRunner().invoke(app, ["plugins", "doctor", *names]).exit_code for names in ([], ["p"]))
    _, line, told = CliRunner().invoke(app, ["plugins", "doctor"]).stdout.splitlines()
    assert line.split()[-3:] == ["0", "0", result]
    assert told == (
        f"{result.lower()}: eviction plugin 'p' of {distribution} 2.0 (entry point 'e'): cannot be built: "
        "ModuleNotFoundError: swift is not installed; run: pip install swift"
    )
    assert (code, named) == (int(result == "FAILED"), 1)


class Untidy(EvictionPolicy):
    def __init__(self, options: Options) -> None:
        print("hello")  # noqa: T201
        Path("left-behind").write_text("x")

    def key(self, node: NodeView) -> tuple[int]:
        return (node.id,)


def test_the_doctor_leaves_no_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    code, lines = doctored(monkeypatch, f"{__name__}:Untidy")
    assert (code, len(lines), lines[1].split()[-1]) == (0, 2, "ok")
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


TURNING = threading.Event()


class Endless(Unsteady):
    def key(self, node: NodeView) -> tuple[int]:
        TURNING.set()
        while True:
            pass


class NeverBuilt(Endless):
    def __init__(self, options: Options) -> None:
        self.key(None)  # type: ignore[arg-type]


def test_the_doctor_leaves_what_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    join = threading.Thread.join

    def waited(thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout == 60 and thread.name in ("rtk-doctor-p0", "rtk-doctor-p1"):
            assert TURNING.wait(30)  # the minute is over as soon as there is nothing else to wait for
            TURNING.clear()
        else:
            join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", waited)
    code, lines = doctored(monkeypatch, f"{__name__}:Endless", f"{__name__}:NeverBuilt", "rtk_eviction.lru:Lru")
    assert code == 1
    assert [line.split()[-3:] for line in lines[1:4]] == [["0", "0", "FAILED"], ["0", "0", "FAILED"], ["5", "0", "ok"]]
    late = "has not ended within the 60 s that a plugin may take"
    assert lines[4:] == [
        f"failed: eviction plugin 'p0' of rtk-eviction-p 2.0 (entry point 'e0'): keys are stable: {late}",
        f"failed: eviction plugin 'p1' of rtk-eviction-p 2.0 (entry point 'e1'): building it: {late}",
    ]
    for thread in threading.enumerate():
        if thread.name.startswith("rtk-doctor-"):
            thread.join(30)
            assert not thread.is_alive()


def test_what_could_not_be_loaded_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = doctored(monkeypatch, failures=(BAD,))
    assert code == 1
    assert lines[1:] == [f"not available: rtk-bad 0.3 (entry point 'bad'): {BAD.reason}"]


def test_built_in_plugins_are_sound() -> None:
    lines = run("doctor", "fcfs", "eviction:priority").splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["fcfs", "priority"]
    assert all(line.split()[-1] == "ok" for line in lines[1:])
