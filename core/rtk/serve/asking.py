"""What is asked of the scheduler beside requests: counters, the prefix cache, pins, and why something is as it is."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from rtk.errors import RequestError
from rtk.grammar.forms import Forms
from rtk.schedule.messages import (
    Answer,
    CacheReport,
    Explain,
    Explained,
    ExplainRequest,
    Flush,
    Flushed,
    GetCache,
    GetStats,
    Inbound,
    Pin,
    Pinned,
    PinState,
    Refused,
    RequestExplained,
    Stats,
    Unpin,
)
from rtk.schedule.params import shown
from rtk.schedule.timeline import Timeline
from rtk.serve.explanation import CacheExplanation, explanation
from rtk.serve.handling import check_name, is_number, namespace_of, refusal
from rtk.serve.prompts import PromptEncoder
from rtk.serve.protocol import GenerateRequest, Vitals
from rtk.serve.request_explanation import RequestExplanation, request_explanation
from rtk.serve.tokenizer import Tokenizer

MAX_TTL_S = 2**31 - 1

ANSWER_LIMIT_S = 60.0
"""How long the scheduler may take to answer a question: longer than any step of it."""


class Asking:
    """The part of a `TokenizerManager` that asks. Belongs to one event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: PromptEncoder,
        send: Callable[[Inbound], None],
        healthy: Callable[[], bool],
        ailment: Callable[[], RequestError],
        forms: Forms | None,
        vitals: Callable[[], Vitals],
    ) -> None:
        """See `TokenizerManager`."""
        self.tokenizer = tokenizer
        self._prompts = prompts
        self._send = send
        self._healthy = healthy
        self._ailment = ailment
        self._forms = forms
        self.vitals = vitals
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_healthy(self) -> None:
        """Raises `RequestError` where no request can be served any more."""
        if not self._healthy():
            raise self._ailment()

    async def measured(self) -> Stats:
        """All that the scheduler counts and measures, and what became of the forms that were asked for."""
        answer: Stats = await self._ask(GetStats)
        process = self.vitals().process
        pauses = {} if process is None else process.pauses()
        return replace(answer, values={**answer.values, **pauses, **(self._forms.stats() if self._forms else {})})

    async def stats(self) -> dict[str, int | float]:
        """Of that, the counters and gauges."""
        return (await self.measured()).values

    async def flush(self) -> int:
        """Empty the prefix cache; answers the tokens given back. Raises `RequestError` while requests are in flight."""
        answer: Flushed = await self._ask(Flush)
        return answer.tokens

    async def cache(self) -> CacheReport:
        """What the KV pool holds, and the pins."""
        answer: CacheReport = await self._ask(GetCache)
        return answer

    async def explain(self, request: GenerateRequest, *, elsewhere: bool = False) -> CacheExplanation:
        """Why the request's prompt would hit the prefix cache as much as it does. Computes nothing.

        `elsewhere`: look for more of it in other namespaces too. Raises `RequestError` where the cache is switched off.
        """
        tokens, namespace = await self._prompts.tokens(request), namespace_of(request)
        question = partial(Explain, tokens=tokens, namespace=namespace, elsewhere=elsewhere)
        answer: Explained = await self._ask(question)
        return explanation(answer, self.tokenizer.text_of)

    async def explain_request(self, rid: str, tenant: str = "") -> RequestExplanation:
        """What became of the tenant's newest request with the client id `rid`, and why.

        Raises `RequestError` where there is none in flight and none among the last that have ended.
        """
        check_name(rid, "rid")
        return request_explanation(await self.timeline(rid, tenant))

    async def timeline(self, rid: str, tenant: str = "") -> Timeline:
        """What that is made from."""
        answer: RequestExplained = await self._ask(partial(ExplainRequest, name=rid, tenant=tenant))
        return answer.timeline

    async def pin(self, name: str, request: GenerateRequest, ttl_s: float | None = None) -> PinState:
        """Keep the request's prompt in the prefix cache, computing it where it is not there.

        `ttl_s`: for so many seconds; None: until it is unpinned. Raises `RequestError` for what does not fit.
        """
        check_name(name, "name")
        if ttl_s is not None and not (is_number(ttl_s) and 0 < ttl_s <= MAX_TTL_S):
            allowed = f"a number of seconds above 0, up to {MAX_TTL_S}, or null"
            raise RequestError(f"ttl_s = {shown(ttl_s)}: must be {allowed}", field="ttl_s")
        tokens, namespace = await self._prompts.tokens(request), namespace_of(request)
        question = partial(Pin, name=name, tokens=tokens, namespace=namespace, ttl_s=ttl_s)
        try:
            answer: Pinned = await self._ask(question, limit_s=None)
        except RequestError as error:
            raise refusal(request, str(error), error.field, error.code, error.status) from None
        return answer.pin

    async def unpin(self, name: str) -> PinState:
        """Take a pin off; answers what was pinned. Raises `RequestError` where there is none of that name."""
        check_name(name, "name")
        answer: Pinned = await self._ask(partial(Unpin, name=name))
        return answer.pin

    async def _ask(self, question: Callable[..., Inbound], limit_s: float | None = ANSWER_LIMIT_S) -> Any:
        self._check_running()
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(question(id=number))
            self.check_healthy()
            return await asyncio.wait_for(answer, limit_s)
        except TimeoutError:
            raise RequestError(
                f"the engine gave no answer within {limit_s:g} s", code="engine_busy", status=503
            ) from None
        finally:
            del self._questions[number]

    def _check_running(self) -> None:
        """Take note of the loop to deliver to, and refuse where nobody would answer."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("a TokenizerManager belongs to the event loop that it was first used on")
        self._loop = loop
        self.check_healthy()

    def _answered(self, answer: Answer) -> None:
        waiting = self._questions.get(answer.id)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Refused):
            error = RequestError(answer.problem, field=answer.field, code=answer.code, status=answer.status)
            waiting.set_exception(error)
        else:
            waiting.set_result(answer)

    def _lose_questions(self, error: RequestError) -> None:
        for waiting in self._questions.values():
            if not waiting.done():
                waiting.set_exception(error)
