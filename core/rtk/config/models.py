"""The configuration tree: frozen sections whose fields are the only list of keys, defaults and descriptions.

Flags, environment names and help are generated from it (see `keys`). The sections with plugins get one sub-section for
every installed plugin (see `tree`).
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from rtk.config.sections import MAX_TOKENS, MIB, PluginSection, Section, at_home, flag, plugin_name
from rtk.config.serving import ServeConfig
from rtk.model.catalogue import DEFAULT_MODEL

MAX_THREADS = 4096
MAX_CONSERVATIVENESS = 100.0
"""From 1 / 0.7 on, running answers are reserved in full."""


def _device(name: str) -> str:
    if not re.fullmatch(r"[a-z]+(:\d+)?", name):
        raise ValueError("must be auto, or a torch device such as cpu, cuda or cuda:1")
    return name


def _exporter(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError("must be the name of an exporter, such as otlp, otlp_proto_http or console")
    return name


def _cache_dir() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("rtk")


def _specifier(versions: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError("must be a version specifier, such as >=1.2 or >=1.2,<2; empty: any version") from None
    return versions


def _package(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise ValueError("must be the name of a package, without extras and versions")
    return name


PackageName = Annotated[str, AfterValidator(_package)]
PluginName = Annotated[str, AfterValidator(plugin_name)]


class ModelConfig(Section):
    """Which model, and how it is held."""

    path: str = Field(
        default=DEFAULT_MODEL,
        min_length=1,
        description="name of a catalogue or imported model, folder of a checkpoint, or hub id org/name",
        json_schema_extra=flag("--model"),
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="type of weights and K/V; auto: what suits model and device"
    )
    quantize: Literal["int8"] | None = Field(
        default=None,
        description="what weights of linear layers are rounded to when they are loaded: int8: 8 bits, with a scale for "
        "each 128 of a row; float32 on a CPU with AVX-512; null: nothing",
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        default="auto", description="torch device; auto: cuda where there is one, else cpu"
    )
    context_length: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="longest sequence, prompt and answer together; null: the model's own",
    )
    served_name: str | None = Field(
        default=None, min_length=1, description="model name that clients see; null: last part of the path"
    )
    thinking_end: str = Field(
        default="auto",
        min_length=1,
        description="text that ends the model's thinking, or a family whose models end it alike: deepseek-r1, kimi, "
        "mistral, qwen3, seed-oss; auto: what of those is a token; none: it never thinks",
        json_schema_extra=flag("--reasoning-parser"),
    )
    trust_remote_code: bool = Field(default=False, description="run Python code that comes with a checkpoint")
    cache_dir: Annotated[Path, AfterValidator(at_home)] = Field(
        default_factory=_cache_dir,
        description="folder for fetched and imported models, and for kernels that are compiled here",
    )
    cuda_graphs: bool | None = Field(
        default=None,
        description="launch steps that only decode as CUDA graphs; null: on CUDA devices, where the attention backend "
        "can be captured",
    )
    threads: int | None = Field(
        default=None, ge=1, le=MAX_THREADS, description="CPU threads of one operation; null: torch's own choice"
    )


class PinsConfig(Section):
    """Prefixes that stay cached because somebody asked for it."""

    budget: int | None = Field(
        default=None,
        ge=0,
        description="tokens that all pins together may hold; null: a quarter of the KV pool",
        json_schema_extra=flag("--pin-budget"),
    )


class CacheConfig(Section):
    """The KV pool and the prefix cache in it."""

    disable: bool = Field(
        default=False, description="keep no prefixes for later requests", json_schema_extra=flag("--disable-cache")
    )
    page_size: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="tokens in one page of the KV pool; null: the attention backend's: 1, or the smallest it takes",
    )
    pool_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="tokens that the KV pool holds; null: from mem_fraction"
    )
    mem_fraction: float | None = Field(
        default=None, gt=0, le=1, description="share of the free memory that the KV pool takes; null: chosen by device"
    )
    pins: PinsConfig = Field(default_factory=PinsConfig, description="pinned prefixes")

    @model_validator(mode="after")
    def _is_sized_once(self) -> Self:
        if self.pool_tokens is not None and self.mem_fraction is not None:
            raise ValueError("pool_tokens and mem_fraction both size the KV pool; set one of them")
        return self


class EvictionConfig(PluginSection):
    """Which cached prefix goes first when the pool is full."""

    kind = "eviction"
    choice = "policy"

    policy: PluginName = Field(
        default="lru", description="eviction plugin; 'rtk plugins' lists them", json_schema_extra=flag("--eviction")
    )


class ScheduleConfig(PluginSection):
    """Which waiting request runs first, and how many run together."""

    kind = "schedule"
    choice = "policy"

    policy: PluginName = Field(
        default="fcfs", description="schedule plugin; 'rtk plugins' lists them", json_schema_extra=flag("--schedule")
    )
    max_running: int = Field(default=64, ge=1, le=MAX_TOKENS, description="requests that decode together")
    max_prefill_tokens: int = Field(
        default=16384, ge=1, le=MAX_TOKENS, description="uncached prompt tokens that one step computes"
    )
    chunked_prefill_size: int | None = Field(
        default=None,
        ge=-1,
        le=MAX_TOKENS,
        description="longest piece of a prompt that one step computes; null: chosen by device; -1: prompts are not cut",
    )
    overlap: bool | None = Field(
        default=None, description="launch a step before the results of the one before are in; null: chosen by device"
    )
    truncation_align_size: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="prompts are cut at multiples of this too; null: of pages only"
    )
    mixed_chunk: bool | None = Field(
        default=None,
        description="let running requests decode in the steps that compute prompts; null: chosen by device",
    )
    mixed_chunk_size: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="longest piece of a prompt beside requests that decode, while no more wait than decode; "
        "null: chosen by device",
    )
    conservativeness: float = Field(
        default=1.0,
        gt=0,
        le=MAX_CONSERVATIVENESS,
        description="how much of running answers is reserved; lower runs more requests and retracts more",
    )
    retraction: Literal["length", "priority"] = Field(
        default="length",
        description="who makes room first: who has generated least, or who is least important",
    )
    max_queue: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description="requests that may wait; one more is refused (503); null: any number",
    )
    max_wait_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TOKENS,
        description="seconds that a request may wait for its start, else it ends with 503; null: any time",
    )

    @field_validator("chunked_prefill_size")
    @classmethod
    def _is_a_size(cls, tokens: int | None) -> int | None:
        if tokens == 0:
            raise ValueError("must be a number of tokens, or -1 for prompts that are not cut")
        return tokens


class AttentionConfig(PluginSection):
    """Who computes attention over the KV pool."""

    kind = "attention"
    choice = "backend"
    words = ("auto",)

    backend: PluginName = Field(
        default="auto",
        description="attention plugin; auto: the best that can serve the model here, as 'rtk attention' shows",
        json_schema_extra=flag("--attention"),
    )


class GrammarConfig(PluginSection):
    """Who sees to it that answers have the form that clients ask for, and what that may cost."""

    kind = "grammar"
    choice = "backend"
    words = ("auto", "none")

    backend: PluginName = Field(
        default="auto",
        description="grammar plugin; auto: all that are installed; none: no request may ask for a form",
        json_schema_extra=flag("--grammar"),
    )
    whitespace: int = Field(
        default=8,
        ge=0,
        le=256,
        description="characters of white space between two tokens of a JSON answer, at most",
        json_schema_extra=flag("--grammar-whitespace"),
    )
    jump_forward: bool = Field(
        default=True,
        description="compute several tokens at once where a form leaves little choice; changes no answer",
        json_schema_extra=flag("--jump-forward"),
    )
    verify: bool = Field(
        default=False,
        description="check every finished answer that has a form once more, with jsonschema, and report the result",
        json_schema_extra=flag("--grammar-verify"),
    )
    compile_workers: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="processes that judge forms, and as many that compile grammars; null: half of the cores",
        json_schema_extra=flag("--grammar-workers"),
    )
    compile_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=MAX_TOKENS,
        description="seconds that one grammar may take to compile; one that takes longer is refused (400)",
        json_schema_extra=flag("--grammar-timeout-s"),
    )
    compile_memory_bytes: int = Field(
        default=2048 * MIB,
        ge=1,
        description="memory that one grammar may take while it is compiled (enforced on Linux)",
        json_schema_extra=flag("--grammar-memory-bytes"),
    )
    cache_bytes: int = Field(
        default=256 * MIB,
        ge=1,
        description="what compiled grammars that are kept may have together, and so each of them",
        json_schema_extra=flag("--grammar-cache-bytes"),
    )
    max_spec_bytes: int = Field(
        default=MIB // 4,
        ge=1,
        description="longest text of a schema, pattern or grammar, as rtk writes it",
        json_schema_extra=flag("--grammar-spec-bytes"),
    )
    max_queue: int = Field(
        default=256,
        ge=1,
        le=MAX_TOKENS,
        description="different grammars that may be on their way; one more is refused (503)",
        json_schema_extra=flag("--grammar-queue"),
    )


class ObserveConfig(PluginSection):
    """Who is told what the engine does: observers, each in a process of its own, the log, and traces."""

    kind = "observer"
    choice = "plugins"

    plugins: tuple[PluginName, ...] = Field(
        default=(), description="observer plugins, a JSON array of names", json_schema_extra=flag("--observe")
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="how log lines look; json: one object a line, with the id of the request"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least important log lines that are written"
    )
    traces: Annotated[str, AfterValidator(_exporter)] | None = Field(
        default=None,
        description="name of the OpenTelemetry exporter that gets a span for each request, such as otlp; null: none",
    )

    @property
    def all_chosen(self) -> tuple[str, ...]:
        """Names of the observers, each once."""
        return tuple(dict.fromkeys(self.plugins))


class PluginsConfig(Section):
    """Which packages must be there, and whether broken ones matter."""

    require: dict[PackageName, Annotated[str, AfterValidator(_specifier)]] = Field(
        default_factory=dict,
        description="packages that must be installed, and in which versions: checked at the start",
        json_schema_extra=flag("--require-plugins"),
    )
    strict: bool = Field(
        default=False,
        description="start only where every installed plugin can be used, also those that nobody chose",
        json_schema_extra=flag("--strict-plugins"),
    )


class Config(Section):
    """Everything that can be set. Build it through `rtk.config.load`, which knows the installed plugins."""

    model: ModelConfig = Field(default_factory=ModelConfig, description="the model")
    cache: CacheConfig = Field(default_factory=CacheConfig, description="KV pool and prefix cache")
    eviction: EvictionConfig = Field(default_factory=EvictionConfig, description="eviction from the prefix cache")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="order and size of batches")
    attention: AttentionConfig = Field(default_factory=AttentionConfig, description="attention backend")
    grammar: GrammarConfig = Field(default_factory=GrammarConfig, description="structured output")
    observe: ObserveConfig = Field(default_factory=ObserveConfig, description="observers, log and traces")
    plugins: PluginsConfig = Field(default_factory=PluginsConfig, description="packages with plugins")
    serve: ServeConfig = Field(default_factory=ServeConfig, description="HTTP server")


PLUGIN_SECTIONS: dict[str, type[PluginSection]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, PluginSection)
}
"""The sections that choose plugins, by name."""
