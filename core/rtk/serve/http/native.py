"""rtk's own endpoint, /generate, in SGLang's shape.

`text` or `input_ids`, one or a batch; `sampling_params` with `max_new_tokens` from 0 (prefill only). Every event of a
stream has all of the text so far. Several answers (`n`, a batch) are a list: `n` of the first prompt, then those of the
next.
"""

import uuid
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rtk.errors import RequestError
from rtk.schedule.messages import Finish
from rtk.serve.http.access import name_request
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.endpoints import Endpoints, HttpSettings
from rtk.serve.http.errors import json_response
from rtk.serve.http.fields import Scope, read_fields
from rtk.serve.http.forms import described, headers, read_either
from rtk.serve.http.logprobs import TokenWriter, beside, count_entries
from rtk.serve.http.sampling_fields import Asked, read_native
from rtk.serve.http.stream import DONE, Events, event, stream_response, while_connected
from rtk.serve.http.tally import Tally
from rtk.serve.protocol import GenerateRequest
from rtk.serve.tokenizer_manager import TokenizerManager

_PLACE = "sampling_params."
_SIDES = ("input", "output")


class Native(Endpoints):
    """Handlers of rtk's own endpoint."""

    def __init__(self, manager: TokenizerManager, settings: HttpSettings) -> None:
        super().__init__(manager, settings)
        self._writer = TokenWriter(manager.tokenizer)

    async def generate(self, request: Request) -> Response:
        """POST /generate."""
        values, ignored = await self.read(request, Scope.GENERATE)
        prompts, batch = self._prompts(values)
        given = read_fields(typed(values, "sampling_params", dict, {}), Scope.SAMPLING, ignored, prefix=_PLACE)
        asked = read_native(values, given)
        self.check_answers(len(prompts), asked)
        wanted = read_either(values, given, ignored, prefix=_PLACE)
        form = None if wanted is None else await self.manager.form(wanted)
        group, rids = _rids(values, len(prompts), batch=batch)
        name_request(request, rids[0] or group)
        handling = self.handling(request, values, ignored) | {
            "sampling": asked.sampling,
            "names": asked.names,
            "form": form,
        }
        job = _Job(
            [
                GenerateRequest(prompt=prompt, prompt_name=name, rid=rid, **handling)
                for (name, prompt), rid in zip(prompts.items(), rids, strict=True)
            ],
            asked,
            self._writer,
            group=group,
            with_ids=typed(values, "return_ids", bool, False),
            listed=batch or asked.answers > 1,
        )
        sent = ignored.headers | headers(form)
        if typed(values, "stream", bool, False):
            return await stream_response(request, self._events(job), sent)
        await while_connected(request.receive, job.tally.add_all(self.manager.generate_batch(job.requests, group)))
        return await beside(job.tally.size, lambda: json_response(job.whole(), headers=sent))

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

    async def _events(self, job: "_Job") -> Events:
        """The events of a stream: after each token that decides text, all of it so far."""
        async with aclosing(self.manager.generate_batch(job.requests, job.group)) as deltas:
            async for delta in deltas:
                job.tally.add(delta)
                if delta.text or delta.finish or job.with_ids:
                    place = {"index": delta.index} if job.listed else {}
                    new = count_entries(delta.logprobs) + count_entries(delta.prompt_logprobs)
                    answer = await beside(new, partial(job.answer, delta.index))
                    yield event({**answer, **place})
        yield DONE


class _Job:
    """One call: what it asks for, and how its answers are written."""

    def __init__(
        self,
        requests: list[GenerateRequest],
        asked: Asked,
        writer: TokenWriter,
        *,
        group: str,
        with_ids: bool,
        listed: bool,
    ) -> None:
        """`group`: the id of all together. `listed`: the answer is a list."""
        self.requests = requests
        self.asked = asked
        self.group = group
        self.with_ids = with_ids
        self.listed = listed
        self.tally = Tally(len(requests), asked.answers)
        self._writer = writer
        lists = [
            f"{side}_{kind}_logprobs" for kind in ("token", "top")[: 2 if asked.logprobs else 1] for side in _SIDES
        ]
        self._told: list[dict[str, list[Any]]] = [{name: [] for name in lists} for _ in self.tally.parts]
        """SGLang's lists so far, of each answer."""

    def whole(self) -> Any:
        """All answers, or the one."""
        answers = [self.answer(i) for i in range(len(self.tally.parts))]
        return answers if self.listed else answers[0]

    def answer(self, index: int) -> dict[str, Any]:
        """What there is of one answer so far."""
        part, form = self.tally.parts[index], self.requests[0].form
        meta = {
            "id": part.rid,
            "finish_reason": None if part.finish is None else _finish_reason(part.finish, part.completion_tokens),
            "prompt_tokens": part.prompt_tokens,
            "completion_tokens": part.completion_tokens,
            "cached_tokens": part.cached_tokens,
            **self._logprobs(index),
        }
        answer = {"text": part.text, **({"output_ids": part.token_ids} if self.with_ids else {}), "meta_info": meta}
        if form is not None:
            answer["rtk"] = described(form, finished=part.finish is not None, verified=part.verified)
        return answer

    def _logprobs(self, index: int) -> dict[str, Any]:
        """SGLang's lists, those of the most probable tokens where any were asked for."""
        if self.asked.logprobs is None:
            return {}
        first, told, text = index - index % self.asked.answers, self._told[index], self.asked.text_in_logprobs
        prompt, placed = self.tally.parts[first].prompt_logprobs, self.tally.parts[index].placed
        output = [at for at, _ in placed[len(told["output_token_logprobs"]) :]]
        for side, new in ("input", prompt[len(told["input_token_logprobs"]) :]), ("output", output):
            told[f"{side}_token_logprobs"] += self._writer.native(new, text=text)
            if self.asked.logprobs:
                told[f"{side}_top_logprobs"] += self._writer.native_top(new, text=text)
        return told


def _rids(values: Mapping[str, Any], size: int, *, batch: bool) -> tuple[str, list[str | None]]:
    """The id that names all requests together, and the one of each: None where it follows from that."""
    rid = values.get("rid", uuid.uuid4().hex)
    if isinstance(rid, str):
        return rid, [None] * size
    if not batch or not isinstance(rid, list) or len(rid) != size or not all(isinstance(item, str) for item in rid):
        allowed = f"a string, or a list of {size} strings" if batch else "a string"
        raise must_be(allowed, "rid", rid)
    return uuid.uuid4().hex, rid


def _finish_reason(finish: Finish, length: int) -> dict[str, Any]:
    match finish.reason:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": length}
        case _:
            return {"type": "abort", "message": "aborted"}
