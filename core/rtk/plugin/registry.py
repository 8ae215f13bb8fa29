"""What is installed: every described plugin with the distribution it came from, and what failed to load."""

import difflib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rtk.errors import PluginError, RtkError, one_line
from rtk.plugin.attention import AttentionBackend, Capabilities
from rtk.plugin.eviction import FACTS, EvictionPolicy
from rtk.plugin.foreign import TooLateError, contained, in_time
from rtk.plugin.grammar import SPEC_KINDS, GrammarBackend
from rtk.plugin.info import KINDS, Kind, Options, Plugin, canonical
from rtk.plugin.observer import Observer
from rtk.plugin.schedule import SchedulePolicy
from rtk.plugin.storage import Storage

Answer = TypeVar("Answer")
CONTRACTS: dict[Kind, type] = {
    "eviction": EvictionPolicy,
    "schedule": SchedulePolicy,
    "attention": AttentionBackend,
    "grammar": GrammarBackend,
    "storage": Storage,
    "observer": Observer,
}
"""The class that every plugin of a kind derives from."""

OURS = "rtk-inference"
"""The distribution that this module comes with."""
MISSING = "install what it imports, or do without it"
INSTALL = "pip install"
"""What an `ImportError` has in its message that says by itself what to install."""
INSTEAD = "tell its authors, or do without it"
"""What can be done about a plugin that was asked for and cannot be built."""
BUILD_S = 30.0
"""How long a plugin may take to be imported and built, where somebody waits for it to start."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plugin came from: the entry point and the distribution that declares it."""

    entry_point: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} (entry point {self.entry_point!r})"


@dataclass(frozen=True, slots=True)
class Registered:
    """A described plugin and its origin."""

    plugin: Plugin
    origin: Origin

    @property
    def label(self) -> str:
        """Kind, name and origin, for messages."""
        return f"{self.plugin.kind} plugin {self.plugin.name!r} of {self.origin}"

    @property
    def module(self) -> str:
        """The module of its target."""
        return self.plugin.target.partition(":")[0]

    def build(self, options: Options) -> Any:
        """Import the target and call it with its options. Raises `PluginError` naming plugin and distribution."""
        try:
            target = getattr(importlib.import_module(self.module), self.plugin.target.partition(":")[2])
            built = target(options)
            problem = self._problem(built)
        except PluginError as error:
            raise PluginError(f"{self.label} cannot be used: {error}") from error
        except BaseException as error:
            if not contained(error):
                raise
            reason, move = one_line(error), f"; {INSTEAD}"
            if isinstance(error, ImportError):
                move = "" if INSTALL in reason else f"; {MISSING}"
            raise PluginError(f"{self.label} cannot be built: {reason}{move}") from error
        if problem:
            raise PluginError(f"{self.label} cannot be used: {problem}; {INSTEAD}")
        return built

    def build_in_time(self, options: Options) -> Any:
        """As `build`, in a thread of its own, which is left behind with a `PluginError` where it does not end."""
        return self.ask_in_time(functools.partial(self.build, options), "be built")

    def ask_in_time(self, ask: Callable[[], Answer], what: str) -> Answer:
        """What code of the plugin's answers, in a thread of its own, which is left behind where it does not end.

        Raises `RtkError` as it does, and `PluginError` that it cannot do `what` where it raises anything else, or is
        too late.
        """

        def answer() -> Answer:
            try:
                return ask()
            except RtkError:
                raise
            except BaseException as error:
                if not contained(error):
                    raise
                raise PluginError(f"{self.label} cannot {what}: {one_line(error)}; {INSTEAD}") from error

        try:
            return in_time(answer, BUILD_S, name=f"rtk-ask-{self.plugin.name}", module=self.module)
        except TooLateError:
            late = f"it has not ended within {BUILD_S:g} s"
            raise PluginError(f"{self.label} cannot {what}: {late}; {INSTEAD}") from None

    def _problem(self, built: object) -> str:
        """Why the host cannot work with what the target made; empty if it can."""
        contract = CONTRACTS[self.plugin.kind]
        if not isinstance(built, contract):
            return f"{self.plugin.target} made no {contract.__name__}"
        if isinstance(built, EvictionPolicy) and not (isinstance(built.facts, Set) and built.facts <= FACTS):
            return f"its facts are {built.facts!r}; a set of them may have {', '.join(sorted(FACTS))}"
        if (
            isinstance(built, SchedulePolicy)
            and type(built).rank is SchedulePolicy.rank
            and type(built).order is SchedulePolicy.order
        ):
            return "its class overrides neither rank nor order"
        if isinstance(built, AttentionBackend):
            declared = declared_by(built)
            return declared if isinstance(declared, str) else ""
        if isinstance(built, GrammarBackend):
            kinds = kinds_of(built)
            return kinds if isinstance(kinds, str) else ""
        return ""


def declared_by(attention: AttentionBackend) -> Capabilities | str:
    """What a backend declares, read once, without code of its own in it; or why the host cannot work with that.

    Raises what reading it raises.
    """
    declared = getattr(attention, "capabilities", None)
    if not isinstance(declared, Capabilities):
        return f"its capabilities are {declared!r}, not Capabilities"
    plain = Capabilities(*(_plain(getattr(declared, field.name)) for field in fields(Capabilities)))
    return next((f"its capabilities have {problem}" for problem in _unsound(plain)), plain)


def kinds_of(grammar: GrammarBackend) -> frozenset[str] | str:
    """The kinds of specs that a backend understands, read once; or why the host cannot work with that.

    Raises what reading it raises.
    """
    kinds = grammar.spec_kinds
    if isinstance(kinds, Set) and kinds <= set(SPEC_KINDS):
        return frozenset(kinds)
    return f"its spec_kinds are {kinds!r}; a set of them may have {', '.join(SPEC_KINDS)}"


def _plain(value: Any) -> Any:
    return frozenset(value) if isinstance(value, Set) else value


def _unsound(declared: Capabilities) -> Iterator[str]:
    for name in ("devices", "dtypes", "features", "kinds"):
        words = getattr(declared, name)
        if not (isinstance(words, Set) and all(isinstance(one, str) and one.isprintable() for one in words)):
            yield f"{name} = {words!r}; a set of words is needed"
    for name, least in (("page_sizes", 1), ("compute_capabilities", 0)):
        numbers = getattr(declared, name)
        if numbers is not None and not (
            isinstance(numbers, Set) and all(_is_number(one) and one >= least for one in numbers)
        ):
            yield f"{name} = {numbers!r}; None or a set of numbers from {least} up is needed"
    if declared.page_sizes is not None and not declared.page_sizes:
        yield "no page_sizes; None means any"
    if not _is_number(declared.preference):
        yield f"preference = {declared.preference!r}; a whole number is needed"
    if not isinstance(declared.graphs, bool):
        yield f"graphs = {declared.graphs!r}; True or False is needed"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Failure:
    """An entry point that could not be used, and why, in one line."""

    origin: Origin
    reason: str


def _taken(entry: Registered, owner: Registered) -> Failure:
    name = f"{entry.plugin.kind} plugin {entry.plugin.name!r}"
    move = f"its authors must rename it, or uninstall {entry.origin.distribution}"
    return Failure(entry.origin, f"{name} is that of {owner.origin}; {move}")


class Registry:
    """Plugins by kind and name. Filled once by the host, read-only afterwards.

    A name that two distributions bring for different plugins is neither's: it counts as a failure, and asking for it is
    refused, since which of them is meant cannot be guessed. One of rtk's own stays rtk's, since installing a package
    changes nothing. The same plugin brought twice is one plugin.
    """

    def __init__(self, found: Iterable[Registered] = (), failures: Iterable[Failure] = ()) -> None:
        self._found: dict[tuple[str, str], Registered] = {}
        self._disputed: dict[tuple[str, str], Failure] = {}
        entries: dict[tuple[str, str], list[Registered]] = {}
        for entry in found:
            entries.setdefault((entry.plugin.kind, canonical(entry.plugin.name)), []).append(entry)
        taken: list[Failure] = []
        for key, rivals in entries.items():
            first, *others = sorted(rivals, key=lambda one: one.origin.distribution != OURS)
            others = [one for one in others if one.plugin != first.plugin]
            if not others or first.origin.distribution == OURS:
                self._found[key] = first
                taken += (_taken(one, first) for one in others)
            else:
                reason = f"it and {first.origin} both bring {key[0]} plugin {key[1]!r}; uninstall one of them"
                self._disputed[key] = Failure(others[0].origin, reason)
        self.failures = (*failures, *taken, *self._disputed.values())

    def all(self) -> tuple[Registered, ...]:
        """Every plugin, by kind and then name."""
        return tuple(self._found[key] for key in sorted(self._found))

    def of_kind(self, kind: Kind) -> tuple[Registered, ...]:
        """The plugins of one kind, by name."""
        return tuple(entry for entry in self.all() if entry.plugin.kind == kind)

    def names(self, kind: Kind) -> list[str]:
        """The names of one kind, sorted."""
        return [entry.plugin.name for entry in self.of_kind(kind)]

    def get(self, kind: Kind, name: str) -> Registered:
        """Look a plugin up. Raises `PluginError` with what is installed, the nearest name and what failed to load."""
        key = (kind, canonical(name))
        if key in self._disputed:
            raise PluginError(f"{self._disputed[key].origin}: {self._disputed[key].reason}")
        if key not in self._found:
            raise PluginError(self._broken_one(name, kind) or self._unknown(kind, name))
        return self._found[key]

    def find(self, name: str) -> Registered:
        """Look a plugin up by name alone, or as `kind:name`. Raises `PluginError` also where several kinds have it."""
        kind, colon, rest = name.partition(":")
        if colon:
            if kind not in KINDS:
                raise PluginError(f"unknown kind {kind!r} of {name!r}; kinds: {', '.join(KINDS)}")
            return self.get(kind, rest)
        kinds: list[Kind] = [of for of in KINDS if {(of, canonical(name))} & {*self._found, *self._disputed}]
        if not kinds:
            everything = [entry.plugin.name for entry in self.all()]
            unknown = f"unknown plugin {name!r}{self._broken()}{_hint(name, everything)}"
            raise PluginError(self._broken_one(name, *KINDS) or unknown)
        if len(kinds) > 1:
            raise PluginError(f"{name!r} is a name of several kinds; write {' or '.join(f'{k}:{name}' for k in kinds)}")
        return self.get(kinds[0], name)

    def _broken_one(self, name: str, *kinds: Kind) -> str:
        """What to tell of the entry point that seems to be meant, if one failed; else nothing."""
        plain = canonical(name)
        spellings = {plain, *(f"{before}{kind}-{plain}" for kind in kinds for before in ("", "rtk-"))}
        labels = [f"{kind} plugin {name!r}" for kind in kinds]
        for failure in self.failures:
            origin, reason = failure.origin, canonical(failure.reason)
            named = {canonical(origin.entry_point), canonical(origin.distribution)}
            if spellings & named or any(canonical(label) in reason for label in labels):
                label = labels[0] if len(labels) == 1 else f"plugin {name!r}"
                return f"{label} of {origin} cannot be used: {failure.reason}"
        return ""

    def _unknown(self, kind: Kind, name: str) -> str:
        names = self.names(kind)
        installed = f"unknown {kind} plugin {name!r}; installed: {', '.join(names) or 'none'}"
        return f"{installed}{self._broken()}{_hint(name, names)}"

    def _broken(self) -> str:
        return "".join(f"; {failure.origin} failed to load: {failure.reason}" for failure in self.failures)


def _hint(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(canonical(name), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; see 'rtk plugins'"
