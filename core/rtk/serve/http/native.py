"""rtk's own endpoint, /generate, in SGLang's shape.

`text` or `input_ids`, one or a batch; `sampling_params` with `max_new_tokens` from 0 (prefill only). Every event of a
stream has all of the text so far.
"""

import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.grammar.forms import ServedForm
from rtk.schedule.messages import Finish
from rtk.serve.http.access import name_request
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.endpoints import Endpoints
from rtk.serve.http.errors import json_response
from rtk.serve.http.fields import FORM_NAMES, SAMPLING_NAMES, Ignored, Scope, read_fields
from rtk.serve.http.forms import described, headers, read_either
from rtk.serve.http.stream import DONE, Events, event, stream_response, while_connected
from rtk.serve.http.tally import Part, Tally
from rtk.serve.protocol import GenerateRequest

_PLACE = "sampling_params."
_NAMES = {name: _PLACE + name for name in (*SAMPLING_NAMES, "max_new_tokens", "min_new_tokens")}


class Native(Endpoints):
    """Handlers of rtk's own endpoint."""

    async def generate(self, request: Request) -> Response:
        """POST /generate."""
        values, ignored = await self.read(request, Scope.GENERATE)
        prompts, batch = self._prompts(values)
        sampling, form = await self._sampling(values, ignored)
        handling = self.handling(request, values, ignored)
        group, rids = _rids(values, len(prompts), batch=batch)
        name_request(request, rids[0] or group)
        handling |= {"sampling": sampling, "names": _NAMES, "form": form}
        requests = [
            GenerateRequest(prompt=prompt, prompt_name=name, rid=rid, **handling)
            for (name, prompt), rid in zip(prompts.items(), rids, strict=True)
        ]
        self.check_answers(requests)
        with_ids = typed(values, "return_ids", bool, False)
        if typed(values, "stream", bool, False):
            events = self._events(requests, group, with_ids=with_ids, batch=batch)
            return await stream_response(request, events, ignored.headers | headers(form))
        tally = Tally(len(requests))
        await while_connected(request.receive, tally.add_all(self.manager.generate_batch(requests, group)))
        answers = [_answer(part, form, with_ids=with_ids) for part in tally.parts]
        return json_response(answers if batch else answers[0], headers=ignored.headers | headers(form))

    def _prompts(self, values: Mapping[str, Any]) -> tuple[dict[str, str | list[int]], bool]:
        """Each prompt by what the client calls it, and whether there is a batch."""
        given = [name for name in ("text", "input_ids") if name in values]
        if len(given) != 1:
            raise RequestError(f"{' and '.join(given) or 'nothing'} given: send either text or input_ids", field="text")
        name, prompt = given[0], values[given[0]]
        kind, allowed = (str, "a string") if name == "text" else (list, "a list of token ids")
        batch = isinstance(prompt, list) and (name == "text" or bool(prompt and isinstance(prompt[0], list)))
        if not batch:
            if not isinstance(prompt, kind):
                raise must_be(allowed, name, prompt)
            return {name: prompt}, False
        if not prompt:
            raise RequestError(f"{name} is empty: a batch has at least one prompt", field=name, code="empty_prompt")
        return self.batch(name, prompt, kind, allowed), True

    async def _sampling(self, values: Mapping[str, Any], ignored: Ignored) -> tuple[dict[str, Any], ServedForm | None]:
        """The sampling parameters, and what the answer must look like, which may stand beside them too."""
        given = read_fields(typed(values, "sampling_params", dict, {}), Scope.SAMPLING, ignored, prefix=_PLACE)
        asked = read_either(values, given, ignored, prefix=_PLACE)
        sampling = {name: value for name, value in given.items() if name not in FORM_NAMES}
        return sampling, None if asked is None else await self.manager.form(asked)

    async def _events(self, requests: list[GenerateRequest], group: str, *, with_ids: bool, batch: bool) -> Events:
        """The events of a stream: after each token that decides text, all of it so far."""
        tally = Tally(len(requests))
        async with aclosing(self.manager.generate_batch(requests, group)) as deltas:
            async for delta in deltas:
                part = tally.add(delta)
                if delta.text or delta.finish or with_ids:
                    place = {"index": delta.index} if batch else {}
                    yield event({**_answer(part, requests[0].form, with_ids=with_ids), **place})
        yield DONE


def _rids(values: Mapping[str, Any], size: int, *, batch: bool) -> tuple[str, list[str | None]]:
    """The id that names all requests together, and the one of each: None where it follows from that."""
    rid = values.get("rid", uuid.uuid4().hex)
    if isinstance(rid, str):
        return rid, [None] * size
    if not batch or not isinstance(rid, list) or len(rid) != size or not all(isinstance(item, str) for item in rid):
        allowed = f"a string, or a list of {size} strings" if batch else "a string"
        raise must_be(allowed, "rid", rid)
    return uuid.uuid4().hex, rid


def _answer(part: Part, form: ServedForm | None, *, with_ids: bool) -> dict[str, Any]:
    meta = {
        "id": part.rid,
        "finish_reason": None if part.finish is None else _finish_reason(part.finish, part.completion_tokens),
        "prompt_tokens": part.prompt_tokens,
        "completion_tokens": part.completion_tokens,
        "cached_tokens": part.cached_tokens,
    }
    answer = {"text": part.text, **({"output_ids": part.token_ids} if with_ids else {}), "meta_info": meta}
    if form is not None:
        answer["rtk"] = described(form, finished=part.finish is not None, verified=part.verified)
    return answer


def _finish_reason(finish: Finish, length: int) -> dict[str, Any]:
    match finish.reason:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": length}
        case _:
            return {"type": "abort", "message": "aborted"}
