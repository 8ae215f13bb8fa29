"""Which attention backend serves: the one that is named, or, by `auto`, the best of those that can."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

from rtk.config.models import AttentionConfig, Config, ScheduleConfig
from rtk.config.sections import options_field
from rtk.errors import ConfigError, PluginError, RtkError, one_line
from rtk.native import built_in
from rtk.plugin.registry import INSTEAD, OURS, Registered, Registry, declared_by

if TYPE_CHECKING:
    from rtk.model.loader import Outline
    from rtk.model.negotiation import Needs
    from rtk.model.probe import Probe
    from rtk.plugin import AttentionBackend, Capabilities, KVLayout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """An attention backend, with the page size that it would be used with and what keeps it from serving."""

    entry: Registered
    attention: "AttentionBackend | None" = None
    declared: "Capabilities | None" = None
    """What it declared as it was built. It and `attention` are None where that cannot be done."""
    page_size: int = 1
    problems: tuple[str, ...] = ()
    absent: bool = False
    """Whether something that it needs is not on this machine: a package, or a compiler."""

    @property
    def name(self) -> str:
        """What configuration chooses it by."""
        return self.entry.plugin.name

    @property
    def preference(self) -> int:
        """See `Capabilities.preference`; that of one that cannot be asked says nothing."""
        return 0 if self.declared is None else self.declared.preference

    @property
    def order(self) -> tuple[bool, int, bool, str]:
        """Smaller is better: by preference, rtk's own before others, by name. Those that cannot be built come last."""
        return self.declared is None, -self.preference, self.entry.origin.distribution != OURS, self.name

    def why_not(self) -> str:
        """What keeps it from serving, in one piece of a line."""
        return "; ".join(self.problems)


@dataclass(frozen=True, slots=True)
class Settled:
    """The backend that serves."""

    name: str
    attention: "AttentionBackend"
    declared: "Capabilities"
    layout: "KVLayout"
    told: str
    """What was chosen and why, in one line."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The backends that configuration allows, best first, as far as they have been judged."""

    config: Config
    registry: Registry
    device: str
    """The torch device that they are to run on."""
    backends: tuple[Backend, ...]

    @property
    def by_name(self) -> bool:
        """Whether configuration names the one that serves."""
        return self.config.attention.backend not in AttentionConfig.words

    @property
    def best(self) -> Backend | None:
        """The first that can serve and may be taken, as far as can be told; None: there is none."""
        able = (one for one in self.backends if not one.problems)
        return next((one for one in able if self.by_name or one.preference >= 0), None)

    @property
    def taken(self) -> Backend:
        """The best, where there is one."""
        assert self.best is not None, "narrowed: one is left"
        return self.best

    def judged(self, needs: "Needs | None") -> "Choice":
        """The same, compared with device, page size and what is known of the model (None: what is configured)."""
        return replace(self, backends=tuple(self._judge(one, needs) for one in self.backends))

    def _judge(self, one: Backend, needs: "Needs | None") -> Backend:
        import torch

        from rtk.model.negotiation import Unread, conflicts, page_size

        if one.declared is None:
            return one
        declared, wanted, model = one.declared, self.config.cache.page_size, self.config.model
        needs = needs or Unread(None if model.dtype == "auto" else model.dtype)
        pages = page_size(declared, wanted)
        graphs = model.cuda_graphs is True
        problems = conflicts(declared, needs, torch.device(self.device), wanted, graphs=graphs)
        schedule = self.config.schedule
        if wanted is None and (short := too_short(schedule, pages)) and not too_short(schedule, 1):
            name, tokens = short
            problems.append(f"{name} = {tokens} (prompts are cut at borders of its pages, which hold {pages} tokens)")
        return replace(one, page_size=pages, problems=tuple(problems))

    def configured(self) -> "Choice":
        """Of every backend, those that configuration allows. Raises `PluginError` where it names none of them."""
        if not self.by_name:
            return self
        entry = self.registry.get("attention", self.config.attention.backend)
        return replace(self, backends=tuple(one for one in self.backends if one.entry is entry))

    @property
    def compute_capability(self) -> int | None:
        """The device's."""
        import torch

        from rtk.model.negotiation import compute_capability

        return compute_capability(torch.device(self.device))

    def narrowed(self, needs: "Needs | None") -> "Choice":
        """As `judged`. Raises `ConfigError` where nothing is left that can serve."""
        return self.judged(needs).left(needs)

    def rehearsed(self, outline: "Outline | None") -> "Choice":
        """As `judged`, and those that cannot lay out K/V of the model, as far as its files tell, cannot serve it."""
        from rtk.model.probe import Probe

        choice = self.judged(outline)
        if outline is None or outline.shape is None or outline.dtype is None:
            return choice
        needs = Probe(outline.shape, outline.features, outline.dtype)
        return replace(choice, backends=tuple(_laid_out(one, needs) for one in choice.backends))

    def left(self, needs: "Needs | None") -> "Choice":
        """The same. Raises `ConfigError` where nothing is left that can serve; `needs` are what it was judged by."""
        if self.best is None:
            raise ConfigError(self.refusal(needs))
        return self

    def settled(self, ask: "Callable[[frozenset[str]], Probe]") -> Settled:
        """Have the best backend say how it keeps K/V of the model, if that is one that it can serve.

        `ask` tells what the model needs of a backend that serves these kinds of attention, and prepares it for that. A
        backend that cannot serve is passed over, where another may be taken. Raises `RtkError` where none is left.
        """
        choice, needs, asked = self, None, frozenset[str]()
        while one := choice.best:
            assert one.attention is not None and one.declared is not None, "it was built"
            if needs is None or asked != one.declared.kinds:
                asked = one.declared.kinds
                needs = ask(asked)
            judged = choice._judge(one, needs)
            try:
                layout = None if judged.problems else _layout(one.entry, one.attention, one.page_size, needs)
            except RtkError as error:
                if self.by_name:
                    raise
                if error.__cause__ is not None:
                    log.warning("%s; it is not used", error)
                judged = _not_laid_out(one, error)
            else:
                if layout is not None:
                    told = f"attention {one.name}, {choice.why}"
                    return Settled(one.name, one.attention, one.declared, layout, told)
            choice = replace(choice, backends=tuple(judged if other is one else other for other in choice.backends))
        raise ConfigError(choice.refusal(needs))

    def refusal(self, needs: "Needs | None") -> str:
        """Why nothing can serve, and what could."""
        if not self.by_name:
            reasons = (f"{one.name}: {one.why_not() or _held_back(one)}" for one in self.backends)
            return (
                f"no attention backend can serve: {', or '.join(reasons) or 'none is installed'}; see 'rtk attention'"
            )
        (one,) = self.backends
        if one.declared is None:
            return f"{one.entry.label} {one.why_not()}"
        others = every_backend(self.config, self.registry, self.device).judged(needs)
        able = [other.name for other in others.backends if not other.problems and other.entry is not one.entry]
        choose = f"choose {', '.join(able)}" if able else "no other that is installed can either; see 'rtk attention'"
        return f"attention backend {one.name!r} cannot serve {one.why_not()}; {choose}"

    @property
    def why(self) -> str:
        """How the page size and the choice came about, for a line that names what was chosen."""
        taken = self.taken
        if self.by_name:
            return f"{_pages(self.config, taken)}, by attention.backend"
        others = [one for one in self.backends if one.declared is None or one.order < taken.order]
        passed = [f"; not {one.name}: {one.why_not()}" for one in others if not one.absent]
        if absent := ", ".join(one.name for one in others if one.absent):
            passed.append(f"; absent: {absent}")
        return f"{_pages(self.config, taken)}, by auto{''.join(passed)}"


def _pages(config: Config, taken: Backend) -> str:
    """The page size, and how it came about."""
    takes = None if taken.declared is None else taken.declared.page_sizes
    text = f"pages of {taken.page_size:,} token{'s' * (taken.page_size != 1)}"
    if config.cache.page_size is not None or takes is None or taken.page_size == 1:
        return text
    return f"{text} (it takes {', '.join(map(str, sorted(takes)))})"


def _held_back(one: Backend) -> str:
    return f"it is taken by name only (preference {one.preference})"


def allowed(config: Config, registry: Registry, device: str) -> Choice:
    """Build the backend that is named, or all. Raises `PluginError` where one that is named cannot be built."""
    section = config.attention
    if section.backend not in AttentionConfig.words:
        return Choice(config, registry, device, (_built(config, registry.get("attention", section.backend)),))
    choice = every_backend(config, registry, device)
    for one in choice.backends:
        if one.declared is None and not one.absent:
            log.warning("%s %s; it is not used", one.entry.label, one.why_not())
    return choice


def every_backend(config: Config, registry: Registry, device: str) -> Choice:
    """Build every backend that is installed; one that cannot be built says why, and keeps nobody from serving."""
    entries = registry.of_kind("attention")
    found = [_tried(config, entry) for entry in entries if hasattr(config.attention, options_field(entry.plugin.name))]
    return Choice(config, registry, device, tuple(sorted(found, key=lambda one: one.order)))


def _built(config: Config, entry: Registered) -> Backend:
    def build() -> Backend:
        attention = entry.build(config.attention.options(entry.plugin.name))
        declared = declared_by(attention)
        if isinstance(declared, str):
            raise PluginError(f"{entry.label} cannot be used: its capabilities are others each time; {INSTEAD}")
        return Backend(entry, attention, declared)

    with built_in(config.model.cache_dir / "native"):
        return entry.ask_in_time(build, "be built")


def _tried(config: Config, entry: Registered) -> Backend:
    try:
        return _built(config, entry)
    except PluginError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, RtkError):
            why = str(cause or error).removeprefix(f"{entry.label} ")
        else:
            why = f"cannot be built: {one_line(cause)}"
        return Backend(entry, problems=(why,), absent=isinstance(cause, ImportError))


def _laid_out(one: Backend, needs: "Probe") -> Backend:
    """The same, with what keeps it from laying out K/V of the model."""
    if one.attention is None or one.problems:
        return one
    try:
        _layout(one.entry, one.attention, one.page_size, needs)
    except RtkError as error:
        return _not_laid_out(one, error)
    return one


def _not_laid_out(one: Backend, error: RtkError) -> Backend:
    why = str(error) if error.__cause__ is None else one_line(error.__cause__)
    return replace(one, problems=(f"the model's K/V ({why})",))


def _layout(entry: Registered, attention: "AttentionBackend", page_size: int, needs: "Probe") -> "KVLayout":
    """How it keeps K/V. Raises `RtkError` where it does not say, or says what no pool can be made of."""
    from rtk.plugin.attention import BufferSpec, KVLayout

    def ask() -> KVLayout:
        layout = attention.layout(needs.shape, page_size, needs.dtype)
        if problem := _no_layout(layout, needs.shape.layers, page_size):
            raise PluginError(f"{entry.label} cannot be used: {problem}; {INSTEAD}")
        buffers = (BufferSpec(one.name, one.shape, one.dtype) for one in layout.buffers)
        return KVLayout(layout.layers, layout.page_size, tuple(buffers))  # without code of its own in it

    return entry.ask_in_time(ask, "lay out K/V")


def _no_layout(layout: object, layers: int, page_size: int) -> str:
    """Why no pool can be made of that; empty if one can."""
    from rtk.plugin.attention import DTYPE_BYTES, BufferSpec, KVLayout

    if not isinstance(layout, KVLayout):
        return f"its layout is a {type(layout).__name__}, not a KVLayout"
    if not _is_number(layout.page_size) or layout.page_size != page_size:
        return f"asked for pages of {page_size} tokens, it laid out pages of {layout.page_size!r}"
    if not _is_number(layout.layers) or layout.layers != layers:
        return f"asked for {layers} layers, it laid out {layout.layers!r}"
    buffers = layout.buffers
    if not isinstance(buffers, tuple) or not buffers or not all(isinstance(one, BufferSpec) for one in buffers):
        return "its layout has no tuple of buffers"
    if not all(isinstance(one.name, str) for one in buffers):
        return f"buffers of its layout have names that are no text: {', '.join(repr(one.name) for one in buffers)}"
    if len({one.name for one in buffers}) < len(buffers):
        return f"buffers of its layout have one name: {', '.join(repr(one.name) for one in buffers)}"
    for one in buffers:
        if not isinstance(one.dtype, str) or one.dtype not in DTYPE_BYTES:
            return f"buffer {one.name!r} of its layout is of dtype {one.dtype!r}; there are {', '.join(DTYPE_BYTES)}"
        if not isinstance(one.shape, tuple) or not all(_is_number(n) and n >= 1 for n in one.shape):
            return f"buffer {one.name!r} of its layout has shape {one.shape!r}; it takes whole numbers from 1 up"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def border(schedule: ScheduleConfig, page: int) -> int:
    """Prompts are cut at multiples of this."""
    return lcm(page, schedule.truncation_align_size or 1)


def too_short(schedule: ScheduleConfig, page: int) -> tuple[str, int] | None:
    """The key that allows no piece of a prompt from border to border, and its tokens; None: there is none."""
    if schedule.chunked_prefill_size == -1:
        return None
    for name in ("chunked_prefill_size", "mixed_chunk_size", "max_prefill_tokens"):
        tokens = getattr(schedule, name)
        if tokens is not None and tokens < border(schedule, page):
            return f"schedule.{name}", tokens
    return None
