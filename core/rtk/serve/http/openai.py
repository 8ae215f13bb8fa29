"""OpenAI's endpoints: /v1/completions, /v1/chat/completions, /v1/models.

`max_tokens` counts from 1; without it a text may fill what context and pool allow, on both endpoints. In a `prompt`, a
list of strings is a batch of texts, a list of integers one prompt, a list of such lists a batch of prompts.
"""

import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.grammar.forms import ServedForm
from rtk.schedule.params import MAX_COUNT, shown
from rtk.serve.http.access import name_request
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.chat import read_messages
from rtk.serve.http.endpoints import Endpoints, HttpSettings
from rtk.serve.http.errors import json_response
from rtk.serve.http.fields import SAMPLING_NAMES, Ignored, Scope
from rtk.serve.http.forms import described, headers, read_form
from rtk.serve.http.shapes import ChatShape, CompletionShape, Shape
from rtk.serve.http.stream import DONE, Events, event, stream_response, while_connected
from rtk.serve.http.tally import Part, Tally
from rtk.serve.protocol import Chat, Delta, GenerateRequest
from rtk.serve.tokenizer_manager import TokenizerManager

_LENGTHS = ("max_tokens", "max_completion_tokens")


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

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        values, ignored = await self.read(request, Scope.COMPLETIONS)
        prompts = self._prompts(values)
        return await self._answer(request, values, ignored, prompts, CompletionShape())

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        values, ignored = await self.read(request, Scope.CHAT)
        if "messages" not in values:
            raise RequestError("messages is missing: a chat is a list of messages", field="messages")
        options = typed(values, "chat_template_kwargs", dict, {})
        chat = Chat(read_messages(values["messages"], ignored), options)
        return await self._answer(request, values, ignored, {"messages": chat}, ChatShape())

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        self._check_model(request.path_params["model"])
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

    def _check_model(self, name: str) -> None:
        served = self.manager.facts.served_name
        if name != served:
            raise RequestError(
                f"model {shown(name)} does not exist; this server has {served!r}",
                field="model",
                code="model_not_found",
                status=404,
            )

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
        prompts: Mapping[str, str | list[int] | Chat],
        shape: Shape,
    ) -> Response:
        self._check_model(typed(values, "model", str, self.manager.facts.served_name))
        typed(values, "user", str, "")
        stream = typed(values, "stream", bool, False)
        options = self._stream_options(values, ignored, stream=stream)
        sampling, names = _sampling(values)
        handling = self.handling(request, values, ignored)
        rid = typed(values, "rid", str, shape.prefix + uuid.uuid4().hex)
        name_request(request, rid)
        asked = read_form(values, ignored)
        form = None if asked is None else await self.manager.form(asked)
        requests = [
            GenerateRequest(prompt=prompt, sampling=sampling, names=names, prompt_name=name, form=form, **handling)
            for name, prompt in prompts.items()
        ]
        self.check_answers(requests)
        head = {"id": rid, "created": int(time.time()), "model": self.manager.facts.served_name}
        sent = ignored.headers | headers(form)
        if stream:
            return await stream_response(request, self._events(requests, head, options, shape), sent)
        tally = Tally(len(requests))
        await while_connected(request.receive, tally.add_all(self.manager.generate_batch(requests, rid)))
        choices = [{**shape.whole(i, part), **_checked(form, part)} for i, part in enumerate(tally.parts)]
        answer = {**head, "object": shape.answer, "choices": choices, "usage": tally.usage()}
        return json_response(answer, headers=sent)

    async def _events(
        self, requests: list[GenerateRequest], head: dict[str, Any], options: _StreamOptions, shape: Shape
    ) -> Events:
        """The events of a stream: chunks, the usage where it is wanted, and that all is done."""
        tally = Tally(len(requests))
        head = {**head, "object": shape.chunk}
        opening = shape.opening(len(requests))

        def chunk(*choices: dict[str, Any]) -> bytes:
            usage: dict[str, Any] = {"usage": None} if options.include_usage else {}
            if options.continuous_usage_stats or not choices:
                usage = {"usage": tally.usage()}
            return event({**head, "choices": choices, **usage})

        async with aclosing(self.manager.generate_batch(requests, head["id"])) as deltas:
            async for delta in deltas:
                tally.add(delta)
                for choice in opening:
                    yield chunk(choice)
                opening = ()
                if shape.says(delta) or delta.finish or options.continuous_usage_stats:
                    yield chunk({**shape.piece(delta), **_checked(requests[0].form, delta)})
        if options.include_usage:
            yield chunk()
        yield DONE


def _checked(form: ServedForm | None, end: Delta | Part) -> dict[str, Any]:
    """The result of the check of a finished text, where there was to be one."""
    if form is None or not form.verify or end.finish is None:
        return {}
    return {"rtk": described(form, finished=True, verified=end.verified)}


def _sampling(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Sampling parameters by the scheduler's names, and what the client calls those."""
    sampling = {name: values[name] for name in SAMPLING_NAMES if name in values}
    names = {"min_new_tokens": "min_tokens", "max_new_tokens": "max_tokens"}
    if "min_tokens" in values:
        sampling["min_new_tokens"] = values["min_tokens"]
    for name in _LENGTHS:
        if name not in values:
            continue
        length = values[name]
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= MAX_COUNT:
            raise must_be(f"an integer from 1 to {MAX_COUNT}, or null", name, length)
        if sampling.setdefault("max_new_tokens", length) != length:
            raise RequestError(f"{' and '.join(_LENGTHS)} differ; send one of them", field=name)
        names["max_new_tokens"] = name
    return sampling, names
