"""The one client protocol: a prompt goes in, deltas of text come out. HTTP and `rtk.Engine` both speak it.

Lives on one event loop. The scheduler is reached through `send`; its answers come through `deliver`, from any thread,
and with text, which a detokenizer puts to them on their way.
"""

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from rtk.cache.key import TOKEN_BYTES
from rtk.errors import RequestError
from rtk.grammar.forms import AskedForm, Forms, ServedForm
from rtk.grammar.verify import verified
from rtk.observe.visit import current
from rtk.schedule.messages import Abort, Answer, Finish, GrammarOrder, Inbound, NewRequest, Verdict
from rtk.schedule.params import SamplingParams, answers_wanted, check_prompt_logprobs, sampling_params, shown
from rtk.serve.answers import answer_rid, further_answer
from rtk.serve.asking import Asking
from rtk.serve.detokenizer import TextOutput, Texts
from rtk.serve.handling import check_name, deadline_of, name_or_none, namespace_of, priority_of, refusal, stopped
from rtk.serve.prompts import PromptEncoder
from rtk.serve.protocol import Chat, Delta, GenerateRequest, ModelFacts, Vitals, check_defaults, sampling_defaults
from rtk.serve.thinking import Splitter, Thinking
from rtk.serve.tokenizer import Tokenizer

__all__ = ["Chat", "Delta", "GenerateRequest", "ModelFacts", "TokenizerManager", "Vitals", "sampling_defaults"]

log = logging.getLogger(__name__)

T = TypeVar("T")

VERIFY_LIMIT_S = 10.0
"""How long the check of one text may take."""

MAX_VERIFYING = 2
"""Texts that are checked at a time."""


@dataclass(slots=True, eq=False)
class _Entry:
    """One answer in flight."""

    id: str
    """Its id for the scheduler, never used twice: late answers to an ended request can reach no other."""
    rid: str
    names: frozenset[tuple[str, str]]
    """Its tenant with its client id, with that of its request, and with that of its batch."""
    index: int
    answer_number: int
    """Of its request's."""
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


class TokenizerManager(Asking):
    """Validates and encodes requests, and hands each client the text of its own."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        send: Callable[[Inbound], None],
        facts: ModelFacts,
        *,
        healthy: Callable[[], bool] = lambda: True,
        ailment: Callable[[], RequestError] = stopped,
        vitals: Callable[[], Vitals] = Vitals,
        forms: Forms | None = None,
        thinking: Thinking | None = None,
    ) -> None:
        """`send` must not block. `healthy` answers whether whoever receives it still works, `vitals` how well.

        `ailment`: what requests are told while nobody does.
        `forms`: who sees to it that answers have a form; None: nobody. `thinking`: how the model does, if it does.
        """
        super().__init__(tokenizer, PromptEncoder(tokenizer, facts), send, healthy, ailment, forms, vitals)
        self.facts = facts
        self._thinking = thinking
        self._verifying = asyncio.Semaphore(MAX_VERIFYING)
        self._entries: dict[str, _Entry] = {}
        """By scheduler id."""
        self._draining = False
        self._names: dict[tuple[str, str], list[_Entry]] = {}
        """By tenant and client id; that of a batch names all of its requests."""
        self.early_aborts = 0
        """Requests that were aborted before they were sent."""
        check_defaults(facts)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, those still being validated among them."""
        return len(self._entries)

    def drain(self) -> None:
        """Take no more requests; those that run go on."""
        self._draining = True

    def check_open(self) -> None:
        """Raises `RequestError` where no more requests are taken."""
        if self._draining:
            raise RequestError("the server is shutting down; ask another one", code="shutting_down", status=503)

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
        """The deltas of several requests as they come, of each answer of each. `rid` names them together, for `abort`.

        All are validated before one is sent. Raises `RequestError` where a request is refused, before its first delta,
        or fails; the others are then aborted. So are those that have not ended when the iterator is closed: close it
        (`contextlib.aclosing`), or cancel the task that iterates.
        """
        self._check_running()
        self.check_open()
        entries = self._reserve(requests, uuid.uuid4().hex if rid is None else rid)
        visit = current()
        visit.serves(entry.rid for entry in entries)
        account = requests[0].account
        try:
            account.take(len(entries))
            prepared: list[NewRequest] = []
            for entry in entries:
                if number := entry.answer_number:
                    prepared.append(self._further(entry, prepared[entry.index - number]))
                else:
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
                visit.saw(item, further=entries[item.index].answer_number > 0)
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
        """Enter the answers of the requests into the tables, so that no other of their tenant can take their ids."""
        answers = [
            (request, own, number, answer_rid(own, number))
            for i, request in enumerate(requests)
            for own in (_own_rid(request, rid, i, len(requests)),)
            for number in range(answers_wanted(request.sampling, request.names))
        ]
        tenant = requests[0].tenant or ""
        self._check_free(tenant, [*(name for *_, name in answers), *([rid] if len(requests) > 1 else [])])
        queue: asyncio.Queue[Delta | RequestError] = asyncio.Queue()
        entries = [
            _Entry(
                id=f"{next(self._numbers)}:{name}",
                rid=name,
                names=frozenset((tenant, one) for one in (name, own, rid)),
                index=i,
                answer_number=number,
                request=request,
                queue=queue,
            )
            for i, (request, own, number, name) in enumerate(answers)
        ]
        for entry in entries:
            self._entries[entry.id] = entry
            for name in entry.names:
                self._names.setdefault(name, []).append(entry)
        return entries

    def _check_free(self, tenant: str, rids: Sequence[str]) -> None:
        for i, rid in enumerate(rids):
            check_name(rid, "rid")
            if (tenant, rid) in self._names or rid in rids[:i]:
                raise RequestError(
                    f"rid = {shown(rid)}: a request with this id is in flight; wait for its end, or choose another",
                    field="rid",
                    code="duplicate_rid",
                    status=409,
                )

    def _start(self, entry: _Entry, new: NewRequest) -> None:
        if entry.aborted:
            self.early_aborts += 1
            self._finish(entry, TextOutput(rid=entry.id, text="", tokens=(), finish=Finish(reason="abort")))
            return
        entry.prompt_tokens = len(new.tokens) // TOKEN_BYTES
        if not entry.answer_number:
            entry.request.account.spend(entry.prompt_tokens)
        entry.sent = True
        self._send(new)
        if not self._healthy():  # it may have ended before it could take this in
            self._fail(entry, self._ailment())
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
        for name in entry.names:
            self._names[name].remove(entry)
            if not self._names[name]:
                del self._names[name]

    # --- validating ---------------------------------------------------------------------------------------------

    async def _prepare(self, entry: _Entry) -> NewRequest:
        request = entry.request
        params = self._params(request)
        tokens = await self._prompts.tokens(request)
        prompt_tokens = len(tokens) // TOKEN_BYTES
        check_prompt_logprobs(params, prompt_tokens, names=request.names)
        params = request.ceilings.applied(params, prompt_tokens, prompt_name=request.prompt_name, names=request.names)
        return NewRequest(
            rid=entry.id,
            tokens=tokens,
            params=params,
            namespace=namespace_of(request),
            priority=priority_of(request),
            tenant=name_or_none(request.tenant, "tenant"),
            routing_key=name_or_none(request.routing_key, "routing_key"),
            deadline_s=deadline_of(request),
            name=entry.rid,
            grammar=self._grammar(entry, tokens),
        )

    def _further(self, entry: _Entry, first: NewRequest) -> NewRequest:
        """A further answer to the prompt of the first one."""
        self._grammar(entry, first.tokens)
        return further_answer(first, entry.answer_number, rid=entry.id, name=entry.rid)

    def _grammar(self, entry: _Entry, tokens: bytes) -> GrammarOrder | None:
        """What the scheduler is to see to. Notes whether the answer begins with thinking, where all is free."""
        form, thinking = entry.request.form, self._thinking
        thinks = thinking is not None and thinking.is_open(entry.request, tokens)
        entry.splitter = Splitter(thinking if thinks or form is None else None, sure=thinks)
        if form is None:
            return None
        return replace(form.order, after=thinking.end.encode()) if thinking and thinks else form.order

    def _params(self, request: GenerateRequest) -> SamplingParams:
        given = {**self.facts.default_sampling, **request.sampling}
        return sampling_params(given, vocab_size=self.facts.vocab_size, names=request.names)

    # --- tokens -------------------------------------------------------------------------------------------------

    async def tokenize(
        self, prompt: str | Chat, *, name: str = "prompt", add_special_tokens: bool | None = None
    ) -> Sequence[int]:
        """Token ids of a text or a chat; None: with special tokens around it where an answer's prompt has them."""
        return await self._prompts.ids(prompt, name=name, add_special_tokens=add_special_tokens)

    async def detokenize(self, tokens: Sequence[int], *, name: str = "tokens") -> str:
        """The text of token ids, special ones by name."""
        return await self._prompts.text(tokens, name=name)

    # --- answers ------------------------------------------------------------------------------------------------

    def deliver(self, messages: Sequence[Texts]) -> None:
        """Take the detokenizer's messages; from any thread. Wakes the event loop once."""
        self._have_loop(self._receive, messages)

    def lose(self, error: RequestError) -> None:
        """Whoever computed is gone: end what runs, and what was asked, with `error`; from any thread."""
        self._have_loop(self._lose, error)

    def _lose(self, error: RequestError) -> None:
        for entry in [entry for entry in self._entries.values() if entry.sent]:
            self._fail(entry, error)
        self._lose_questions(error)

    def _have_loop(self, function: Callable[[T], None], argument: T) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            log.debug("something came after the event loop was closed")

    def _receive(self, messages: Sequence[Texts]) -> None:
        for message in messages:
            match message:
                case TextOutput():
                    self._output(message)
                case Verdict(accepted=False):
                    self._refuse(message)
                case Answer():
                    self._answered(message)

    def _output(self, output: TextOutput) -> None:
        entry = self._entries.get(output.rid)
        if entry is None:
            return
        finish = output.finish
        if finish is None:
            entry.queue.put_nowait(self._delta(entry, output))
        elif finish.reason == "error":
            self._fail(entry, refusal(entry.request, finish.problem, finish.field, finish.code, finish.status))
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
        if not entry.answer_number:  # nothing of it was computed
            entry.request.account.spend(-entry.prompt_tokens)
        error = refusal(entry.request, verdict.problem, verdict.field, verdict.code, verdict.status)
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
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            offsets=output.offsets,
            thought=thought,
            content=content,
        )


def _own_rid(request: GenerateRequest, rid: str, index: int, size: int) -> str:
    """A request's client id: its own, or the one of its batch, numbered."""
    if request.rid is not None:
        return request.rid
    return rid if size == 1 else f"{rid}-{index}"
