"""Finding plugins: what a stranger's distribution may do wrong, and that it hurts nobody else.

Distributions are real: `*.dist-info` folders and modules on the path. Where the whole command matters, it runs in a
process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, distribution, distributions
from pathlib import Path

import pytest

from rtk.errors import PluginError
from rtk.plugin import EvictionPolicy, NodeView, Options, Plugin, SchedulePolicy
from rtk.plugin.host import installed, load
from rtk.plugin.info import Kind
from rtk.plugin.registry import Origin, Registered, Registry
from rtk.plugin.testing.toys import Choices

HEADER = "from rtk.plugin import EvictionPolicy, Options, Plugin, hookimpl\n"

GOOD = f"""{HEADER}
class Fast(EvictionPolicy):
    def __init__(self, options):
        pass
    def key(self, node):
        return (node.hits,)

@hookimpl
def rtk_plugins():
    return [Plugin(kind="eviction", name="fast-lru", summary="s", target=__name__ + ":Fast")]
"""

BROKEN = {
    "import": ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
    "exit": ("raise SystemExit('no licence')", "SystemExit: no licence"),
    "error": ("raise RuntimeError('line one\\nline two')", "RuntimeError: line one line two"),
    "no hook": ("", "TypeError: sample implements no rtk_plugins() hook"),
    "unmarked hook": ("def rtk_plugins(): return []", "implements no rtk_plugins() hook"),
    "misspelt hook": (f"{HEADER}@hookimpl\ndef rtk_plugin(): return []", "unknown hook 'rtk_plugin'"),
    "wrong argument": (f"{HEADER}@hookimpl\ndef rtk_plugins(host): return []", "Argument(s) {'host'} are declared"),
    "raising hook": (f"{HEADER}@hookimpl\ndef rtk_plugins(): raise KeyError('x')", "KeyError: 'x'"),
    "nothing": (f"{HEADER}@hookimpl\ndef rtk_plugins(): return None", "'NoneType' object is not iterable"),
    "foreign object": (
        f"{HEADER}@hookimpl\ndef rtk_plugins(): return ['lru']",
        "answered 'lru', which is no rtk.plugin.Plugin",
    ),
}

UNUSABLE = {
    "api": ("api=99", "is built for plugin API 99, this rtk has 1"),
    "kind": ("kind='storage2'", "is of unknown kind 'storage2'; kinds: eviction, schedule, attention"),
    "name": ("name='fast lru'", "must be named in letters and digits, with single dashes between words"),
    "no summary": ("summary=None", "has summary None; write one line of text"),
    "long summary": (r"summary='a\nb\x1b[31m'", r"has summary 'a\nb\x1b[31m'; write one line of text"),
    "target": ("target='fast.Fast'", "has target 'fast.Fast'; write 'module:object'"),
    "requires": ("requires=frozenset({'moon'})", "requires moon; this rtk offers prefix_match, tree, "),
    "options": ("options=dict", "has options <class 'dict'>, which are no subclass of rtk.plugin.Options"),
    "required option": ("options=Demanding", "url Field required"),
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Put a distribution with one entry point and its module on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(
        source: str, name: str = "rtk-sample", module: str = "sample", entry: str = "sample", value: str = ""
    ) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        write_metadata(tmp_path, name, f"[rtk]\n{entry} = {value or module}\n")

    before = set(sys.modules)
    yield put
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def write_metadata(folder: Path, name: str, entry_points: str, version: str = "1.2") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def found_in(folder: Path, *more: EntryPoint) -> Registry:
    """The registry of the distributions in `folder`, in the order of their names."""
    present = sorted(distributions(path=[str(folder)]), key=lambda one: one.name)
    return load([point for one in present for point in one.entry_points] + list(more))


def described(about: str) -> str:
    """A module whose plugin is described with `about` on top of what is right."""
    base = "kind='eviction', name='fast-lru', summary='s', target='m:C'"
    return (
        f"{HEADER}class Demanding(Options):\n    url: str\n"
        f"@hookimpl\ndef rtk_plugins(): return [Plugin(**(dict({base}) | dict({about})))]"
    )


def test_a_plugin_is_found_with_its_origin(install: Callable[..., None], tmp_path: Path) -> None:
    install(GOOD)
    registry = found_in(tmp_path)
    entry = registry.get("eviction", "Fast_LRU")
    assert entry.plugin.name == "fast-lru"
    assert str(entry.origin) == "rtk-sample 1.2 (entry point 'sample')"
    assert registry.failures == ()


def test_a_target_is_imported_only_when_it_is_built(install: Callable[..., None], tmp_path: Path) -> None:
    install(GOOD.replace('__name__ + ":Fast"', '"late:Fast"'))
    (tmp_path / "late.py").write_text(GOOD)
    entry = found_in(tmp_path).get("eviction", "fast-lru")
    assert "late" not in sys.modules
    assert entry.build(Options()).key(NodeView(0, 1, 0, 0, 0, 7)) == (7,)


@pytest.mark.parametrize(("source", "reason"), [*BROKEN.values()], ids=BROKEN)
def test_a_broken_entry_point_is_one_failure(
    install: Callable[..., None], tmp_path: Path, source: str, reason: str
) -> None:
    install(source)
    install(GOOD, name="rtk-sound", module="sound")
    registry = found_in(tmp_path)
    assert registry.names("eviction") == ["fast-lru"]
    (failure,) = registry.failures
    assert reason in failure.reason
    assert "\n" not in failure.reason
    assert str(failure.origin) == "rtk-sample 1.2 (entry point 'sample')"


@pytest.mark.parametrize(("about", "reason"), [*UNUSABLE.values()], ids=UNUSABLE)
def test_a_description_that_cannot_be_used_is_one_failure(
    install: Callable[..., None], tmp_path: Path, about: str, reason: str
) -> None:
    install(described(about))
    registry = found_in(tmp_path)
    assert registry.all() == ()
    assert reason in registry.failures[0].reason
    assert registry.failures[0].reason.count("\n") == 0


@pytest.mark.parametrize("value", ["sample:nothing", "no_such_module_anywhere", "sample:answer"])
def test_an_entry_point_to_a_foreign_object_is_one_failure(
    install: Callable[..., None], tmp_path: Path, value: str
) -> None:
    install("answer = 42", value=value)
    registry = found_in(tmp_path)
    assert registry.all() == ()
    assert len(registry.failures) == 1


@pytest.mark.parametrize("metadata", [b"\n", b"Name: \xff\n"], ids=["empty", "no text"])
def test_broken_metadata_still_gives_an_origin(install: Callable[..., None], tmp_path: Path, metadata: bytes) -> None:
    install("import no_such_module_anywhere")
    (tmp_path / "rtk_sample-1.2.dist-info" / "METADATA").write_bytes(metadata)
    (one,) = distributions(path=[str(tmp_path)])
    (failure,) = load(one.entry_points).failures
    assert str(failure.origin) == "unknown distribution ? (entry point 'sample')"


def test_one_module_under_two_entry_points_is_one_plugin(install: Callable[..., None], tmp_path: Path) -> None:
    install(GOOD)
    registry = found_in(tmp_path, EntryPoint("again", "sample", "rtk"))
    assert registry.names("eviction") == ["fast-lru"]
    assert registry.failures == ()


def test_a_name_that_two_distributions_bring_belongs_to_neither(install: Callable[..., None], tmp_path: Path) -> None:
    install(GOOD)
    install(GOOD, name="rtk-twin", module="twin", entry="twin")
    install(GOOD.replace("fast-lru", "calm"), name="rtk-calm", module="calm", entry="calm")
    registry = found_in(tmp_path)
    assert registry.names("eviction") == ["calm"]
    message = "rtk-sample 1.2 (entry point 'sample') both bring eviction plugin 'fast-lru'; uninstall one of them"
    (failure,) = registry.failures
    assert message in failure.reason
    with pytest.raises(PluginError) as caught:
        registry.get("eviction", "fast_lru")
    assert str(caught.value) == f"rtk-twin 1.2 (entry point 'twin'): it and {message}"


def test_an_unknown_name_lists_what_is_installed_and_what_failed(install: Callable[..., None], tmp_path: Path) -> None:
    install("raise ImportError('needs numpy 9')")
    install(GOOD, name="rtk-sound", module="sound")
    with pytest.raises(PluginError) as caught:
        found_in(tmp_path).get("eviction", "fast-lur")
    assert str(caught.value) == (
        "unknown eviction plugin 'fast-lur'; installed: fast-lru; rtk-sample 1.2 (entry point 'sample') "
        "failed to load: ImportError: needs numpy 9; did you mean 'fast-lru'?"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "cannot be built: AttributeError: module 'late' has no attribute 'Fast'"),
        ("raise SystemExit(3)", "cannot be built: SystemExit: 3"),
        ("def Fast(options): raise ValueError('no')", "cannot be built: ValueError: no"),
        ("def Fast(options): return 42", "cannot be used: late:Fast made no EvictionPolicy"),
    ],
)
def test_a_target_that_cannot_be_built_names_plugin_and_distribution(
    install: Callable[..., None], tmp_path: Path, source: str, reason: str
) -> None:
    install(GOOD.replace('__name__ + ":Fast"', '"late:Fast"'))
    (tmp_path / "late.py").write_text(source)
    with pytest.raises(PluginError) as caught:
        found_in(tmp_path).get("eviction", "fast-lru").build(Options())
    assert str(caught.value) == f"eviction plugin 'fast-lru' of rtk-sample 1.2 (entry point 'sample') {reason}"


class LastUseAlone(EvictionPolicy):
    facts = "last_use"  # type: ignore[assignment]

    def __init__(self, options: Options) -> None:
        pass

    def key(self, node: NodeView) -> tuple[int]:
        return (node.last_use,)


class Unknown(LastUseAlone):
    facts = frozenset({"last_use", "tenant"})


class OrdersNothing(SchedulePolicy):
    def __init__(self, options: Options) -> None:
        pass


class UnknownGrammars(Choices):
    spec_kinds = frozenset({"prose"})


GRAMMARS = "a set of them may have choice, ebnf, json_schema, regex"
KNOWN = "a set of them may have created, hits, last_use, priority, size, start"


@pytest.mark.parametrize(
    ("kind", "policy", "problem"),
    [
        ("eviction", "LastUseAlone", f"its facts are 'last_use'; {KNOWN}"),
        ("eviction", "Unknown", f"its facts are {Unknown.facts!r}; {KNOWN}"),
        ("grammar", "UnknownGrammars", f"its spec_kinds are {UnknownGrammars.spec_kinds!r}; {GRAMMARS}"),
        ("schedule", "OrdersNothing", "its class overrides neither rank nor order"),
    ],
)
def test_a_policy_that_says_too_little_is_refused(kind: Kind, policy: str, problem: str) -> None:
    plugin = Plugin(kind=kind, name="odd", summary="s", target=f"{__name__}:{policy}")
    with pytest.raises(PluginError) as caught:
        Registered(plugin, Origin("e", "rtk-sample", "1")).build(Options())
    assert str(caught.value) == f"{kind} plugin 'odd' of rtk-sample 1 (entry point 'e') cannot be used: {problem}"


def test_a_built_plugin_fulfils_its_contract() -> None:
    plugin = Plugin(kind="eviction", name="lru", summary="s", target="rtk_eviction.lru:Lru")
    assert isinstance(Registered(plugin, Origin("e", "rtk-sample", "1")).build(Options()), EvictionPolicy)


def rtk(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with `path` before everything else that is installed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RTK_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), environ.get("PYTHONPATH")]))
    script = "from rtk_cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        env=environ,
        cwd=path,  # metadata in the current folder, as a build leaves it, would come first
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("source", "reason"), [*BROKEN.values()], ids=BROKEN)
def test_a_broken_distribution_leaves_the_command_working(
    install: Callable[..., None], tmp_path: Path, source: str, reason: str
) -> None:
    install(source)
    listed = rtk(tmp_path, "plugins", "--json")
    assert listed.returncode == 0
    answer = json.loads(listed.stdout)
    assert {"lru", "slru", "fcfs", "hrrn", "torch"} <= {one["name"] for one in answer["plugins"]}
    (failure,) = answer["failures"]
    assert reason in failure["reason"]


def test_a_broken_distribution_is_one_warning_until_it_is_asked_for(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install("raise ImportError('needs numpy 9')")
    culprit = "rtk-sample 1.2 (entry point 'sample')"
    unasked = rtk(tmp_path, "config", "show")
    assert unasked.returncode == 0
    assert unasked.stderr == f"WARNING: plugin {culprit} is not available: ImportError: needs numpy 9\n"
    asked = rtk(tmp_path, "serve", "--eviction", "sample")
    assert (asked.returncode, asked.stdout, asked.stderr.count("\n")) == (1, "", 1)
    assert asked.stderr.startswith("error: eviction.policy = 'sample' (flag --eviction): unknown eviction plugin")
    assert f"{culprit} failed to load: ImportError: needs numpy 9" in asked.stderr
    assert rtk(tmp_path, "--help").stderr == ""
    assert rtk(tmp_path, "serve", "--help").stderr == ""


def test_without_its_entry_point_lru_is_not_installed(tmp_path: Path) -> None:
    ours = distribution("rtk-inference")
    lines = (ours.read_text("entry_points.txt") or "").splitlines()
    kept = [line for line in lines if "rtk_eviction.lru" not in line]
    assert len(kept) == len(lines) - 1
    write_metadata(tmp_path, "rtk-inference", "\n".join(kept), version=ours.version)
    result = rtk(tmp_path, "serve", "--eviction", "lru")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    others = ", ".join(name for name in installed().names("eviction") if name != "lru")
    refused = "error: eviction.policy = 'lru' (flag --eviction): unknown eviction plugin 'lru'"
    assert result.stderr.startswith(f"{refused}; installed: {others}; ")
    unnamed = rtk(tmp_path, "serve")
    assert unnamed.returncode == 1
    assert unnamed.stderr.startswith("error: eviction.policy = 'lru' (default): unknown eviction plugin 'lru'")
