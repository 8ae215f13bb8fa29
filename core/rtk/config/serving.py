"""The section of the HTTP server: where it listens, whom it lets in, and what they may take of it."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from rtk.config.sections import MAX_SECONDS, MAX_TOKENS, MIB, Section, at_home, flag


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


ApiKey = Annotated[SecretStr, AfterValidator(_api_key)]
ApiKeys = SecretStr | tuple[SecretStr, ...] | dict[str, SecretStr | tuple[SecretStr, ...]] | None
TenantName = Annotated[str, AfterValidator(_tenant)]
Limit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class TlsConfig(Section):
    """Files for HTTPS."""

    cert_file: Annotated[Path, AfterValidator(at_home)] | None = Field(
        default=None,
        description="PEM file of the certificate and those that sign it; null: plain HTTP",
        json_schema_extra=flag("--tls-cert-file"),
    )
    key_file: Annotated[Path, AfterValidator(at_home)] | None = Field(
        default=None,
        description="PEM file of its private key; null: it is in the file of the certificate",
        json_schema_extra=flag("--tls-key-file"),
    )
    key_password: SecretStr | None = Field(
        default=None, description="what the private key is encrypted with", json_schema_extra=flag("--tls-key-password")
    )
    client_ca_file: Annotated[Path, AfterValidator(at_home)] | None = Field(
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

    @model_validator(mode="after")
    def _restart_has_a_process_to_start(self) -> Self:
        if self.restart and self.in_process:
            raise ValueError("restart starts processes again, and in_process has none; leave one of them out")
        return self

    @model_validator(mode="after")
    def _who_is_dead_was_unwell(self) -> Self:
        if self.unwell_after_s > self.dead_after_s:
            raise ValueError(
                f"unwell_after_s = {self.unwell_after_s:g} is more than dead_after_s = {self.dead_after_s:g}, so that "
                "/health would never tell of a process before it is killed; lower the one or raise the other"
            )
        return self
