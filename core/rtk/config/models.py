"""The configuration tree: frozen sections whose fields are the only list of keys, defaults and descriptions.

Flags, environment names and help are generated from it (see `keys`). The sections with plugins get one sub-section for
every installed plugin (see `tree`).
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from rtk.errors import ConfigError
from rtk.model.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from rtk.plugin.info import Kind, Options

MIB = 1024 * 1024


MAX_TOKENS = 2**31 - 1
"""Tables of tokens, slots and requests hold int32."""
MAX_THREADS = 4096
MAX_SECONDS = 86_400.0
MAX_CONSERVATIVENESS = 100.0
"""From 1 / 0.7 on, running answers are reserved in full."""


def plugin_name(name: str) -> str:
    """The one spelling of a plugin's name."""
    from rtk.plugin.info import canonical  # the plugin package brings numpy, which help texts can do without

    return canonical(name)


def _device(name: str) -> str:
    if not re.fullmatch(r"[a-z]+(:\d+)?", name):
        raise ValueError("must be auto, or a torch device such as cpu, cuda or cuda:1")
    return name


def _exporter(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError("must be the name of an exporter, such as otlp, otlp_proto_http or console")
    return name


def _api_key(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", key.get_secret_value()):
        raise ValueError("must be printable ASCII characters without spaces, which a header can carry")
    return key


def _api_keys(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Several alternatives, whose own complaints would be about the first of them."""
    try:
        keys = validate(given)
    except ValidationError:
        raise ValueError("must be a key, a list of keys, or a mapping of tenants to the key or keys of each") from None
    if keys is not None and not tenant_keys(keys):
        raise ValueError("must have a key in it; null lets everybody in")
    for tenant, key in tenant_keys(keys):
        if tenant and not re.fullmatch(TENANT, tenant):
            raise ValueError("must name tenants by 1 to 64 letters, digits, and characters of . _ : @ -")
        if _api_key(key).get_secret_value()[0] in "[{":
            raise ValueError("must have keys that begin with neither [ nor {; a mapping is JSON, and given alone")
    return keys


def tenant_keys(keys: Any) -> list[tuple[str, SecretStr]]:
    """Every key after the name of its tenant, which is empty for keys that are given without one."""
    by_tenant = keys if isinstance(keys, dict) else {} if keys is None else {"": keys}
    listed = {name: of_one if isinstance(of_one, tuple) else (of_one,) for name, of_one in by_tenant.items()}
    return [(name, key) for name, of_one in listed.items() for key in of_one]


TENANT = r"[A-Za-z0-9._:@-]{1,64}"
"""A tenant's name."""


def _tenant(name: str) -> str:
    if not re.fullmatch(TENANT, name):
        raise ValueError("must be the name of a tenant: 1 to 64 letters, digits, and characters of . _ : @ -")
    return name


def _host(name: str) -> str:
    if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9._-]+|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*", name):
        raise ValueError("must be a name or address without port, *.NAME for all names below it, or * for any")
    return name.lower().removesuffix(".")


def _origin(origin: str) -> str:
    if not re.fullmatch(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+", origin):
        raise ValueError("must be an origin such as https://chat.example.com, without a path; or * for any")
    return origin.lower()


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # ~somebody
        raise ValueError("must be a path; there is no home folder of that name") from None


def _cache_dir() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("rtk")


def flag(name: str) -> dict[str, Any]:
    """Give a field a flag of its own instead of `--<field-name>`."""
    return {"flag": name}


class Section(BaseModel):
    """A part of the tree: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PluginSection(Section):
    """A section that chooses one plugin of a kind and holds the options of every installed one."""

    kind: ClassVar["Kind"]
    choice: ClassVar[str]
    """The field that names the chosen plugin."""
    words: ClassVar[tuple[str, ...]] = ()
    """What it may say instead of a name."""

    @property
    def chosen(self) -> str:
        """Name of the chosen plugin."""
        name: str = getattr(self, self.choice)
        return name

    @property
    def all_chosen(self) -> tuple[str, ...]:
        """Names of the chosen plugins: one, but where a section takes several."""
        return (self.chosen,)

    def options(self, name: str | None = None) -> "Options":
        """The validated options of the plugin `name`, by default of the chosen one."""
        name = plugin_name(name or self.chosen)
        try:
            found: Options = getattr(self, options_field(name))
        except AttributeError:
            raise ConfigError(
                f"this configuration holds no options of {self.kind} plugin {name!r}; "
                "build it with rtk.config.load.config_from, which asks what is installed"
            ) from None
        return found


def options_field(name: str) -> str:
    """The attribute that holds a plugin's options; in keys it goes by the plugin's own name."""
    return f"{plugin_name(name).replace('-', '_')}_options"


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
ApiKey = Annotated[SecretStr, AfterValidator(_api_key)]
ApiKeys = SecretStr | tuple[SecretStr, ...] | dict[str, SecretStr | tuple[SecretStr, ...]] | None
TenantName = Annotated[str, AfterValidator(_tenant)]
Limit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


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
    cache_dir: Annotated[Path, AfterValidator(_at_home)] = Field(
        default_factory=_cache_dir, description="folder for fetched and imported models"
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
    page_size: int = Field(default=1, ge=1, le=MAX_TOKENS, description="tokens in one page of the KV pool")
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
    mixed_chunk: bool = Field(
        default=False, description="let running requests decode in the steps that compute prompts"
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

    backend: PluginName = Field(
        default="torch", description="attention plugin; 'rtk plugins' lists them", json_schema_extra=flag("--attention")
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

    @property
    def all_chosen(self) -> tuple[str, ...]:
        """Names of the plugins that may be asked: one, all, or none."""
        installed = (plugin_name(field.alias) for field in type(self).model_fields.values() if field.alias)
        return {"auto": tuple(installed), "none": ()}.get(self.backend, (self.backend,))


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


class TlsConfig(Section):
    """Files for HTTPS."""

    cert_file: Annotated[Path, AfterValidator(_at_home)] | None = Field(
        default=None,
        description="PEM file of the certificate and those that sign it; null: plain HTTP",
        json_schema_extra=flag("--tls-cert-file"),
    )
    key_file: Annotated[Path, AfterValidator(_at_home)] | None = Field(
        default=None,
        description="PEM file of its private key; null: it is in the file of the certificate",
        json_schema_extra=flag("--tls-key-file"),
    )
    key_password: SecretStr | None = Field(
        default=None, description="what the private key is encrypted with", json_schema_extra=flag("--tls-key-password")
    )
    client_ca_file: Annotated[Path, AfterValidator(_at_home)] | None = Field(
        default=None,
        description="PEM file of who signs the certificates that clients must bring; null: they need none",
        json_schema_extra=flag("--tls-client-ca-file"),
    )


class TenantsConfig(Section):
    """What each tenant may take of the server."""

    max_requests: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="prompts of one tenant that may wait or run at a time; more are refused (429); null: any number",
        json_schema_extra=flag("--tenant-max-requests"),
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="tokens of prompts and answers of one tenant in a minute; more are refused (429); null: any number",
        json_schema_extra=flag("--tenant-tokens-per-minute"),
    )
    limits: dict[TenantName, dict[Literal["max_requests", "tokens_per_minute"], Limit | None]] = Field(
        default_factory=dict,
        description='other limits by tenant, such as {"acme": {"max_requests": 8}}; null in them: any number',
        json_schema_extra=flag("--tenant-limits"),
    )


class ServeConfig(Section):
    """The HTTP server."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0: every interface")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    max_body_bytes: int = Field(default=16 * MIB, ge=1, description="largest request body")
    max_batch: int = Field(default=128, ge=1, description="answers that one request may ask for: prompts times n")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="longest prompt of a request; null: as the model and pool allow"
    )
    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="most tokens of an answer; requests that name no number get this; null: as model and pool allow",
    )
    max_requests: int = Field(
        default=1024,
        ge=1,
        le=MAX_TOKENS,
        description="HTTP requests that may be in work at a time; one more is refused (503)",
    )
    max_connections: int = Field(
        default=4096, ge=1, le=MAX_TOKENS, description="open connections; one more is refused (503)"
    )
    header_timeout_s: float = Field(
        default=30.0, gt=0, le=MAX_TOKENS, description="seconds that a client may take to send the head of a request"
    )
    body_timeout_s: float = Field(
        default=60.0, gt=0, le=MAX_TOKENS, description="seconds that a client may take to send the body of a request"
    )
    strict_fields: bool = Field(
        default=False, description="refuse request fields that rtk does not know, instead of naming them in the answer"
    )
    tool_parser: Literal["auto", "none", "hermes", "qwen3_coder", "llama3_json", "mistral", "pythonic", "json"] = Field(
        default="auto", description="how the model writes calls of tools; auto: as its chat template says"
    )
    locked: bool = Field(default=False, description="start only with what 'rtk config lock' wrote down")
    api_keys: Annotated[ApiKeys, WrapValidator(_api_keys)] = Field(
        default=None,
        description="what clients must send: a key, several, or those of each tenant by its name; null: nothing",
        json_schema_extra={"flag": "--api-key", "repeatable": True},
    )
    admin_api_key: ApiKey | None = Field(
        default=None,
        description="what administrators must send; null: they are let in on loopback addresses, and nowhere else",
    )
    in_process: bool = Field(default=False, description="everything in one process, for debugging")
    restart: bool = Field(
        default=False, description="start the engine again when one of its processes dies, instead of ending"
    )
    unwell_after_s: float = Field(
        default=5.0,
        gt=0,
        le=MAX_SECONDS,
        description="seconds without an answer from a process after which /health fails",
    )
    dead_after_s: float = Field(
        default=60.0,
        gt=0,
        le=MAX_SECONDS,
        description="seconds without an answer from a process after which it counts as dead",
    )
    drain_s: float = Field(
        default=25.0,
        ge=0,
        le=MAX_SECONDS,
        description="seconds that running requests have to end after SIGTERM or Ctrl-C",
    )
    tenants: TenantsConfig = Field(default_factory=TenantsConfig, description="limits of tenants")
    allowed_hosts: tuple[Annotated[str, AfterValidator(_host)], ...] | None = Field(
        default=None,
        description="names by which clients may call the server, a JSON array; null: this machine's own where only it "
        "can connect, else any",
    )
    cors_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        default=(), description="origins whose pages may call the server from a browser, a JSON array"
    )
    tls: TlsConfig = Field(default_factory=TlsConfig, description="HTTPS")
    access_log: bool = Field(default=True, description="log a line for each request, but for probes that find all well")
    log_requests: bool = Field(default=False, description="log what clients send, prompts included")

    @model_validator(mode="after")
    def _keys_are_told_apart(self) -> Self:
        owners: dict[str, str] = {}
        for tenant, key in tenant_keys(self.api_keys):
            if owners.setdefault(key.get_secret_value(), tenant) != tenant:
                raise ValueError("two tenants of api_keys have one key")
        if self.admin_api_key is not None and self.admin_api_key.get_secret_value() in owners:
            raise ValueError("admin_api_key is one of api_keys too, so that a client would be an administrator")
        if isinstance(self.api_keys, dict) and (unknown := self.tenants.limits.keys() - self.api_keys.keys()):
            raise ValueError(f"tenants.limits names {min(unknown)}, and api_keys has no such tenant")
        return self


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
