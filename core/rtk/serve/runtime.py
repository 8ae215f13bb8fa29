"""From a configuration to a running engine: model, pool and scheduler; and, in one process, the client protocol."""

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from rtk.config.models import Config
from rtk.errors import PluginError, RtkError
from rtk.grammar.judges import Judges
from rtk.grammar.manager import Chosen, GrammarManager, GrammarSettings, default_workers, start_manager
from rtk.model.progress import Progress, silent
from rtk.observe.feed import Feeds
from rtk.observe.vitals import gc_watch, process_report
from rtk.plugin.grammar import GrammarBackend
from rtk.plugin.host import installed
from rtk.schedule.build import Policies, build_scheduler
from rtk.schedule.messages import Outbound
from rtk.schedule.reports import Reports
from rtk.schedule.scheduler import Scheduler
from rtk.schedule.settings import Settings
from rtk.serve.computing import Computing
from rtk.serve.detokenizer import Detokenizer
from rtk.serve.protocol import ModelFacts, Vitals, sampling_defaults
from rtk.serve.scheduler_thread import AfterStep, Deliver, SchedulerThread
from rtk.serve.thinking import thinking
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.tokenizer_manager import TokenizerManager
from rtk.serve.vocabulary import vocabulary

log = logging.getLogger(__name__)

Fetching = Callable[[], AbstractContextManager[Progress]]
"""Entered while a model is brought here; gives whoever shows the progress."""


def quietly() -> AbstractContextManager[Progress]:
    """Show nothing."""
    return nullcontext(silent)


class Parts(NamedTuple):
    """What an engine is made of."""

    policies: Policies
    computing: Computing
    tokenizer: Tokenizer
    feeds: Feeds
    """The observers, which end with the engine."""


@contextmanager
def parts(config: Config, locate: Callable[[], Path]) -> Iterator[Parts]:
    """Build the plugins, and load the model from the folder that `locate` answers.

    Plugins come first: what is wrong with them shows before a model is looked for. Where the block that makes an engine
    of the parts fails, the observers end. Raises `RtkError` where something is missing or does not fit.
    """
    from rtk.serve.computing import choose_backend, load

    feeds = start_observers(config)
    try:
        policies, backend = build_policies(config), choose_backend(config, installed())
        folder = locate()
        tokenizer = Tokenizer.load(folder)
        computing = load(config, backend, folder, tokenizer.size)
        yield Parts(policies, computing, tokenizer, feeds)
    except BaseException:
        feeds.close()
        raise
    log.info(computing.summary)


class EngineCore:
    """The scheduler in its thread, with model, pool, grammars and observers behind it: messages in, messages out."""

    def __init__(
        self,
        config: Config,
        policies: Policies,
        computing: Computing,
        tokenizer: Tokenizer,
        feeds: Feeds,
        deliver: Deliver,
        after_step: AfterStep | None = None,
    ) -> None:
        self.facts = ModelFacts(
            served_name=config.model.served_name or Path(config.model.path).name,
            vocab_size=computing.vocab_size,
            context_length=computing.limits.context_length,
            attention=computing.attention,
            page_size=computing.limits.page_size,
            default_sampling=sampling_defaults(computing.generation_config),
            reads_priority=policies.read_priority,
            reads_routing_key=policies.read_routing_key,
        )
        """What clients may know."""
        self._feeds = feeds
        self._watches = False
        reports = feeds if len(feeds) else None
        grammars = start_grammars(config, computing, tokenizer, lambda: self.thread.wake())
        self.grammar_backends = None if grammars is None else grammars.backends
        """Who may be asked for; None: there are no grammars."""
        scheduler = _scheduler(config, policies, computing, tokenizer, reports, grammars)
        scheduler.health.plugins += [f"grammar plugin {name!r}" for name in self.grammar_backends or ()]
        self.thread = SchedulerThread(scheduler, deliver, after_step)

    @property
    def vitals(self) -> Vitals:
        """How it is; from any thread."""
        return dataclasses.replace(self.thread.vitals, observers=self._feeds.report(), process=process_report())

    def start(self) -> None:
        """Begin to serve. Called once."""
        gc_watch.start()
        self._watches = True
        self.thread.start()

    def close(self) -> None:
        """Stop; requests that still run end with an error. Safe to call twice."""
        self.thread.stop()
        self._feeds.close()
        if self._watches:
            gc_watch.stop()
        self._watches = False


class Runtime:
    """A running engine, all of it in this process. `manager` is the way in; `close` ends it."""

    def __init__(
        self,
        config: Config,
        policies: Policies,
        computing: Computing,
        tokenizer: Tokenizer,
        after_step: AfterStep | None = None,
        feeds: Feeds | None = None,
    ) -> None:
        """Starts the scheduler's thread. `feeds`: the observers, which end with the engine."""
        self.config = config
        self._core = EngineCore(config, policies, computing, tokenizer, feeds or Feeds(), self._deliver, after_step)
        self._thread = self._core.thread
        self._forms = start_judges(config, self._core.grammar_backends)
        self._detokenizer = Detokenizer(tokenizer.assembler)
        self.manager = TokenizerManager(
            tokenizer,
            self._detokenizer.before(self._thread.send),
            self._core.facts,
            healthy=lambda: self._thread.healthy,
            forms=self._forms,
            thinking=thinking(tokenizer, config.model.thinking_end),
            vitals=lambda: self._core.vitals,
        )
        self._core.start()

    def _deliver(self, messages: list[Outbound]) -> None:
        self.manager.deliver(self._detokenizer.process(messages))

    def close(self) -> None:
        """Stop the scheduler; requests that still run end with an error. Safe to call twice."""
        self._core.close()
        if self._forms is not None:
            self._forms.close()


def start(config: Config, fetching: Fetching = quietly, after_step: AfterStep | None = None) -> Runtime:
    """Find the model (fetching it where it is missing), load it, and start serving requests in this process.

    `after_step` runs in the scheduler's thread. Raises `RtkError` where something is missing or does not fit.
    """
    with parts(config, lambda: find_or_fetch(config, fetching)) as loaded:
        return Runtime(config, loaded.policies, loaded.computing, loaded.tokenizer, after_step, loaded.feeds)


def find_or_fetch(config: Config, fetching: Fetching) -> Path:
    """The folder of the configured model, which is brought here where it is missing. Raises `RtkError`."""
    from rtk.model.store import resolve_model

    with fetching() as progress:
        return resolve_model(config.model.path, cache_dir=config.model.cache_dir, progress=progress)


def start_observers(config: Config) -> Feeds:
    """Start the chosen observers, each in a process of its own. Raises `PluginError`."""
    section = config.observe
    return Feeds((installed().get("observer", name), section.options(name)) for name in section.all_chosen)


def build_policies(config: Config) -> Policies:
    """Import and build the chosen policies. Raises `PluginError`."""
    registry = installed()
    eviction = registry.get("eviction", config.eviction.policy)
    schedule = registry.get("schedule", config.schedule.policy)
    evicts = eviction.build_in_time(config.eviction.options())
    facts = eviction.ask_in_time(lambda: frozenset(evicts.facts), "be used")
    return Policies(
        eviction=evicts,
        eviction_name=eviction.plugin.name,
        schedule=schedule.build_in_time(config.schedule.options()),
        schedule_name=schedule.plugin.name,
        schedule_requires=schedule.plugin.requires,
        read_priority="priority" in facts | schedule.plugin.requires | {config.schedule.retraction},
        read_routing_key="routing_key" in schedule.plugin.requires,
    )


def build_grammar_backends(config: Config) -> list[Chosen]:
    """Import and build the grammar plugins that requests may ask for. Raises `PluginError` for one that was named."""
    section, chosen = config.grammar, []
    for name in section.all_chosen:
        entry, options = installed().get("grammar", name), section.options(name)
        with _optional(config, "it is not used"):
            chosen.append(Chosen(entry, options, entry.build_in_time(options)))
    return chosen


def start_grammars(
    config: Config, computing: Computing, tokenizer: Tokenizer, wake: Callable[[], None]
) -> GrammarManager | None:
    """Who compiles grammars; None: nobody, and requests may not have any. Starts no process yet.

    Raises `RtkError` where a backend was named and cannot be used here.
    """
    chosen, section = build_grammar_backends(config), config.grammar
    if not chosen:
        return None
    settings = GrammarSettings(
        workers=section.compile_workers or default_workers(),
        timeout_s=section.compile_timeout_s,
        memory_bytes=section.compile_memory_bytes,
        cache_bytes=section.cache_bytes,
        max_spec_bytes=section.max_spec_bytes,
        max_queue=section.max_queue,
    )
    with _optional(config, "there is no structured output"):
        return start_manager(chosen, vocabulary(tokenizer, computing.vocab_size, computing.end_tokens), settings, wake)
    return None


def start_judges(config: Config, backends: Mapping[str, GrammarBackend] | None) -> Judges | None:
    """Who reads and judges the forms that requests ask for; None: nobody. Starts no process yet."""
    if backends is None:
        return None
    section = config.grammar
    return Judges(
        {name: (installed().get("grammar", name), section.options(name)) for name in backends},
        backends,
        whitespace=section.whitespace,
        verify=section.verify,
        limit_s=section.compile_timeout_s,
        memory_bytes=section.compile_memory_bytes,
        lanes=section.compile_workers or default_workers(),
    )


@contextmanager
def _optional(config: Config, instead: str) -> Iterator[None]:
    """What was not asked for by name does not keep an engine from starting.

    A plugin that is broken is a warning. One whose package is not installed is not, nor a model that there are no
    grammars for: requests are told.
    """
    try:
        yield
    except RtkError as error:
        if config.grammar.backend != "auto":
            raise
        broken = isinstance(error, PluginError) and not isinstance(error.__cause__, ImportError)
        log.log(logging.WARNING if broken else logging.INFO, "%s; %s", error, instead)


def _scheduler(
    config: Config,
    policies: Policies,
    computing: Computing,
    tokenizer: Tokenizer,
    reports: Reports | None,
    grammars: GrammarManager | None,
) -> Scheduler:
    return build_scheduler(
        policies,
        computing.executor,
        computing.limits,
        settings=Settings(
            conservativeness=config.schedule.conservativeness,
            mixed_chunk=computing.mixed,
            retraction=config.schedule.retraction,
            overlap=computing.overlap,
            jump_forward=config.grammar.jump_forward,
            max_queue=config.schedule.max_queue,
            max_wait_s=config.schedule.max_wait_s,
        ),
        cache_enabled=not config.cache.disable,
        pin_budget=config.cache.pins.budget,
        end_tokens=computing.end_tokens,
        match_stop=tokenizer.match_stop,
        clock=time.monotonic,
        rng=random.Random(),
        reports=reports,
        grammars=grammars,
    )
