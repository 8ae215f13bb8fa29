"""Each request that asks for answers becomes a span, with what the scheduler knows of its wait."""

import asyncio

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from real_server import MODEL, Real, run

from rtk.observe.tracing import Tracing
from rtk.serve.http.app import create_app

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


class Traced(Real):
    def __init__(self, *pieces, **harness):
        super().__init__(*pieces, **harness)
        self.exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.app = create_app(self.manager, tracing=Tracing(provider))

    async def span(self):
        """The one span that there is, which may come after its answer."""
        while not (found := self.exporter.get_finished_spans()):
            await asyncio.sleep(0)
        self.exporter.clear()
        (span,) = found
        return span

    async def traced(self, path, **body):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://test") as client:
            return await client.post(path, json=body, headers=HEADERS)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(stream):
    async def test(server):
        body = {"prompt": "abcd", "max_tokens": 3, "temperature": 0, "stream": stream}
        assert (await server.traced("/v1/completions", **body)).status_code == 200
        span = await server.span()
        said = dict(span.attributes)
        assert (span.name, f"{span.context.trace_id:032x}") == (f"text_completion {MODEL}", TRACE)
        assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (4, 3)
        assert said["gen_ai.response.finish_reasons"] == ("length",)
        assert said["gen_ai.latency.time_in_queue"] == 0  # by the clock of the harness
        assert 0 < said["gen_ai.latency.time_to_first_token"] <= said["gen_ai.latency.e2e"]
        assert said["http.route"] == "/v1/completions"
        assert "error.type" not in said

    run(Traced("a", end=False), test)


def test_a_batch_is_one_span():
    async def test(server):
        await server.traced("/generate", text=["abcd", "abce"], rid=["r1", "r2"], sampling_params={"max_new_tokens": 2})
        said = dict((await server.span()).attributes)
        assert (said["gen_ai.usage.output_tokens"], said["gen_ai.response.id"]) == (4, "r1")
        assert said["gen_ai.response.finish_reasons"] == ("length", "length")

    run(Traced("a", end=False), test)


def test_a_request_that_is_refused_is_a_span_with_the_error_and_all_else_is_none():
    async def test(server):
        for path in ("/health", "/metrics", "/server_info"):
            assert (await server.request("GET", path)).status_code == 200
        assert (await server.traced("/v1/completions", prompt="abcd", max_tokens=500)).status_code == 400
        span = await server.span()
        assert span.attributes["error.type"] == span.status.description == "context_length_exceeded"
        assert "gen_ai.latency.time_in_queue" not in span.attributes

    run(Traced("a", end=False), test)


def test_several_answers_have_one_prompt():
    async def test(server):
        answer = await server.traced("/v1/completions", prompt="abcd", n=3, max_tokens=2, temperature=0)
        assert len(answer.json()["choices"]) == 3
        said = dict((await server.span()).attributes)
        assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (4, 6)
        assert said["gen_ai.response.finish_reasons"] == ("length",) * 3

    run(Traced("a", end=False), test)
