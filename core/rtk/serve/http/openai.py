"""OpenAI's endpoints: /v1/completions, /v1/chat/completions, /v1/models.

`max_tokens` counts from 1, with `echo` from 0; without it a text may fill what context and pool allow, on both
endpoints. In a `prompt`, a list of strings is a batch of texts, a list of integers one prompt, a list of such lists a
batch of prompts. Choices are numbered through: `n` of the first prompt, then those of the next.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.grammar.forms import ServedForm
from rtk.serve.http.access import name_request
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.chat_prompt import read_chat
from rtk.serve.http.echo import Echo, echoed
from rtk.serve.http.endpoints import Endpoints, HttpSettings
from rtk.serve.http.errors import json_response
from rtk.serve.http.fields import Ignored, Scope
from rtk.serve.http.forms import described, headers, read_form
from rtk.serve.http.logprobs import TokenWriter, beside, count_entries
from rtk.serve.http.sampling_fields import Asked, read_chat_completions, read_completions
from rtk.serve.http.shapes import ChatShape, CompletionShape, Shape
from rtk.serve.http.stream import DONE, Events, event, stream_response, while_connected
from rtk.serve.http.tally import Part, Tally
from rtk.serve.http.tools import read_tools
from rtk.serve.protocol import Chat, Delta, GenerateRequest
from rtk.serve.tokenizer_manager import TokenizerManager

Prompts = Mapping[str, str | list[int] | Chat]
"""By what the client calls them."""


@dataclass(frozen=True, slots=True)
class _StreamOptions:
    include_usage: bool = False
    """One more chunk at the end, with the usage."""
    continuous_usage_stats: bool = False
    """Every chunk has the usage so far, and every token a chunk, also where it decides no text."""


class OpenAI(Endpoints):
    """Handlers of OpenAI's endpoints."""

    def __init__(self, manager: TokenizerManager, settings: HttpSettings) -> None:
        super().__init__(manager, settings)
        self._started = int(time.time())
        self._writer = TokenWriter(manager.tokenizer)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        values, ignored = await self.read(request, Scope.COMPLETIONS)
        prompts = self._prompts(values)
        return await self._answer(request, values, ignored, prompts, read_completions(values), CompletionShape())

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        values, ignored = await self.read(request, Scope.CHAT)
        chat = read_chat(values, ignored)
        asked = read_chat_completions(values, continues=chat.continues)
        tools = read_tools(values, ignored, self.manager.tokenizer, self.settings.tool_parser)
        chat = replace(chat, options={**chat.options, **tools.options})
        shape = ChatShape(tools, separate=typed(values, "separate_reasoning", bool, True))
        return await self._answer(request, values, ignored, {"messages": chat}, asked, shape)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        self.check_model({"model": request.path_params["model"]})
        return json_response(self._model())

    def _model(self) -> dict[str, Any]:
        facts = self.manager.facts
        return {
            "id": facts.served_name,
            "object": "model",
            "created": self._started,
            "owned_by": "rtk",
            "max_model_len": facts.context_length,
        }

    # --- reading ------------------------------------------------------------------------------------------------

    def _prompts(self, values: Mapping[str, Any]) -> dict[str, str | list[int]]:
        """Each prompt by what the client calls it."""
        if "prompt" not in values:
            raise RequestError("prompt is missing: send a text or token ids", field="prompt")
        prompt = values["prompt"]
        if isinstance(prompt, str):
            return {"prompt": prompt}
        if not isinstance(prompt, list):
            raise must_be("a string, a list of token ids, or a list of either", "prompt", prompt)
        if not prompt or not isinstance(prompt[0], str | list):
            return {"prompt": prompt}
        kind, allowed = (str, "a string") if isinstance(prompt[0], str) else (list, "a list of token ids")
        return self.batch("prompt", prompt, kind, f"{allowed}, like prompt[0]")

    def _stream_options(self, values: Mapping[str, Any], ignored: Ignored, *, stream: bool) -> _StreamOptions:
        given = typed(values, "stream_options", dict, None)
        if given is None:
            return _StreamOptions()
        if not stream:
            raise RequestError("stream_options: only allowed with stream = true", field="stream_options")
        place, names = "stream_options.", _StreamOptions.__slots__
        for name in given:
            if name not in names:
                ignored.note(place + name)
        return _StreamOptions(*(typed(given, name, bool, False, prefix=place) for name in names))

    # --- answering ----------------------------------------------------------------------------------------------

    async def _answer(
        self,
        request: Request,
        values: Mapping[str, Any],
        ignored: Ignored,
        prompts: Prompts,
        asked: Asked,
        shape: Shape,
    ) -> Response:
        self.check_model(values)
        typed(values, "user", str, "")
        stream = typed(values, "stream", bool, False)
        options = self._stream_options(values, ignored, stream=stream)
        self.check_answers(len(prompts), asked)
        handling = self.handling(request, values, ignored)
        rid = typed(values, "rid", str, shape.prefix + uuid.uuid4().hex)
        name_request(request, rid)
        form = shape.form(read_form(values, ignored))
        served = None if form is None else await self.manager.form(form)
        handling |= {"sampling": asked.sampling, "names": asked.names, "form": served}
        job = _Job(
            [GenerateRequest(prompt=prompt, prompt_name=name, **handling) for name, prompt in prompts.items()],
            asked,
            {"id": rid, "created": int(time.time()), "model": self.manager.facts.served_name},
            shape,
            self._writer,
        )
        sent = ignored.headers | headers(served)
        if stream:
            return await stream_response(request, self._events(job, options), sent)
        await while_connected(request.receive, job.tally.add_all(self._deltas(job)))
        return await beside(job.tally.size, lambda: json_response(job.answer(), headers=sent))

    async def _events(self, job: "_Job", options: _StreamOptions) -> Events:
        """The events of a stream: chunks, the usage where it is wanted, and that all is done."""
        tally, shape = job.tally, job.shape
        head = {**job.head, "object": shape.chunk}
        opening = shape.opening(len(tally.parts))

        def chunk(*choices: dict[str, Any]) -> bytes:
            usage: dict[str, Any] = {"usage": None} if options.include_usage else {}
            if options.continuous_usage_stats or not choices:
                usage = {"usage": tally.usage()}
            return event({**head, "choices": choices, **usage})

        async with aclosing(self._deltas(job)) as deltas:
            async for delta in deltas:
                part = tally.add(delta)
                for choice in opening:
                    yield chunk(choice)
                opening = ()
                if shape.says(delta) or delta.finish or options.continuous_usage_stats:
                    yield chunk(await beside(count_entries(delta.logprobs), partial(job.piece, delta, part)))
        if options.include_usage:
            yield chunk()
        yield DONE

    def _deltas(self, job: "_Job") -> AsyncGenerator[Delta, None]:
        """What is generated, behind the prompts where those are to be repeated."""
        asked, tokenizer = job.asked, self.manager.tokenizer
        deltas = self.manager.generate_batch(job.requests, job.head["id"])
        if not asked.echo:
            return deltas
        echoes = [
            Echo(tokenizer, _echoed(request.prompt), asked.echo_logprobs, special=asked.special)
            for request in job.requests
        ]
        return echoed(deltas, echoes, asked.answers)


class _Job:
    """One call: what it asks for, and how its choices are written."""

    def __init__(
        self, requests: list[GenerateRequest], asked: Asked, head: dict[str, Any], shape: Shape, writer: TokenWriter
    ) -> None:
        self.requests = requests
        self.asked = asked
        self.head = head
        self.shape = shape
        self.tally = Tally(len(requests), asked.answers)
        self._writer = writer

    def piece(self, delta: Delta, part: Part) -> dict[str, Any]:
        """The choice of a chunk."""
        choice = self.shape.piece(delta)
        if self.asked.logprobs is not None and (told := part.tell()):
            choice["logprobs"] = self.shape.logprobs(self._writer, told, special=self.asked.special)
        return {**choice, **_checked(self.requests[0].form, delta)}

    def answer(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._whole(i, part) for i, part in enumerate(self.tally.parts)]
        answer = {**self.head, "object": self.shape.answer, "choices": choices, "usage": self.tally.usage()}
        return answer | (self._prompt(0) if self.shape.one_prompt else {})

    def _whole(self, index: int, part: Part) -> dict[str, Any]:
        """A choice of it."""
        choice = self.shape.whole(index, part)
        if self.asked.logprobs is not None:
            choice["logprobs"] = self.shape.logprobs(self._writer, part.tell(), special=self.asked.special)
        if not self.shape.one_prompt:
            choice |= self._prompt(index)
        return {**choice, **_checked(self.requests[0].form, part)}

    def _prompt(self, index: int) -> dict[str, Any]:
        """The log-probabilities of the prompt that an answer is to, where they were asked for."""
        if (top := self.asked.prompt_logprobs) is None:
            return {}
        first = self.tally.parts[index - index % self.asked.answers]
        return {"prompt_logprobs": self._writer.prompt(first.prompt_logprobs, top)}


def _echoed(prompt: str | Sequence[int] | Chat) -> str | Sequence[int]:
    """What an answer repeats: of a chat the message that it goes on with."""
    if not isinstance(prompt, Chat):
        return prompt
    return str(prompt.messages[-1]["content"]) if prompt.messages else ""


def _checked(form: ServedForm | None, end: Delta | Part) -> dict[str, Any]:
    """The result of the check of a finished text, where there was to be one; of calls how far their form was kept."""
    if form is None or end.finish is None or not (form.verify or form.asked.kind == "tool_calls"):
        return {}
    return {"rtk": described(form, finished=True, verified=end.verified)}
