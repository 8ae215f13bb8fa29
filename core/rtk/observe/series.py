"""Every series of /metrics: its name, what it says, and where in a snapshot it is found.

All of them are there from the start, with 0: who looks for what has not happened yet must not find nothing.
docs/observability.md lists them, and a test compares.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rtk.observe.histogram import WAIT_S, Distribution
from rtk.observe.vitals import ProcessReport
from rtk.schedule.messages import Stats
from rtk.schedule.meters import HISTOGRAMS, PARTS, STAGES

Kind = Literal["gauge", "counter", "histogram"]
Number = int | float
Labelled = Mapping[tuple[str, ...], Number | Distribution]
"""Values by the values of the labels."""

UNASKED = Stats(id=0, values={})
"""Of an engine that has not answered yet."""

REASONS = ("stop", "length", "abort", "error")
STATES = ("free", "evictable", "protected", "held")
VERDICTS = ("exact", "narrowed", "loosened", "refused")
FAILURES = ("deadline_exceeded", "queue_timeout", "generation_failed", "grammar_dead_end", "grammar_failed")
"""Codes of requests that end with an error, those that are counted from the start."""
REFUSALS = ("queue_full", "context_length_exceeded", "never_fits", "grammar_queue_full")
"""Likewise of requests that the scheduler does not accept."""
ERRORS = ("invalid_request", "queue_full", "queue_timeout", "deadline_exceeded", "internal_error", "engine_stopped")
"""Likewise of errors that clients are told of."""
UNCOMPILED = ("invalid", "timeout", "too_large", "failed", "unbuildable", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is known at one moment."""

    stats: Stats = UNASKED
    """The engine's, as it told them last."""
    up: bool = True
    """Whether it did just now."""
    age_s: float = 0.0
    """How old they are."""
    uptime_s: float = 0.0
    version: str = ""
    model: str = ""
    in_flight: int = 0
    early_aborts: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reports that observers missed."""
    responses: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """By path and status."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """By code."""
    processes: Mapping[str, ProcessReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """One series, or one for each value of its labels."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str
    read: Callable[[Snapshot], Labelled]


def _own(read: Callable[[Snapshot], Number]) -> Callable[[Snapshot], Labelled]:
    return lambda now: {(): read(now)}


def _value(name: str) -> Callable[[Snapshot], Labelled]:
    """One of the engine's counters or gauges."""
    return lambda now: {(): now.stats.values.get(name, 0)}


def _values(names: Mapping[str, str]) -> Callable[[Snapshot], Labelled]:
    """Several of them, by the label that each stands under."""
    return lambda now: {(label,): now.stats.values.get(name, 0) for label, name in names.items()}


def _counts(name: str, known: Iterable[str] = ()) -> Callable[[Snapshot], Labelled]:
    """One of the engine's counters that are told apart; these from the start."""
    known = tuple(known)

    def read(now: Snapshot) -> Labelled:
        return {
            (label,): count for label, count in {**dict.fromkeys(known, 0), **now.stats.counts.get(name, {})}.items()
        }

    return read


def _histogram(name: str, bounds: tuple[float, ...]) -> Callable[[Snapshot], Labelled]:
    return lambda now: {(): now.stats.histograms.get(name) or _empty(bounds)}


def _empty(bounds: tuple[float, ...]) -> Distribution:
    return Distribution(bounds, (0,) * (len(bounds) + 1), 0.0)


def _skipped(now: Snapshot) -> Labelled:
    known = [*(f"{name}:clock" for name in HISTOGRAMS), "time_to_first_token_seconds:no_token"]
    found = {**dict.fromkeys(known, 0), **now.stats.counts.get("skipped", {})}
    return {tuple(f"rtk_{key}".split(":")): count for key, count in found.items()}


def _aborts(now: Snapshot) -> Labelled:
    return {("validation",): now.early_aborts, **_counts("aborts", STAGES)(now)}


def _each(read: Callable[[ProcessReport], Number | Distribution]) -> Callable[[Snapshot], Labelled]:
    return lambda now: {(name,): read(report) for name, report in now.processes.items()}


def _measured(name: str, about: str) -> Series:
    return Series(f"rtk_{name}", "histogram", (), about, _histogram(name, HISTOGRAMS[name]))


SERIES = (
    # the server
    Series("rtk_up", "gauge", (), "1 if the engine answered in time", _own(lambda now: int(now.up))),
    Series("rtk_stats_age_seconds", "gauge", (), "how old what the engine said is", _own(lambda now: now.age_s)),
    Series("rtk_uptime_seconds", "gauge", (), "since the server's start", _own(lambda now: now.uptime_s)),
    Series("rtk_info", "gauge", ("version", "model"), "1", lambda now: {(now.version, now.model): 1}),
    # requests
    Series("rtk_requests_running", "gauge", (), "requests that run", _value("running")),
    Series("rtk_requests_waiting", "gauge", (), "requests in the queue", _value("waiting")),
    Series("rtk_requests_compiling", "gauge", (), "requests that wait for their grammar", _value("compiling")),
    Series("rtk_requests_following", "gauge", (), "answers that wait for the prompt of another", _value("following")),
    Series("rtk_requests_in_flight", "gauge", (), "requests that have not ended", _own(lambda now: now.in_flight)),
    Series("rtk_queue_is_full", "gauge", (), "1 if one more request would be refused", _value("queue_is_full")),
    Series("rtk_requests_accepted_total", "counter", (), "requests accepted", _value("requests_accepted")),
    Series(
        "rtk_requests_finished_total", "counter", ("reason",), "accepted requests that ended, each once",
        _values({reason: f"finished_{reason}" for reason in REASONS}),
    ),
    Series(
        "rtk_requests_failed_total", "counter", ("code",), "those that ended with an error", _counts("failed", FAILURES)
    ),
    Series("rtk_requests_refused_total", "counter", ("code",), "requests not accepted", _counts("refused", REFUSALS)),
    Series("rtk_aborts_total", "counter", ("stage",), "aborted requests, each once", _aborts),
    Series("rtk_retractions_total", "counter", (), "times that a request had to make room", _value("retractions")),
    # time
    _measured("queue_seconds", "from the arrival of a request to its first step"),
    _measured("time_to_first_token_seconds", "from its arrival to its first token"),
    _measured("inter_token_seconds", "from one token of an answer to the next"),
    _measured("time_per_output_token_seconds", "the same as a mean over an answer"),
    _measured("request_seconds", "from the arrival of a request to its end, of those that ended by stop or length"),
    Series(
        "rtk_observations_skipped_total", "counter", ("series", "why"), "what could not be measured", _skipped
    ),
    # tokens
    Series(
        "rtk_prompt_tokens_total", "counter", ("source",), "prompt tokens of started requests: to compute, or cached",
        _values({"computed": "uncached_tokens", "device": "cached_tokens"}),
    ),
    Series("rtk_prefill_tokens_total", "counter", (), "tokens computed of prompts", _value("prefill_tokens")),
    Series("rtk_decode_tokens_total", "counter", (), "tokens computed of answers", _value("decode_tokens")),
    Series("rtk_generated_tokens_total", "counter", (), "tokens that answers got", _value("generated_tokens")),
    # the pool
    Series("rtk_pool_tokens", "gauge", ("state",), "slots of the KV pool", _values({state: state for state in STATES})),
    Series("rtk_pool_size_tokens", "gauge", (), "all of them", _value("pool")),
    Series("rtk_pinned_tokens", "gauge", (), "protected slots that pins hold", _value("pinned")),
    Series("rtk_evicted_tokens_total", "counter", ("policy",), "cached tokens given up", _counts("evicted_tokens")),
    Series("rtk_new_token_ratio", "gauge", (), "share of running answers that is reserved", _value("new_token_ratio")),
    # steps
    Series("rtk_steps_total", "counter", (), "steps computed", _value("steps")),
    Series("rtk_steps_failed_total", "counter", (), "those that failed", _value("steps_failed")),
    Series("rtk_wasted_rows_total", "counter", (), "rows of requests that had ended", _value("wasted_rows")),
    _measured("step_seconds", "from the launch of a step to its results"),
    Series(
        "rtk_step_part_seconds_total", "counter", ("part",), "what the scheduler's time goes into",
        _counts("step_part_seconds", PARTS),
    ),
    # grammars
    Series(
        "rtk_forms_total", "counter", ("verdict",), "forms that requests asked for",
        _values({verdict: f"forms_{verdict}" for verdict in VERDICTS}),
    ),
    Series("rtk_grammar_pending", "gauge", (), "grammars on their way", _value("grammar_pending")),
    Series(
        "rtk_grammar_compile_seconds", "histogram", (), "how long one took, whatever came of it",
        _histogram("grammar_compile_seconds", WAIT_S),
    ),
    Series(
        "rtk_grammar_requests_total", "counter", ("result",), "requests with a grammar, compiled before or not",
        _values({"hit": "grammar_hits", "miss": "grammar_misses"}),
    ),
    Series(
        "rtk_grammar_not_compiled_total", "counter", ("why",), "grammars that were not compiled",
        _values({why: f"grammar_{why}" for why in UNCOMPILED}),
    ),
    # health
    Series("rtk_plugin_faults_total", "counter", ("plugin",), "failures of plugins", _counts("plugin_faults")),
    Series(
        "rtk_observer_dropped_total", "counter", ("observer",), "reports that an observer missed",
        lambda now: {(name,): count for name, count in now.dropped.items()},
    ),
    Series("rtk_invariant_violations_total", "counter", (), "wrong books: bugs", _value("invariant_violations")),
    # HTTP
    Series("rtk_http_responses_total", "counter", ("path", "status"), "answers over HTTP", lambda now: now.responses),
    Series(
        "rtk_http_errors_total", "counter", ("code",), "errors that clients were told of, inside of streams too",
        lambda now: {(code,): count for code, count in {**dict.fromkeys(ERRORS, 0), **now.errors}.items()},
    ),
    # processes
    Series(
        "rtk_process_memory_bytes", "gauge", ("process",), "resident memory", _each(lambda one: one.memory_bytes)
    ),
    Series(
        "rtk_gc_pause_seconds", "histogram", ("process",), "garbage collections", _each(lambda one: one.gc_pauses)
    ),
    Series("rtk_log_drops_total", "counter", ("process",), "log lines lost", _each(lambda one: one.log_drops)),
)  # fmt: skip
