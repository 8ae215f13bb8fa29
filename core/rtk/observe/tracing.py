"""OpenTelemetry: one span for each request that asks for answers. Needs the extra `otel`.

`observe.traces` names the exporter; all else (where it sends to, sampling, the name of the service) is in the variables
OTEL_*, which the SDK reads by itself. Names of attributes are those of its conventions for generative AI, and the ones
that vLLM has for what these have no word for.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

from rtk.errors import ConfigError, one_line
from rtk.observe.visit import Visit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

GROUP = "opentelemetry_traces_exporter"
"""The entry points under which exporters are installed."""
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/responses": "chat"}
"""By path; elsewhere it is text_completion."""


def start_tracing(exporter: str | None) -> "Tracing | None":
    """A tracer that exports in the background; None where none is wanted. Raises `ConfigError`."""
    if exporter is None:
        return None
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"observe.traces = {exporter!r}: {error.name} is not installed; pip install 'rtk-inference[otel]'"
        ) from None
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    return Tracing(provider)


def _exporter(name: str) -> Any:
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise ConfigError(
            f"observe.traces = {name!r}: no such exporter is installed; there are: {', '.join(sorted(found))}; "
            "'otlp' comes with pip install opentelemetry-exporter-otlp"
        )
    try:
        return found[name].load()()
    except Exception as error:
        raise ConfigError(f"observe.traces = {name!r}: the exporter cannot be used: {one_line(error)}") from error


def _resource() -> Any:
    """What the environment says of the service; its name is rtk where that says nothing."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    unnamed = str(found.attributes.get("service.name", "")).startswith("unknown_service")
    return found.merge(Resource({"service.name": "rtk"})) if unnamed else found


class Tracing:
    """Makes spans of visits that are over."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("rtk", version("rtk-inference"))

    def tell(
        self, visit: Visit, ended: float, model: str, path: str, queue_s: float | None, headers: Mapping[str, str]
    ) -> None:
        """One span. `ended` is by the visit's first clock; `headers` are the client's, which may name its trace."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        def wall(moment: float) -> int:
            return round((visit.began_at + moment - visit.began) * 1e9)

        operation = OPERATIONS.get(path, "text_completion")
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            start_time=wall(visit.began),
            attributes=_attributes(visit, ended, model, operation, path, queue_s),
        )
        if visit.first_token is not None:
            span.add_event("first_token", timestamp=wall(visit.first_token))
        if visit.code:
            span.set_status(Status(StatusCode.ERROR, visit.code))
        span.end(wall(ended))

    def close(self) -> None:
        """Export what is left, as long as the exporter allows."""
        self._provider.shutdown()


def _attributes(
    visit: Visit, ended: float, model: str, operation: str, path: str, queue_s: float | None
) -> dict[str, Any]:
    said: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "rtk",
        "gen_ai.request.model": model,
        "gen_ai.response.id": visit.request_id,
        "gen_ai.response.finish_reasons": tuple(visit.finishes),
        "gen_ai.usage.input_tokens": visit.prompt_tokens,
        "gen_ai.usage.output_tokens": visit.output_tokens,
        "gen_ai.latency.e2e": ended - visit.began,
        "rtk.cached_tokens": visit.cached_tokens,
        "http.route": path,
    }
    if visit.first_token is not None:
        said["gen_ai.latency.time_to_first_token"] = visit.first_token - visit.began
    if queue_s is not None:
        said["gen_ai.latency.time_in_queue"] = queue_s
    if visit.code:
        said["error.type"] = visit.code
    return said
