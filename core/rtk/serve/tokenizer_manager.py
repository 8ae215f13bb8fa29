"""The one client protocol: a prompt goes in, deltas of text come out. HTTP and `rtk.Engine` both speak it.

Lives on one event loop. The scheduler is reached through `send` and answers through `deliver`, from any thread.
"""

import asyncio
import dataclasses
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from rtk.cache.key import TOKEN_BYTES, Namespace
from rtk.errors import RequestError
from rtk.grammar.forms import AskedForm, Forms, ServedForm
from rtk.grammar.verify import verified
from rtk.schedule.messages import (
    Abort,
    Answer,
    CacheReport,
    Explain,
    Explained,
    ExplainRequest,
    Finish,
    Flush,
    Flushed,
    GetCache,
    GetStats,
    GrammarOrder,
    Inbound,
    NewRequest,
    Outbound,
    Pin,
    Pinned,
    PinState,
    Refused,
    RequestExplained,
    Stats,
    Unpin,
    Verdict,
)
from rtk.schedule.params import SamplingParams, check_text, sampling_params, shown
from rtk.serve.explanation import CacheExplanation, explanation
from rtk.serve.prompts import PromptEncoder
from rtk.serve.protocol import Chat, Delta, GenerateRequest, ModelFacts, Vitals, check_defaults, sampling_defaults
from rtk.serve.request_explanation import RequestExplanation, request_explanation
from rtk.serve.text import Detokenizer, TextOutput
from rtk.serve.thinking import Splitter, Thinking
from rtk.serve.tokenizer import Tokenizer

__all__ = ["Chat", "Delta", "GenerateRequest", "ModelFacts", "TokenizerManager", "Vitals", "sampling_defaults"]

log = logging.getLogger(__name__)

MAX_NAME = 200
"""Characters of a request id, and of a pin's name."""

MAX_SALT = 65_536
"""Characters of a cache salt."""

MAX_PRIORITY = 2**31 - 1

MAX_TTL_S = 2**31 - 1

MAX_DEADLINE_MS = 2**31 - 1

VERIFY_LIMIT_S = 10.0
"""How long the check of one text may take."""

MAX_VERIFYING = 2
"""Texts that are checked at a time."""

ANSWER_LIMIT_S = 60.0
"""How long the scheduler may take to answer a question: longer than any step of it."""


@dataclass(slots=True, eq=False)
class _Entry:
    """One request in flight."""

    id: str
    """Its id for the scheduler, never used twice: late answers to an ended request can reach no other."""
    rid: str
    names: frozenset[tuple[str, str]]
    """Its tenant with its client id, and with that of its batch."""
    index: int
    request: GenerateRequest
    queue: asyncio.Queue[Delta | RequestError]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sent: bool = False
    aborted: bool = False
    """Aborted by its client before it was sent."""
    splitter: Splitter = dataclasses.field(default_factory=lambda: Splitter(None))
    answer: list[str] = dataclasses.field(default_factory=list)
    """The parts of the answer so far, where it is to be checked."""


class TokenizerManager:
    """Validates and encodes requests, and hands each client the text of its own."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        send: Callable[[Inbound], None],
        facts: ModelFacts,
        *,
        healthy: Callable[[], bool] = lambda: True,
        vitals: Callable[[], Vitals] = Vitals,
        forms: Forms | None = None,
        thinking: Thinking | None = None,
    ) -> None:
        """`send` must not block. `healthy` answers whether whoever receives it still works, `vitals` how well.

        `forms`: who sees to it that answers have a form; None: nobody. `thinking`: how the model does, if it does.
        """
        self.facts = facts
        self.tokenizer = tokenizer
        self._send = send
        self._healthy = healthy
        self.vitals = vitals
        self._forms = forms
        self._thinking = thinking
        self._verifying = asyncio.Semaphore(MAX_VERIFYING)
        self._prompts = PromptEncoder(tokenizer, facts)
        self._detokenizer = Detokenizer(tokenizer.assembler)
        self._numbers = itertools.count(1)
        self._entries: dict[str, _Entry] = {}
        """By scheduler id."""
        self._names: dict[tuple[str, str], list[_Entry]] = {}
        """By tenant and client id; that of a batch names all of its requests."""
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        check_defaults(facts)

    def check_healthy(self) -> None:
        """Raises `RequestError` where no request can be served any more."""
        if not self._healthy():
            raise _stopped()

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, those still being validated among them."""
        return len(self._entries)

    # --- generating ---------------------------------------------------------------------------------------------

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The deltas of one request; see `generate_batch`."""
        return self.generate_batch([request], request.rid)

    @property
    def grammar_libraries(self) -> dict[str, dict[str, str]]:
        """The grammar backends in use, see `Forms.libraries`."""
        return {} if self._forms is None else self._forms.libraries()

    async def form(self, asked: AskedForm) -> ServedForm:
        """Who sees to it that an answer has the form that is asked for, and how far.

        Raises `RequestError` where the form is malformed, or where nobody can see to it.
        """
        if self._forms is None:
            raise RequestError(
                f"{asked.called}: structured output is not enabled on this server (grammar.backend)",
                field=asked.called,
                code="grammar_off",
            )
        return await self._forms.serve(asked)

    async def generate_batch(
        self, requests: Sequence[GenerateRequest], rid: str | None = None
    ) -> AsyncGenerator[Delta, None]:
        """The deltas of several requests as they come. `rid` names them together, for `abort`.

        All are validated before one is sent. Raises `RequestError` where a request is refused, before its first delta,
        or fails; the others are then aborted. So are those that have not ended when the iterator is closed: close it
        (`contextlib.aclosing`), or cancel the task that iterates.
        """
        self._check_running()
        entries = self._reserve(requests, uuid.uuid4().hex if rid is None else rid)
        account = requests[0].account
        try:
            account.take(len(entries))
            prepared = []
            for entry in entries:
                prepared.append(await self._prepare(entry))
                await asyncio.sleep(0)  # many short texts take as long as a long one: let the others run
            for entry, new in zip(entries, prepared, strict=True):
                self._start(entry, new)
            open_requests, queue = len(entries), entries[0].queue
            while open_requests:
                item = await queue.get()
                if isinstance(item, RequestError):
                    raise item
                open_requests -= item.finish is not None
                yield await self._verified(entries[item.index], item)
        finally:
            self._give_up(entries)
            account.give_back(len(entries))

    def abort(self, rid: str, tenant: str = "") -> bool:
        """End the tenant's request, or batch, with the client id `rid`: its iterator ends with the reason "abort".

        Answers whether there was one.
        """
        entries = self._names.get((tenant, rid), [])
        for entry in entries:
            entry.aborted = True
            if entry.sent:
                self._send(Abort(entry.id))
        return bool(entries)

    async def _verified(self, entry: _Entry, delta: Delta) -> Delta:
        """The delta, with the result of the check where it is the last of a text that is to be checked."""
        form = entry.request.form
        if form is None or not form.verify:
            return delta
        entry.answer.append(delta.content)
        if delta.finish is None or delta.finish.reason == "abort":
            return delta
        async with self._verifying:
            result = await asyncio.to_thread(verified, form.asked, "".join(entry.answer), VERIFY_LIMIT_S)
        return dataclasses.replace(delta, verified=result)

    def _reserve(self, requests: Sequence[GenerateRequest], rid: str) -> list[_Entry]:
        """Enter the requests into the tables, so that no other can take their ids."""
        rids = [_own_rid(request, rid, i, len(requests)) for i, request in enumerate(requests)]
        tenant = requests[0].tenant or ""
        self._check_free(tenant, [*rids, rid] if len(requests) > 1 else rids)
        queue: asyncio.Queue[Delta | RequestError] = asyncio.Queue()
        entries = [
            _Entry(f"{next(self._numbers)}:{name}", name, frozenset(((tenant, name), (tenant, rid))), i, request, queue)
            for i, (name, request) in enumerate(zip(rids, requests, strict=True))
        ]
        for entry in entries:
            self._entries[entry.id] = entry
            for name in entry.names:
                self._names.setdefault(name, []).append(entry)
        return entries

    def _check_free(self, tenant: str, rids: Sequence[str]) -> None:
        for i, rid in enumerate(rids):
            _check_name(rid, "rid")
            if (tenant, rid) in self._names or rid in rids[:i]:
                raise RequestError(
                    f"rid = {shown(rid)}: a request with this id is in flight; wait for its end, or choose another",
                    field="rid",
                    code="duplicate_rid",
                    status=409,
                )

    def _start(self, entry: _Entry, new: NewRequest) -> None:
        if entry.aborted:
            self._finish(entry, TextOutput(rid=entry.id, text="", tokens=(), finish=Finish(reason="abort")))
            return
        entry.prompt_tokens = len(new.tokens) // TOKEN_BYTES
        entry.request.account.spend(entry.prompt_tokens)
        entry.sent = True
        self._detokenizer.open(new)
        self._send(new)
        if not self._healthy():  # it may have ended before it could take this in
            self._fail(entry, _stopped())
            self._send(Abort(entry.id))

    def _give_up(self, entries: Sequence[_Entry]) -> None:
        """Abort those that have not ended, and forget them."""
        for entry in entries:
            if entry.id in self._entries:
                self._forget(entry)
                if entry.sent:
                    self._send(Abort(entry.id))

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.id]
        self._detokenizer.close(entry.id)
        for name in entry.names:
            self._names[name].remove(entry)
            if not self._names[name]:
                del self._names[name]

    # --- validating ---------------------------------------------------------------------------------------------

    async def _prepare(self, entry: _Entry) -> NewRequest:
        request = entry.request
        params = self._params(request)
        tokens = await self._prompts.tokens(request)
        params = request.ceilings.applied(request, params, len(tokens) // TOKEN_BYTES)
        return NewRequest(
            rid=entry.id,
            tokens=tokens,
            params=params,
            namespace=_namespace(request),
            priority=_priority(request),
            tenant=_name_or_none(request.tenant, "tenant"),
            routing_key=_name_or_none(request.routing_key, "routing_key"),
            deadline_s=_deadline_s(request),
            name=entry.rid,
            grammar=self._grammar(entry, tokens),
        )

    def _grammar(self, entry: _Entry, tokens: bytes) -> GrammarOrder | None:
        """What the scheduler is to see to. Notes whether the answer begins with thinking, where all is free."""
        form, thinking = entry.request.form, self._thinking
        thinks = thinking is not None and thinking.is_open(entry.request, tokens)
        entry.splitter = Splitter(thinking if thinks else None)
        if form is None:
            return None
        return replace(form.order, after=thinking.end.encode()) if thinking and thinks else form.order

    def _params(self, request: GenerateRequest) -> SamplingParams:
        given = {**self.facts.default_sampling, **request.sampling}
        return sampling_params(given, vocab_size=self.facts.vocab_size, names=request.names)

    # --- asking -------------------------------------------------------------------------------------------------

    async def stats(self) -> dict[str, int | float]:
        """The scheduler's counters and gauges, and what became of the forms that were asked for."""
        answer: Stats = await self._ask(GetStats)
        return answer.values if self._forms is None else answer.values | self._forms.stats()

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
        tokens, namespace = await self._prompts.tokens(request), _namespace(request)
        question = partial(Explain, tokens=tokens, namespace=namespace, elsewhere=elsewhere)
        answer: Explained = await self._ask(question)
        return explanation(answer, self.tokenizer.text_of)

    async def explain_request(self, rid: str, tenant: str = "") -> RequestExplanation:
        """What became of the tenant's newest request with the client id `rid`, and why.

        Raises `RequestError` where there is none in flight and none among the last that have ended.
        """
        _check_name(rid, "rid")
        answer: RequestExplained = await self._ask(partial(ExplainRequest, name=rid, tenant=tenant))
        return request_explanation(answer.timeline)

    async def pin(self, name: str, request: GenerateRequest, ttl_s: float | None = None) -> PinState:
        """Keep the request's prompt in the prefix cache, computing it where it is not there.

        `ttl_s`: for so many seconds; None: until it is unpinned. Raises `RequestError` for what does not fit.
        """
        _check_name(name, "name")
        if ttl_s is not None and not (_is_number(ttl_s) and 0 < ttl_s <= MAX_TTL_S):
            allowed = f"a number of seconds above 0, up to {MAX_TTL_S}, or null"
            raise RequestError(f"ttl_s = {shown(ttl_s)}: must be {allowed}", field="ttl_s")
        tokens, namespace = await self._prompts.tokens(request), _namespace(request)
        question = partial(Pin, name=name, tokens=tokens, namespace=namespace, ttl_s=ttl_s)
        try:
            answer: Pinned = await self._ask(question, limit_s=None)
        except RequestError as error:
            raise _refusal(request, str(error), error.field, error.code, error.status) from None
        return answer.pin

    async def unpin(self, name: str) -> PinState:
        """Take a pin off; answers what was pinned. Raises `RequestError` where there is none of that name."""
        _check_name(name, "name")
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

    # --- answers ------------------------------------------------------------------------------------------------

    def deliver(self, messages: Sequence[Outbound]) -> None:
        """Take the scheduler's messages; from any thread. Wakes the event loop once."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._receive, messages)
        except RuntimeError:
            log.debug("messages arrived after the event loop was closed")

    def _receive(self, messages: Sequence[Outbound]) -> None:
        for message in self._detokenizer.process(messages):
            match message:
                case TextOutput():
                    self._output(message)
                case Verdict(accepted=False):
                    self._refuse(message)
                case Answer():
                    self._answered(message)

    def _answered(self, answer: Answer) -> None:
        waiting = self._questions.get(answer.id)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Refused):
            error = RequestError(answer.problem, field=answer.field, code=answer.code, status=answer.status)
            waiting.set_exception(error)
        else:
            waiting.set_result(answer)

    def _output(self, output: TextOutput) -> None:
        entry = self._entries.get(output.rid)
        if entry is None:
            return
        finish = output.finish
        if finish is None:
            entry.queue.put_nowait(self._delta(entry, output))
        elif finish.reason == "error":
            self._fail(entry, _refusal(entry.request, finish.problem, finish.field, finish.code, finish.status))
            self._send(Abort(entry.id))  # the error may be the detokenizer's
        else:
            self._finish(entry, output)

    def _finish(self, entry: _Entry, output: TextOutput) -> None:
        # Forgotten before the client can know that it ended, so that the id is free when the client knows.
        self._forget(entry)
        entry.queue.put_nowait(self._delta(entry, output))

    def _fail(self, entry: _Entry, error: RequestError) -> None:
        self._forget(entry)
        entry.queue.put_nowait(error)

    def _refuse(self, verdict: Verdict) -> None:
        entry = self._entries.get(verdict.rid)
        if entry is None:
            return
        error = _refusal(entry.request, verdict.problem, verdict.field, verdict.code, verdict.status)
        self._fail(entry, error)

    def _delta(self, entry: _Entry, output: TextOutput) -> Delta:
        entry.completion_tokens += len(output.tokens)
        entry.request.account.spend(len(output.tokens))
        thought, content = entry.splitter.push(output.text, last=output.finish is not None)
        return Delta(
            index=entry.index,
            rid=entry.rid,
            text=output.text,
            token_ids=output.tokens,
            prompt_tokens=entry.prompt_tokens,
            cached_tokens=output.cached_tokens,
            completion_tokens=entry.completion_tokens,
            finish=output.finish,
            thought=thought,
            content=content,
        )


def _refusal(request: GenerateRequest, problem: str, field: str | None, code: str, status: int) -> RequestError:
    """What the scheduler refuses, in the client's words."""
    names = {"prompt": request.prompt_name, **request.names}
    if field == "grammar" and request.form is not None:
        names[field] = request.form.asked.called
        problem = f"{names[field]}: {problem}"
    length = "max_new_tokens"  # the one parameter that the scheduler's messages name
    problem = problem.replace(length, names.get(length, length))
    return RequestError(problem, field=None if field is None else names.get(field, field), code=code, status=status)


def _check_name(name: Any, field: str) -> None:
    if not (isinstance(name, str) and 1 <= len(name) <= MAX_NAME and name.isprintable()):
        raise RequestError(f"{field}: must be a string of 1 to {MAX_NAME} printable characters", field=field)


def _namespace(request: GenerateRequest) -> Namespace:
    salt = request.cache_salt
    if salt is not None:
        if not (isinstance(salt, str) and 1 <= len(salt) <= MAX_SALT):
            raise RequestError(
                f"cache_salt: must be a string of 1 to {MAX_SALT:,} characters, or null", field="cache_salt"
            )
        check_text(salt, field="cache_salt")
    return Namespace(salt=salt, tenant=_name_or_none(request.tenant, "tenant"))


def _priority(request: GenerateRequest) -> int:
    priority = request.priority
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MAX_PRIORITY:
        raise RequestError(
            f"priority = {shown(priority)}: must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}", field="priority"
        )
    return priority


def _name_or_none(name: str | None, field: str) -> str:
    """The name as the scheduler has it: empty for none."""
    if name is None:
        return ""
    _check_name(name, field)
    return name


def _deadline_s(request: GenerateRequest) -> float | None:
    deadline = request.deadline_ms
    if deadline is None:
        return None
    if not (_is_number(deadline) and 0 < deadline <= MAX_DEADLINE_MS):
        allowed = f"a number of milliseconds above 0, up to {MAX_DEADLINE_MS}, or null"
        raise RequestError(f"deadline_ms = {shown(deadline)}: must be {allowed}", field="deadline_ms")
    return deadline / 1000


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _stopped() -> RequestError:
    return RequestError("the engine has stopped; restart the server", code="engine_stopped", status=503)


def _own_rid(request: GenerateRequest, rid: str, index: int, size: int) -> str:
    """A request's client id: its own, or the one of its batch, numbered."""
    if request.rid is not None:
        return request.rid
    return rid if size == 1 else f"{rid}-{index}"
