"""Finding plugins: what a stranger's distribution may do wrong, and that it hurts nobody else.

Distributions are real: `*.dist-info` folders and modules on the path. Where the whole command matters, it runs in a
process of its own.
"""

import json
import sys
import threading
from importlib.metadata import Distribution, EntryPoint, distribution, distributions
from pathlib import Path

import pytest
from real_distributions import GOOD, HEADER, Install, found_in, rtk, write_metadata

from rtk.errors import PluginError
from rtk.plugin import AttentionBackend, Capabilities, EvictionPolicy, NodeView, Options, Plugin, SchedulePolicy
from rtk.plugin.host import installed, load, load_from
from rtk.plugin.info import Kind
from rtk.plugin.registry import Origin, Registered, Registry
from rtk.plugin.testing.toys import Choices

LRU = installed().get("eviction", "lru")
INSTEAD = "tell its authors, or do without it"
MISSING = "install what it imports, or do without it"
TELL = "; tell its authors, or uninstall rtk-sample"

BROKEN = {
    "import": (
        "import no_such_module_anywhere",
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'; "
        "install what it imports, or uninstall rtk-sample",
    ),
    "exit": ("raise SystemExit('no licence')", f"SystemExit: no licence{TELL}"),
    "interrupt": ("raise KeyboardInterrupt", f"KeyboardInterrupt{TELL}"),
    "error": ("raise RuntimeError('line one\\nline two')", f"RuntimeError: line one line two{TELL}"),
    "no hook": (
        "",
        "sample implements no rtk_plugins() hook; mark a function of that name with @rtk.plugin.hookimpl",
    ),
    "unmarked hook": (
        "def rtk_plugins(): return []",
        "sample implements no rtk_plugins() hook; mark a function of that name with @rtk.plugin.hookimpl",
    ),
    "misspelt hook": (
        f"{HEADER}@hookimpl\ndef rtk_plugin(): return []",
        "sample marks an unknown hook 'rtk_plugin'; rename it: there is rtk_plugins",
    ),
    "wrong argument": (
        f"{HEADER}@hookimpl\ndef rtk_plugins(host): return []",
        "sample: rtk_plugins() is called without arguments: missing a required argument: 'host'; "
        "write it as def rtk_plugins() -> list[Plugin]",
    ),
    "raising hook": (f"{HEADER}@hookimpl\ndef rtk_plugins(): raise KeyError('x')", f"KeyError: 'x'{TELL}"),
    "nothing": (
        f"{HEADER}@hookimpl\ndef rtk_plugins(): return None",
        "rtk_plugins() answered a NoneType; return a list of rtk.plugin.Plugin",
    ),
    "foreign object": (
        f"{HEADER}@hookimpl\ndef rtk_plugins(): return ['lru']",
        "rtk_plugins() answered 'lru', which is no rtk.plugin.Plugin; return a list of those",
    ),
}

UNUSABLE = {
    "api": (
        "api=99",
        "is built for plugin API 99, this rtk has 1; install another version of it, or of rtk-inference",
    ),
    "kind": ("kind='storage2'", "is of unknown kind 'storage2'; kinds: eviction, schedule, attention"),
    "name": (
        "name='fast lru'",
        "must be named in letters from a to z and digits, a letter first, with single dashes between words",
    ),
    "no summary": ("summary=None", "has summary None; write one line of text"),
    "long summary": (r"summary='a\nb\x1b[31m'", r"has summary 'a\nb\x1b[31m'; write one line of text"),
    "target": ("target='fast.Fast'", "has target 'fast.Fast'; write 'module:object'"),
    "requires": ("requires=frozenset({'moon'})", "requires moon; this rtk offers prefix_match, tree, "),
    "options": ("options=dict", "has options <class 'dict'>; derive them from rtk.plugin.Options"),
    "required option": ("options=Demanding", "has options that cannot be left out: ValidationError: "),
}


def described(about: str) -> str:
    """A module whose plugin is described with `about` on top of what is right."""
    base = "kind='eviction', name='fast-lru', summary='s', target='m:C'"
    return (
        f"{HEADER}class Demanding(Options):\n    url: str\n"
        f"@hookimpl\ndef rtk_plugins(): return [Plugin(**(dict({base}) | dict({about})))]"
    )


def test_a_plugin_is_found_with_its_origin(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    registry = found_in(tmp_path)
    entry = registry.get("eviction", "Fast_LRU")
    assert entry.plugin.name == "fast-lru"
    assert str(entry.origin) == "rtk-sample 1.2 (entry point 'sample')"
    assert registry.failures == ()


def test_a_target_is_imported_only_when_it_is_built(install: Install, tmp_path: Path) -> None:
    install(GOOD.replace('__name__ + ":Fast"', '"late:Fast"'))
    (tmp_path / "late.py").write_text(GOOD)
    entry = found_in(tmp_path).get("eviction", "fast-lru")
    assert "late" not in sys.modules
    assert entry.build(Options()).key(NodeView(0, 1, 0, 0, 0, 7)) == (7,)


@pytest.mark.parametrize(("source", "reason"), [*BROKEN.values()], ids=BROKEN)
def test_a_broken_entry_point_is_one_failure(install: Install, tmp_path: Path, source: str, reason: str) -> None:
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
    install: Install, tmp_path: Path, about: str, reason: str
) -> None:
    install(described(about))
    registry = found_in(tmp_path)
    assert registry.all() == ()
    assert reason in registry.failures[0].reason
    assert registry.failures[0].reason.count("\n") == 0


@pytest.mark.parametrize("value", ["sample:nothing", "no_such_module_anywhere", "sample:answer"])
def test_an_entry_point_to_a_foreign_object_is_one_failure(install: Install, tmp_path: Path, value: str) -> None:
    install("answer = 42", value=value)
    registry = found_in(tmp_path)
    assert registry.all() == ()
    assert len(registry.failures) == 1


@pytest.mark.parametrize("metadata", [b"\n", b"Name: \xff\n"], ids=["empty", "no text"])
def test_broken_metadata_still_gives_an_origin(install: Install, tmp_path: Path, metadata: bytes) -> None:
    install("import no_such_module_anywhere")
    (tmp_path / "rtk_sample-1.2.dist-info" / "METADATA").write_bytes(metadata)
    (one,) = distributions(path=[str(tmp_path)])
    (failure,) = load(one.entry_points).failures
    assert str(failure.origin) == "unknown distribution ? (entry point 'sample')"


def test_one_module_under_two_entry_points_is_one_plugin(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    registry = found_in(tmp_path, EntryPoint("again", "sample", "rtk"))
    assert registry.names("eviction") == ["fast-lru"]
    assert registry.failures == ()


def test_a_name_that_two_distributions_bring_belongs_to_neither(install: Install, tmp_path: Path) -> None:
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


def test_a_name_of_rtks_own_stays_rtks(install: Install, tmp_path: Path) -> None:
    install(GOOD.replace("fast-lru", "lru"))
    theirs = found_in(tmp_path).all()
    for entries in ([LRU, *theirs], [*theirs, LRU], [*theirs, LRU, *theirs]):
        registry = Registry(entries)
        assert registry.get("eviction", "lru") is LRU
        assert {str(one.origin) for one in registry.failures} == {"rtk-sample 1.2 (entry point 'sample')"}
        assert registry.failures[0].reason == (
            f"eviction plugin 'lru' is that of {LRU.origin}; its authors must rename it, or uninstall rtk-sample"
        )


@pytest.mark.parametrize("asked", ["Fast_LRU", "sample", "rtk-sample", "eviction:fast-lru"])
def test_a_broken_one_is_told_whatever_it_is_asked_for_by(install: Install, tmp_path: Path, asked: str) -> None:
    install(described("api=99"))
    with pytest.raises(PluginError) as caught:
        found_in(tmp_path).find(asked)
    label = "eviction plugin 'fast-lru'" if ":" in asked else f"plugin {asked!r}"
    told = f"{label} of rtk-sample 1.2 (entry point 'sample') cannot be used: eviction plugin 'fast-lru' is built for "
    assert str(caught.value).startswith(told)


def test_an_unknown_name_lists_what_is_installed_and_what_failed(install: Install, tmp_path: Path) -> None:
    install("raise ImportError('needs numpy 9')")
    install(GOOD, name="rtk-sound", module="sound")
    with pytest.raises(PluginError) as caught:
        found_in(tmp_path).get("eviction", "fast-lur")
    assert str(caught.value) == (
        "unknown eviction plugin 'fast-lur'; installed: fast-lru; rtk-sample 1.2 (entry point 'sample') "
        "failed to load: ImportError: needs numpy 9; install what it imports, or uninstall rtk-sample; "
        "did you mean 'fast-lru'?"
    )


FACTS_RAISE = f"""{HEADER}class Fast(EvictionPolicy):
    def __init__(self, options): pass
    key = None
    @property
    def facts(self): raise SystemExit('no facts')
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", f"cannot be built: AttributeError: module 'late' has no attribute 'Fast'; {INSTEAD}"),
        ("import nine", f"cannot be built: ModuleNotFoundError: No module named 'nine'; {MISSING}"),
        (
            "raise ImportError('no nine; run: pip install nine')",
            "cannot be built: ImportError: no nine; run: pip install nine",
        ),
        ("raise SystemExit(3)", f"cannot be built: SystemExit: 3; {INSTEAD}"),
        ("def Fast(options): raise ValueError('no')", f"cannot be built: ValueError: no; {INSTEAD}"),
        (
            "from rtk.errors import PluginError\ndef Fast(options): raise PluginError('it cannot; set x = 1')",
            "cannot be used: it cannot; set x = 1",
        ),
        (FACTS_RAISE, f"cannot be built: SystemExit: no facts; {INSTEAD}"),
        ("def Fast(options): return 42", f"cannot be used: late:Fast made no EvictionPolicy; {INSTEAD}"),
    ],
)
def test_a_target_that_cannot_be_built_names_plugin_and_distribution(
    install: Install, tmp_path: Path, source: str, reason: str
) -> None:
    install(GOOD.replace('__name__ + ":Fast"', '"late:Fast"'))
    (tmp_path / "late.py").write_text(source)
    with pytest.raises(PluginError) as caught:
        found_in(tmp_path).get("eviction", "fast-lru").build(Options())
    assert str(caught.value) == f"eviction plugin 'fast-lru' of rtk-sample 1.2 (entry point 'sample') {reason}"


SLOW = {
    "import": "import itertools\nfor _ in itertools.count(): pass",
    "constructor": "def Fast(options):\n    while True: pass",
    "sleep": "import sys, time\ndef Fast(options):\n    while 'enough' not in vars(sys): time.sleep(0.001)",
}


@pytest.mark.parametrize("source", [*SLOW.values()], ids=SLOW)
def test_a_target_that_is_never_built_is_refused_and_left_behind(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr("rtk.plugin.registry.BUILD_S", 0.05)
    install(GOOD.replace('__name__ + ":Fast"', '"late:Fast"'))
    (tmp_path / "late.py").write_text(source)
    with pytest.raises(PluginError) as caught:
        found_in(tmp_path).get("eviction", "fast-lru").build_in_time(Options())
    culprit = "eviction plugin 'fast-lru' of rtk-sample 1.2 (entry point 'sample')"
    assert str(caught.value) == f"{culprit} cannot be built: it has not ended within 0.05 s; {INSTEAD}"
    monkeypatch.setattr(sys, "enough", True, raising=False)
    ended("rtk-ask-fast-lru")


def ended(name: str) -> None:
    """No thread of that name goes on."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(30)
            assert not thread.is_alive()


def test_what_is_built_in_time_is_what_is_built(install: Install, tmp_path: Path) -> None:
    install(GOOD.replace("pass", "options.nothing", 1))
    entry = found_in(tmp_path).get("eviction", "fast-lru")
    with pytest.raises(PluginError, match=r"cannot be built: AttributeError: 'Options' object has no attribute"):
        entry.build_in_time(Options())
    plugin = Plugin(kind="eviction", name="lru", summary="s", target="rtk_eviction.lru:Lru")
    built = Registered(plugin, Origin("e", "rtk-sample", "1")).build_in_time(Options())
    assert isinstance(built, EvictionPolicy)


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


GRAMMARS = "a set of them may have choice, ebnf, json_schema, regex, structural_tag"


class Capable(AttentionBackend):
    def __init__(self, options: Options) -> None:
        pass

    layout = write = plan = forward = None  # type: ignore[assignment]


class ListsDevices(Capable):
    capabilities = Capabilities(["cpu"], frozenset())  # type: ignore[arg-type]


class ListsKinds(Capable):
    capabilities = Capabilities(frozenset({"cpu"}), frozenset(), kinds=["mha"])  # type: ignore[arg-type]


class NumbersKinds(Capable):
    capabilities = Capabilities(frozenset({"cpu"}), frozenset(), kinds=frozenset({1}))  # type: ignore[arg-type]


class TakesNoPages(Capable):
    capabilities = Capabilities(frozenset({"cpu"}), frozenset(), page_sizes=frozenset())


class TakesEmptyPages(Capable):
    capabilities = Capabilities(frozenset({"cpu"}), frozenset(), page_sizes=frozenset({0, 16}))


class IsHigh(Capable):
    capabilities = Capabilities(frozenset({"cpu"}), frozenset(), preference="high")  # type: ignore[arg-type]


class DrawsMaybe(Capable):
    capabilities = Capabilities(frozenset({"cpu"}), frozenset(), graphs="maybe")  # type: ignore[arg-type]


class Colours(Capable):
    capabilities = Capabilities(frozenset({"\x1b[31m"}), frozenset())


KNOWN = "a set of them may have created, hits, last_use, priority, size, start"


@pytest.mark.parametrize(
    ("kind", "policy", "problem"),
    [
        ("eviction", "LastUseAlone", f"its facts are 'last_use'; {KNOWN}"),
        ("eviction", "Unknown", f"its facts are {Unknown.facts!r}; {KNOWN}"),
        ("grammar", "UnknownGrammars", f"its spec_kinds are {UnknownGrammars.spec_kinds!r}; {GRAMMARS}"),
        ("attention", "Capable", "its capabilities are None, not Capabilities"),
        ("attention", "ListsDevices", "its capabilities have devices = ['cpu']; a set of words is needed"),
        ("attention", "NumbersKinds", "its capabilities have kinds = frozenset({1}); a set of words is needed"),
        ("attention", "ListsKinds", "its capabilities have kinds = ['mha']; a set of words is needed"),
        ("attention", "TakesNoPages", "its capabilities have no page_sizes; None means any"),
        ("attention", "DrawsMaybe", "its capabilities have graphs = 'maybe'; True or False is needed"),
        ("attention", "Colours", "its capabilities have devices = frozenset({'\\x1b[31m'}); a set of words is needed"),
        (
            *("attention", "TakesEmptyPages"),
            f"its capabilities have page_sizes = {frozenset({0, 16})!r}; None or a set of numbers from 1 up is needed",
        ),
        ("attention", "IsHigh", "its capabilities have preference = 'high'; a whole number is needed"),
        ("schedule", "OrdersNothing", "its class overrides neither rank nor order"),
    ],
)
def test_a_policy_that_says_too_little_is_refused(kind: Kind, policy: str, problem: str) -> None:
    plugin = Plugin(kind=kind, name="odd", summary="s", target=f"{__name__}:{policy}")
    with pytest.raises(PluginError) as caught:
        Registered(plugin, Origin("e", "rtk-sample", "1")).build(Options())
    assert (
        str(caught.value)
        == f"{kind} plugin 'odd' of rtk-sample 1 (entry point 'e') cannot be used: {problem}; {INSTEAD}"
    )


def test_a_built_plugin_fulfils_its_contract() -> None:
    plugin = Plugin(kind="eviction", name="lru", summary="s", target="rtk_eviction.lru:Lru")
    assert isinstance(Registered(plugin, Origin("e", "rtk-sample", "1")).build(Options()), EvictionPolicy)


@pytest.mark.parametrize(("source", "reason"), [*BROKEN.values()], ids=BROKEN)
def test_a_broken_distribution_leaves_the_command_working(
    install: Install, tmp_path: Path, source: str, reason: str
) -> None:
    install(source)
    listed = rtk(tmp_path, "plugins", "--json")
    assert listed.returncode == 0
    answer = json.loads(listed.stdout)
    assert {"lru", "slru", "fcfs", "hrrn", "torch"} <= {one["name"] for one in answer["plugins"]}
    (failure,) = answer["failures"]
    assert reason in failure["reason"]


def test_a_broken_distribution_is_one_warning_until_it_is_asked_for(install: Install, tmp_path: Path) -> None:
    install("raise ImportError('needs numpy 9')")
    culprit = "rtk-sample 1.2 (entry point 'sample')"
    unasked = rtk(tmp_path, "config", "show")
    assert unasked.returncode == 0
    why = "ImportError: needs numpy 9; install what it imports, or uninstall rtk-sample"
    assert unasked.stderr == f"WARNING: plugin {culprit} is not available: {why}\n"
    asked = rtk(tmp_path, "serve", "--eviction", "sample")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        "error: eviction.policy = 'sample' (flag --eviction): "
        f"eviction plugin 'sample' of {culprit} cannot be used: {why}\n"
    )
    assert rtk(tmp_path, "--help").stderr == ""
    assert rtk(tmp_path, "serve", "--help").stderr == ""


def test_without_its_entry_point_lru_is_not_installed(tmp_path: Path) -> None:
    ours = distribution("rtk-inference")
    lines = (ours.read_text("entry_points.txt") or "").splitlines()
    kept = [line for line in lines if "rtk_eviction.lru" not in line]
    assert len(kept) == len(lines) - 1
    write_metadata(tmp_path, "rtk-inference", "\n".join(kept), version=ours.version)
    culprit = f"eviction plugin 'lru' of rtk-inference {ours.version} (entry point 'eviction-lru') cannot be used: "
    used = tmp_path / f"rtk_inference-{ours.version}.dist-info"
    hidden = f" is hidden by that of version {ours.version} in {used}; remove the one that is stale\n"
    for asked, source in ((["--eviction", "lru"], "flag --eviction"), ([], "default")):
        result = rtk(tmp_path, "serve", *asked)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        told = f"error: eviction.policy = 'lru' ({source}): {culprit}the metadata of rtk-inference in "
        assert result.stderr.startswith(told) and result.stderr.endswith(hidden)


ENDLESS = {
    "import that sleeps": "import sys, time\nwhile 'enough' not in vars(sys): time.sleep(0.001)",
    "import that turns": "import itertools\nfor _ in itertools.count(): pass",
    "hook": f"{HEADER}@hookimpl\ndef rtk_plugins():\n    while True: pass",
    "list of plugins": f"{HEADER}@hookimpl\ndef rtk_plugins():\n    while True: yield from ()",
}


@pytest.mark.parametrize("source", [*ENDLESS.values()], ids=ENDLESS)
def test_an_entry_point_that_never_ends_is_one_failure_and_is_left_behind(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr("rtk.plugin.host.LIMIT_S", 0.05)
    install(source)
    install(GOOD, name="rtk-sound", module="sound")
    registry = found_in(tmp_path)
    assert registry.names("eviction") == ["fast-lru"]
    (failure,) = registry.failures
    assert failure.reason == (
        "its import, or its rtk_plugins() hook, has not ended within 0.05 s; "
        "move what takes long to the module that its target names, or uninstall rtk-sample"
    )
    monkeypatch.setattr(sys, "enough", True, raising=False)
    ended("rtk-load-sample")


def test_an_import_of_somebody_else_is_not_cut_off(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtk.plugin.host.LIMIT_S", 0.05)
    install("import heavy")
    slow = "import sys\nwhile 'enough' not in vars(sys): pass\ndone = True"
    (tmp_path / "heavy.py").write_text(slow)
    assert len(found_in(tmp_path).failures) == 1
    monkeypatch.setattr(sys, "enough", True, raising=False)
    (thread,) = (one for one in threading.enumerate() if one.name == "rtk-load-sample")
    thread.join(30)
    assert sys.modules["heavy"].done is True


def test_a_distribution_that_needs_another_rtk_is_not_imported(install: Install, tmp_path: Path) -> None:
    ours = distribution("rtk-inference").version
    install("raise RuntimeError", requires="RTK_inference >=99, <100")
    install(GOOD, name="rtk-sound", module="sound", requires="rtk-inference>=0.1")
    install(GOOD.replace("fast", "odd"), name="rtk-odd", module="odd", requires='rtk-inference>99; extra == "later"')
    registry = found_in(tmp_path)
    assert registry.names("eviction") == ["fast-lru", "odd-lru"]
    (failure,) = registry.failures
    assert str(failure.origin) == "rtk-sample 1.2 (entry point 'sample')"
    assert failure.reason == (
        f"it needs rtk-inference <100,>=99, this is {ours}; install another version of it, or of rtk-inference"
    )
    assert "sample" not in sys.modules


def test_of_two_folders_with_metadata_of_one_distribution_both_are_named(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    stale = tmp_path / "stale"
    write_metadata(stale, "rtk-Sample", "[rtk]\nsample = sample\nmore = more\n", version="1.1")
    write_metadata(tmp_path / "same", "rtk-sample", "[rtk]\nsample = sample\n")
    folders = [str(tmp_path), str(stale), str(tmp_path / "same")]
    registry = load_from(one for folder in folders for one in distributions(path=[folder]))
    assert registry.names("eviction") == ["fast-lru"]
    (failure,) = registry.failures
    assert str(failure.origin) == "rtk-Sample 1.1 (entry point 'more')"
    assert failure.reason == (
        f"the metadata of rtk-Sample in {stale / 'rtk_Sample-1.1.dist-info'} is hidden by that of version 1.2 "
        f"in {tmp_path / 'rtk_sample-1.2.dist-info'}; remove the one that is stale"
    )


def test_of_two_folders_with_metadata_in_one_place_both_are_named(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    folders = [tmp_path / f"rtk_sample-{version}.dist-info" for version in ("1.2", "1.3")]
    write_metadata(tmp_path, "rtk-sample", "[rtk]\nsample = sample\nagain = sample\n", version="1.3")
    for used, hidden in (folders, folders[::-1]):
        registry = load_from(map(Distribution.at, (used, hidden, used)))
        assert registry.names("eviction") == ["fast-lru"]
        (failure,) = registry.failures
        assert failure.reason == (
            f"the metadata of rtk-sample in {hidden} is hidden by that of version {used.name[11:14]} in {used}; "
            "remove the one that is stale"
        )


def test_a_place_that_is_named_twice_is_one(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    (tmp_path / "link").symlink_to(tmp_path)
    folder = "rtk_sample-1.2.dist-info"
    registry = load_from(map(Distribution.at, (tmp_path / folder, tmp_path / "link" / folder, tmp_path / folder)))
    assert (registry.names("eviction"), registry.failures) == (["fast-lru"], ())


def test_metadata_that_cannot_be_read_hides_nothing(install: Install, tmp_path: Path) -> None:
    install(GOOD)
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_bytes(b"[rtk]\nx = \xff\n")
    assert load_from(distributions(path=[str(tmp_path)])).names("eviction") == ["fast-lru"]
