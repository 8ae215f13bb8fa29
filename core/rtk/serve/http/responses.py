"""OpenAI's /v1/responses. Nothing is stored: each request brings its whole conversation."""

import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.grammar.forms import AskedForm, ServedForm
from rtk.observe.visit import current
from rtk.schedule.params import MAX_COUNT, check_text
from rtk.serve.http.access import name_request
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.endpoints import Endpoints
from rtk.serve.http.errors import error_body, internal_error, json_response
from rtk.serve.http.fields import SAMPLING_NAMES, Ignored, Scope, not_supported
from rtk.serve.http.forms import described, headers, read_flat_format, read_form
from rtk.serve.http.response_input import read_input
from rtk.serve.http.response_output import Named, ResponseOutput
from rtk.serve.http.stream import Events, event, stream_response, while_connected
from rtk.serve.http.tools import read_flat_tools
from rtk.serve.protocol import Chat, GenerateRequest

log = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"
_STATUS = {None: "in_progress", "stop": "completed"}
"""By the reason of the end; of all others it is incomplete."""
_CUT = {"length": "max_output_tokens", "abort": "aborted"}


class Responses(Endpoints):
    """The handler of OpenAI's newer endpoint."""

    async def create(self, request: Request) -> Response:
        """POST /v1/responses."""
        values, ignored = await self.read(request, Scope.RESPONSES)
        self.check_model(values)
        if "input" not in values:
            raise RequestError("input is missing: send a text, or a list of messages", field="input")
        instructions = typed(values, "instructions", str, None)
        messages = read_input(values["input"], instructions, ignored)
        _check_include(values, ignored)
        check_text(typed(values, "user", str, ""), field="user")
        stream = typed(values, "stream", bool, False)
        sampling = _sampling(values)
        handling = self.handling(request, values, ignored)
        rid = typed(values, "rid", str, "resp_" + uuid.uuid4().hex)
        name_request(request, rid)
        tools = read_flat_tools(values, ignored, self.manager.tokenizer, self.settings.tool_parser)
        wanted = _form(values, ignored)
        asked = tools.form(wanted)
        form = None if asked is None else await self.manager.form(asked)
        generate = GenerateRequest(
            prompt=Chat(messages, {**typed(values, "chat_template_kwargs", dict, {}), **tools.options}),
            prompt_name="input",
            sampling=sampling,
            names={"max_new_tokens": "max_output_tokens"},
            rid=rid,
            form=form,
            **handling,
        )
        output = ResponseOutput(tools.reader(either=wanted is not None))
        answer = _Answer(generate, self._head(values, generate), output)
        sent = ignored.headers | headers(form)
        if stream:
            return await stream_response(request, self._events(generate, answer), sent)
        await while_connected(request.receive, self._finished(generate, answer))
        return json_response(answer.described(), headers=sent)

    def _head(self, values: Mapping[str, Any], generate: GenerateRequest) -> dict[str, Any]:
        """What is known of a response before it begins."""
        defaults = {"temperature": 1, "top_p": 1, **self.manager.facts.default_sampling}
        return {
            "id": generate.rid,
            "object": "response",
            "created_at": int(time.time()),
            "model": self.manager.facts.served_name,
            "instructions": values.get("instructions"),
            "max_output_tokens": values.get("max_output_tokens"),
            "temperature": values.get("temperature", defaults["temperature"]),
            "top_p": values.get("top_p", defaults["top_p"]),
            "text": {"format": values.get("text", {}).get("format") or {"type": "text"}},
            "reasoning": {"effort": None, "summary": None},
            "tools": values.get("tools", []),
            "tool_choice": values.get("tool_choice", "auto"),
            "parallel_tool_calls": values.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "truncation": "disabled",
            "store": False,
            "background": False,
            "metadata": {},
            "user": values.get("user"),
        }

    async def _finished(self, generate: GenerateRequest, answer: "_Answer") -> None:
        async with aclosing(self.manager.generate(generate)) as deltas:
            async for delta in deltas:
                for _ in answer.output.add(delta):
                    pass

    async def _events(self, generate: GenerateRequest, answer: "_Answer") -> Events:
        """The events of a stream. What fails before the first of them is an error as elsewhere."""
        number = 0

        def numbered(named: Named) -> bytes:
            nonlocal number
            kind, content = named
            line = f"event: {kind}\n".encode()
            line += event({"type": kind, "sequence_number": number, **content})
            number += 1
            return line

        try:
            async with aclosing(self.manager.generate(generate)) as deltas:
                async for delta in deltas:
                    if not number:
                        yield numbered(("response.created", {"response": answer.described()}))
                        yield numbered(("response.in_progress", {"response": answer.described()}))
                    for named in answer.output.add(delta):
                        yield numbered(named)
        except RequestError as error:
            if not number:
                raise
            answer.fail(error)
        except Exception:
            if not number:
                raise
            log.exception("a stream failed")
            answer.fail(internal_error())
        yield numbered((f"response.{answer.status}", {"response": answer.described()}))


class _Answer:
    """A response as it comes."""

    def __init__(self, generate: GenerateRequest, head: dict[str, Any], output: ResponseOutput) -> None:
        self._head = head
        self._form = generate.form
        self.output = output
        self._error: RequestError | None = None

    def fail(self, error: RequestError) -> None:
        """It ends with an error."""
        self._error = error
        current().code = error.code
        self.output.break_off()

    @property
    def status(self) -> str:
        """`completed`, or why not."""
        if self._error is not None:
            return "failed"
        finish = self.output.finish
        return _STATUS.get(None if finish is None else finish.reason, "incomplete")

    def described(self) -> dict[str, Any]:
        """All that is to be said by now."""
        finish, status = self.output.finish, self.status
        error = None if self._error is None else error_body(self._error)["error"]
        cut = {"reason": _CUT[finish.reason]} if finish is not None and status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "output": self.output.items(),
            "usage": None if status == "in_progress" else self.output.usage(),
            **self._checked(),
        }

    def _checked(self) -> dict[str, Any]:
        """What became of the form of a finished text, where it was checked; of calls, how far it is kept."""
        form: ServedForm | None = self._form
        if form is None or self.output.finish is None or not (form.verify or form.asked.kind == "tool_calls"):
            return {}
        return {"rtk": described(form, finished=True, verified=self.output.verified)}


# --- reading ----------------------------------------------------------------------------------------------------


def _sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {name: values[name] for name in SAMPLING_NAMES if name in values}
    if "max_output_tokens" in values:
        length = values["max_output_tokens"]
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= MAX_COUNT:
            raise must_be(f"an integer from 1 to {MAX_COUNT}, or null", "max_output_tokens", length)
        sampling["max_new_tokens"] = length
    return sampling


def _form(values: Mapping[str, Any], ignored: Ignored) -> AskedForm | None:
    """What the text is to look like: `text.format`, or one of rtk's own fields."""
    text = typed(values, "text", dict, {})
    for name in text:
        if name not in ("format", "verbosity"):
            ignored.unknown("text.", name, ("format", "verbosity"))
    if text.get("verbosity") not in (None, "medium"):
        raise not_supported("text.verbosity")
    asked = text.get("format")
    return read_form(values, ignored, also=[] if asked is None else read_flat_format(asked, "text.format", ignored))


def _check_include(values: Mapping[str, Any], ignored: Ignored) -> None:
    """What else the answer may have is nothing that there is here."""
    for i, name in enumerate(typed(values, "include", list, [])):
        if not isinstance(name, str):
            raise must_be("a string", f"include[{i}]", name)
        if name == _LOGPROBS:
            raise not_supported(f"include[{i}]: {name}", f"include[{i}]")
        ignored.note(f"include[{i}]")
