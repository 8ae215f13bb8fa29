"""Cases G04 to G12: what a stranger's package does to rtk, by being installed and by being broken.

Packages are real distributions on the path of a process of its own.
"""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from real_distributions import GOOD, HEADER, Install, rtk, write_metadata

CULPRIT = "rtk-sample 1.2 (entry point 'sample')"

SLOWPOKE = f"{HEADER}@hookimpl\ndef rtk_plugins(): raise RuntimeError('built for 0.1')"

NEVER_ENDS = "import time\nwhile True: time.sleep(0.01)"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'; install what"),
        ("raise SystemExit(3)", "SystemExit: 3; tell its authors, or uninstall rtk-sample"),
        (NEVER_ENDS, "its import, or its rtk_plugins() hook, has not ended within 0.3 s; move what takes long"),
    ],
)
def test_g04_a_broken_plugin_is_one_warning_and_every_command_works(
    install: Install, tmp_path: Path, source: str, reason: str
) -> None:
    install(source)
    hasty = "import rtk.plugin.host; rtk.plugin.host.LIMIT_S = 0.3"
    assert rtk(tmp_path, "--help", first=hasty).returncode == 0
    shown = rtk(tmp_path, "config", "show", first=hasty)
    assert shown.returncode == 0
    assert shown.stderr.startswith(f"WARNING: plugin {CULPRIT} is not available: {reason}")
    assert shown.stderr.count("\n") == 1


BROKEN = {
    "import": "import nothing_of_that_name",
    "exit": "raise SystemExit(3)",
    "time": NEVER_ENDS,
    "hook": f"{HEADER}@hookimpl\ndef rtk_plugin(): return []",
    "api": GOOD.replace("kind=", "api=99, kind="),
}


@pytest.mark.parametrize("source", [*BROKEN.values()], ids=BROKEN)
def test_g04_strict_refuses_the_start_and_nothing_else(install: Install, tmp_path: Path, source: str) -> None:
    install(source)
    hasty = "import rtk.plugin.host; rtk.plugin.host.LIMIT_S = 0.3"
    (failure,) = json.loads(rtk(tmp_path, "plugins", "list", "--json", first=hasty).stdout)["failures"]
    started = rtk(tmp_path, "serve", "--strict-plugins", first=hasty)
    assert (started.returncode, started.stdout) == (1, "")
    assert started.stderr == (
        "error: plugins.strict = 'true' (flag --strict-plugins): "
        f"plugin {CULPRIT} is not available: {failure['reason']}\n"
    )


def test_g04_strict_holds_for_everything_that_starts_and_stops_no_help(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    install(GOOD.replace("(node.hits,)", "()"), name="rtk-twin", module="twin", entry="twin")
    for command in (["generate", "hello"], ["config", "show"]):
        started = rtk(tmp_path, *command, "--strict-plugins")
        assert (started.returncode, started.stdout, started.stderr.count("\n")) == (1, "", 1)
        for part in ("(flag --strict-plugins)", "rtk-sample 1.2", "rtk-twin 1.2", "'fast-lru'; uninstall one of them"):
            assert part in started.stderr
    file = tmp_path / "strict.toml"
    file.write_text("[plugins]\nstrict = true\n")
    checked = rtk(tmp_path, "config", "check", str(file))
    assert (checked.returncode, checked.stdout.count("\n"), checked.stderr) == (1, 1, "")
    assert checked.stdout.startswith(f"{file}:2: plugins.strict = true: plugin rtk-")
    asked = "import os; os.environ['RTK_PLUGINS__STRICT'] = 'true'"
    engine = rtk(tmp_path, first=f"{asked}\nfrom rtk import Engine\nEngine({{'plugins.strict': True}})")
    assert "rtk.errors.ConfigError: plugins.strict = True (argument plugins.strict): plugin " in engine.stderr
    for command in (["--help"], ["serve", "--help"], ["plugins", "list"], ["plugins", "show", "lru"]):
        assert rtk(tmp_path, *command, first=asked).returncode == 0


def test_g05_x24_a_plugin_that_was_asked_for_and_is_broken_refuses_the_start(install: Install, tmp_path: Path) -> None:
    install(SLOWPOKE, name="rtk_demo_bad", module="bad", entry="slowpoke")
    culprit = "rtk_demo_bad 1.2 (entry point 'slowpoke')"
    why = "RuntimeError: built for 0.1; tell its authors, or uninstall rtk_demo_bad"
    asked = rtk(tmp_path, "serve", "--eviction", "slowpoke")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        "error: eviction.policy = 'slowpoke' (flag --eviction): "
        f"eviction plugin 'slowpoke' of {culprit} cannot be used: {why}\n"
    )
    (tmp_path / "a.yaml").write_text("eviction: slowpoke\n")  # as other systems write it
    written = rtk(tmp_path, "serve", "--config", "a.yaml")
    assert (written.returncode, written.stdout) == (1, "")
    assert written.stderr == (
        "error: a.yaml:1: eviction: it is a section with the keys eviction.policy, eviction.slru.protect_after_hits; "
        f"eviction plugin 'slowpoke' of {culprit} cannot be used: {why}\n"
    )
    (tmp_path / "b.yaml").write_text("eviction: {policy: lru}\n")
    unasked = rtk(tmp_path, "serve", "--dry-run", "--device", "cpu", "--config", "b.yaml")
    assert (unasked.returncode, unasked.stderr) == (0, f"WARNING: plugin {culprit} is not available: {why}\n")
    assert f"eviction: lru of rtk-inference {version('rtk-inference')}\n" in unasked.stdout
    assert f"not available: {culprit}: {why}\n" in rtk(tmp_path, "plugins", "list").stdout
    assert rtk(tmp_path, "plugins", "show", "slowpoke").stderr == (
        f"error: plugin 'slowpoke' of {culprit} cannot be used: {why}\n"
    )


def test_g06_a_name_that_is_not_installed_is_refused_with_the_nearest(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    asked = rtk(tmp_path, "serve", "--eviction", "fast-lur")
    assert (asked.returncode, asked.stderr.count("\n")) == (1, 1)
    assert "unknown eviction plugin 'fast-lur'; installed: fast-lru, fifo, " in asked.stderr
    assert asked.stderr.endswith("; did you mean 'fast-lru'?\n")
    required = rtk(tmp_path, "serve", "--require-plugins", '{"rtk-smaple": ">=1"}')
    assert (required.returncode, required.stdout) == (1, "")
    assert required.stderr == (
        "error: plugins.require.rtk-smaple = '>=1' (flag --require-plugins): it is not installed; "
        "did you mean 'rtk-sample' (1.2)?\n"
    )


def test_g07_a_name_of_two_packages_is_refused_and_one_package_listed_twice_is_harmless(
    install: Install, tmp_path: Path
) -> None:
    install(GOOD)
    write_metadata(tmp_path, "rtk-again", "[rtk]\nagain = sample\n")
    once = rtk(tmp_path, "config", "show", "--eviction", "fast-lru")
    assert (once.returncode, once.stderr) == (0, "")
    install(GOOD, name="rtk-twin", module="twin", entry="twin")
    asked = rtk(tmp_path, "config", "show", "--eviction", "fast-lru")
    assert (asked.returncode, asked.stderr.count("\n")) == (1, 1)
    for part in ("rtk-twin 1.2 (entry point 'twin')", "both bring eviction plugin 'fast-lru'; uninstall one of them"):
        assert part in asked.stderr
    assert rtk(tmp_path, "config", "show").returncode == 0


def test_g08_a_plugin_for_another_rtk_is_named_with_both_versions_and_the_others_load(
    install: Install, tmp_path: Path
) -> None:
    install("raise RuntimeError('imported all the same')", requires="rtk-inference>=99")
    install(GOOD, name="rtk-sound", module="sound")
    listed = json.loads(rtk(tmp_path, "plugins", "--json").stdout)
    assert "fast-lru" in {one["name"] for one in listed["plugins"]}
    (failure,) = listed["failures"]
    assert (failure["distribution"], failure["version"]) == ("rtk-sample", "1.2")
    assert failure["reason"].startswith("it needs rtk-inference >=99, this is ")


def test_g09_two_folders_with_metadata_of_one_package_are_both_named(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    newer = tmp_path / "newer"
    write_metadata(newer, "rtk-sample", "[rtk]\nsample = sample\nmore = more\n", version="1.3")
    shown = rtk(tmp_path, "config", "show", first=f"import sys; sys.path.append({str(newer)!r})")
    assert shown.returncode == 0
    assert shown.stderr == (
        "WARNING: plugin rtk-sample 1.3 (entry point 'more') is not available: the metadata of rtk-sample in "
        f"{newer / 'rtk_sample-1.3.dist-info'} is hidden by that of version 1.2 in "
        f"{tmp_path / 'rtk_sample-1.2.dist-info'}; remove the one that is stale\n"
    )


COUNTED = f"""{HEADER}import os
from rtk.plugin import Observer

def count(what):
    with open("calls", "a") as out:
        print(what, os.getpid() == int(open("first").read()), file=out)

class Policy(EvictionPolicy):
    def __init__(self, options):
        count("policy")
    def key(self, node):
        return (node.hits,)

class Watcher(Observer):
    def __init__(self, options):
        count("observer")

@hookimpl
def rtk_plugins():
    count("hook")
    return [
        Plugin(kind="eviction", name="fast-lru", summary="s", target=__name__ + ":Policy"),
        Plugin(kind="observer", name="watches", summary="s", target=__name__ + ":Watcher"),
    ]
"""


def test_g10_a_hook_runs_once_and_in_one_process(install: Install, tmp_path: Path) -> None:
    install(COUNTED)
    twice = "from rtk.plugin.host import installed; installed(); installed()"
    first = f"import os; print(os.getpid(), file=open('first', 'w'), flush=True)\n{twice}"
    chosen = ("--eviction", "fast-lru", "--observe", '["watches"]')
    assert rtk(tmp_path, "serve", "--dry-run", "--device", "cpu", *chosen, first=first).returncode == 0
    # the process of the observer is told which one it is: it asks no hook
    assert sorted((tmp_path / "calls").read_text().splitlines()) == ["hook True", "observer False", "policy True"]


def test_g12_installing_a_package_changes_nothing_until_configuration_names_it(
    install: Install, tmp_path: Path
) -> None:
    before = rtk(tmp_path, "config", "show")
    install(GOOD.replace("fast-lru", "a-better-lru"))
    after = rtk(tmp_path, "config", "show")
    assert (after.returncode, after.stdout, after.stderr) == (0, before.stdout, before.stderr)
    assert "a-better-lru" in rtk(tmp_path, "plugins").stdout
    named = rtk(tmp_path, "config", "show", "--eviction", "a-better-lru")
    assert named.returncode == 0
    assert "a-better-lru" in named.stdout


def test_g12_nor_can_a_package_take_the_name_of_a_policy_that_is_there(install: Install, tmp_path: Path) -> None:
    install(GOOD.replace("fast-lru", "lru"))
    started = rtk(tmp_path, "serve", "--dry-run", "--device", "cpu")
    assert started.returncode == 0
    assert f"eviction: lru of rtk-inference {version('rtk-inference')}\n" in started.stdout
    assert started.stderr.startswith(
        f"WARNING: plugin {CULPRIT} is not available: eviction plugin 'lru' is that of rtk-"
    )
    assert started.stderr.count("\n") == 1


WATCHES = f"""{HEADER}from rtk.plugin import Observer
class It(Observer):
    def __init__(self, options):
        print("built", flush=True)

@hookimpl
def rtk_plugins():
    return [Plugin(kind="observer", name="watches", summary="s", target=__name__ + ":It", options=Where)]

class Where(Options):
    folder: str = "here"
"""


def test_an_observer_is_configured_like_any_plugin(install: Install, tmp_path: Path) -> None:
    install(WATCHES)
    named = rtk(tmp_path, "config", "show", "--observe", '["Watches"]', "--set", "observe.watches.folder=there")
    assert (named.returncode, named.stderr) == (0, "")
    assert "observe.plugins" in named.stdout
    assert "there" in named.stdout
    wrong = rtk(tmp_path, "serve", "--observe", '["watchs"]')
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert wrong.stderr.startswith(
        "error: observe.plugins = '[\"watchs\"]' (flag --observe): unknown observer plugin 'watchs'"
    )
    assert wrong.stderr.endswith("; did you mean 'watches'?\n")


def test_an_observer_that_cannot_be_built_refuses_the_start_before_a_model_is_looked_for(
    install: Install, tmp_path: Path
) -> None:
    install(WATCHES.replace('print("built", flush=True)', "raise ValueError('no disk')"))
    result = rtk(tmp_path, "serve", "--port", "0", "--observe", '["watches"]', "--model", "no-such-model")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "error: observer plugin 'watches' of rtk-sample 1.2 (entry point 'sample') cannot be built: "
        "ValueError: no disk; tell its authors, or do without it\n"
    )
