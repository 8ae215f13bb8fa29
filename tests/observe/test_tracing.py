"""Traces: what a span says, the trace it is part of, and what there must be for it."""

import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rtk.errors import ConfigError
from rtk.observe import tracing
from rtk.observe.tracing import Tracing, start_tracing
from rtk.observe.visit import Visit
from rtk.schedule.messages import Finish
from rtk.serve.protocol import Delta

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced = Tracing(provider)
    yield traced, exporter
    traced.close()


def delta(index=0, finish=None, **more):
    counts = {"text": "a", "token_ids": (5,), "prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": 1}
    return Delta(index=index, rid="r", finish=finish, **{**counts, **more})


def visit():
    """Of a batch of two: three tokens, the first after a quarter of a second."""
    found = Visit()
    found.began, found.began_at = 100.0, 1_000_000.0
    found.serves(["r-0", "r-1"])
    for one in (
        delta(),
        delta(1),
        delta(finish=Finish(reason="length")),
        delta(1, Finish(reason="stop"), token_ids=()),
    ):
        found.saw(one)
    found.first_token = 100.25
    return found


def test_a_span_has_what_is_known_of_the_request(spans):
    traced, exporter = spans
    traced.tell(visit(), 102.0, "tiny", "/v1/completions", 0.125, {"traceparent": PARENT, "tracestate": "a=1"})
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.status.status_code) == (
        "text_completion tiny",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "rtk",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": "r-0",
        "gen_ai.response.finish_reasons": ("length", "stop"),
        "gen_ai.usage.input_tokens": 14,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_to_first_token": 0.25,
        "gen_ai.latency.time_in_queue": 0.125,
        "rtk.cached_tokens": 6,
        "http.route": "/v1/completions",
    }
    assert (span.start_time, span.end_time) == (1_000_000 * 10**9, 1_000_002 * 10**9)
    ((event,),) = (span.events,)
    assert (event.name, event.timestamp) == ("first_token", 1_000_000_250_000_000)
    assert f"{span.context.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
    assert dict(span.context.trace_state) == {"a": "1"}


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": PARENT[:-2] + "zz"}])
def test_without_a_trace_it_begins_one(spans, headers):
    traced, exporter = spans
    traced.tell(visit(), 102.0, "tiny", "/v1/chat/completions", None, headers)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.parent) == ("chat tiny", None)
    assert "gen_ai.latency.time_in_queue" not in span.attributes


def test_a_trace_that_is_not_sampled_makes_no_span(spans):
    traced, exporter = spans
    traced.tell(visit(), 102.0, "tiny", "/generate", None, {"traceparent": PARENT[:-2] + "00"})
    assert exporter.get_finished_spans() == ()


def test_an_error_is_the_spans_status(spans):
    traced, exporter = spans
    failed = Visit()
    failed.serves(["r"])
    failed.code = "queue_full"
    traced.tell(failed, failed.began, "tiny", "/generate", None, {})
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "queue_full")
    assert span.attributes["error.type"] == "queue_full"
    assert span.events == () and "gen_ai.latency.time_to_first_token" not in span.attributes


# --- starting ---------------------------------------------------------------------------------------------------


def test_nobody_traces_unless_asked():
    assert start_tracing(None) is None


def test_the_service_is_called_rtk_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    assert tracing._resource().attributes["service.name"] == "rtk"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert tracing._resource().attributes["service.name"] == "mine"


def install(monkeypatch, **targets):
    entries = EntryPoints(EntryPoint(name, target, tracing.GROUP) for name, target in targets.items())
    monkeypatch.setattr(tracing, "entry_points", lambda group: entries)


def test_an_exporter_that_is_installed(monkeypatch):
    install(monkeypatch, memory="opentelemetry.sdk.trace.export.in_memory_span_exporter:InMemorySpanExporter")
    traced = start_tracing("memory")
    assert traced is not None
    traced.tell(visit(), 102.0, "tiny", "/generate", None, {})
    traced.close()
    (processor,) = traced._provider._active_span_processor._span_processors
    assert len(processor.span_exporter.get_finished_spans()) == 1


def test_one_that_is_not_is_one_line_with_those_that_are(monkeypatch):
    install(monkeypatch, console="m:C", zipkin="m:Z")
    with pytest.raises(ConfigError) as refused:
        start_tracing("otlp")
    assert str(refused.value) == (
        "observe.traces = 'otlp': no such exporter is installed; there are: console, zipkin; "
        "'otlp' comes with pip install opentelemetry-exporter-otlp"
    )


def test_one_that_cannot_be_made_is_one_line(monkeypatch):
    install(monkeypatch, broken="tests_no_such_module:It")
    with pytest.raises(ConfigError) as refused:
        start_tracing("broken")
    assert str(refused.value).startswith(
        "observe.traces = 'broken': the exporter cannot be used: ModuleNotFoundError: "
    )


def test_without_the_sdk_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError) as refused:
        start_tracing("otlp")
    assert str(refused.value) == (
        "observe.traces = 'otlp': opentelemetry.sdk is not installed; pip install 'rtk-inference[otel]'"
    )
