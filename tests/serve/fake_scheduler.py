"""A scheduler thread that follows a script instead of a model.

A script is a function of a `NewRequest` that yields what becomes of it: token ids in a tuple (an `Output`), a `Finish`,
both in a pair, a `Verdict` in place of the acceptance, or a `Gate` that holds the request until the test opens it.
"""

import queue
import threading
from dataclasses import dataclass, field

from rtk.cache.explain import Elsewhere, Explanation, Search
from rtk.cache.key import Namespace, unpack
from rtk.schedule.messages import (
    Abort,
    CacheReport,
    Explain,
    Explained,
    ExplainRequest,
    Finish,
    Flush,
    Flushed,
    GetCache,
    GetStats,
    NewRequest,
    Output,
    Pin,
    Pinned,
    PinState,
    Refused,
    RequestExplained,
    Stats,
    TokenLogprobs,
    Unpin,
    Verdict,
)
from rtk.schedule.timeline import Overtaken, Timeline
from rtk.serve.protocol import Vitals

WAIT_S = 10
STOP = Finish(reason="stop", matched=2)
LENGTH = Finish(reason="length")

GREETING = PinState(name="greeting", tokens=3, namespace=Namespace(salt="s"), expires_in_s=None)


@dataclass(eq=False)
class Gate:
    """Holds requests back. Tests open it through `FakeScheduler.open`."""

    opened: bool = False


@dataclass(eq=False)
class _Running:
    rid: str
    steps: object
    gate: Gate = field(default_factory=lambda: Gate(opened=True))


def refusal(new, status=400, code="refused", problem="no", where="prompt"):
    return Verdict(rid=new.rid, accepted=False, code=code, problem=problem, field=where, status=status)


def timeline(**more):
    """What a ledger tells of a request that has just come."""
    return Timeline(
        **{
            "rid": "r", "state": "waiting", "age_s": 0.0, "end": None, "problem": "", "prompt_tokens": 4,
            "output_tokens": 0,
            "waiting_at_arrival": 0, "started_s": None, "cached_tokens": 0, "queue_s": 0.0, "waits": (),
            "behind": None, "overtaken": Overtaken(0, 0, True), "notes": (), "attempts": (), "chunks": (),
            "chunk_count": 0, "forward_s": 0.0, "first_token": None, "decoding": None, "retractions": (),
            "retraction_count": 0, **more,
        }
    )  # fmt: skip


def scores(token, top):
    """What the model made of a place where `token` stands. Even ones are probable, odd ones come far behind."""
    own = -0.5 if token % 2 == 0 else -9.25
    ranked = [(token, own)] * (token % 2 == 0) + [(token ^ (2 + i), -1.0 - i) for i in range(top)]
    return TokenLogprobs(token, own, tuple(ranked[:top]))


def prompt_scores(new):
    """Of the prompt's tokens, where they are asked for; nothing comes before the first."""
    params, ids = new.params, unpack(new.tokens)
    if params.prompt_logprobs is None:
        return ()
    first, *others = [scores(token, params.prompt_logprobs) for token in ids]
    return (TokenLogprobs(first.token, None), *others)[params.prompt_logprobs_start :]


def bundled(script, size):
    """The same, `size` tokens in a message, the last ones with the end."""

    def bundles(new):
        held = ()
        for step in script(new):
            match step:
                case (tuple() as tokens, Finish() as finish):
                    held += tokens
                case Finish() as finish:
                    pass
                case _:
                    held, finish = held + step, None
            while len(held) >= size and not (finish and len(held) == size):
                yield held[:size]
                held = held[size:]
            if finish:
                yield held, finish

    return bundles


def saying(*ids, finish=LENGTH, bundle=1):
    """A script: these tokens, `bundle` of them in a message, whatever was asked."""

    def script(new):
        for i in range(0, len(ids), bundle):
            yield tuple(ids[i : i + bundle])
        yield finish

    return script


def model(tokenizer, ids, end_tokens=frozenset({2})):
    """A script that ends where the scheduler would: stop tokens, stop strings, length. It repeats `ids`."""

    def script(new):
        params = new.params
        match_stop = tokenizer.match_stop(params, new.tokens) if params.stop else lambda token: None
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else end_tokens)
        limit = 64 if params.max_new_tokens is None else params.max_new_tokens
        if not limit:
            yield LENGTH
        for count in range(1, limit + 1):
            token = ids[(count - 1) % len(ids)]
            matched = match_stop(token)
            if token in stops and count >= params.min_new_tokens:
                yield (token,), Finish(reason="stop", matched=token)
            elif matched is not None:
                yield (token,), Finish(reason="stop", matched=matched)
            elif count == limit:
                yield (token,), LENGTH
            else:
                yield (token,)

    return script


class FakeScheduler:
    """Speaks the scheduler's messages, in a thread of its own. Requests advance one step a round, in turn."""

    def __init__(self, script):
        self.script = script
        self.deliver = None
        self.healthy = True
        self.vitals = Vitals()
        self.received = []
        self.explanation = None
        self.pins = (GREETING,)
        self.timeline = None
        self._changed = threading.Condition()
        self._inbox = queue.SimpleQueue()
        self._running = {}
        self._thread = threading.Thread(target=self._run, name="fake-scheduler", daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._inbox.put(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def send(self, message):
        self._inbox.put(message)

    def open(self, gate):
        self._inbox.put(gate)

    def wait_for(self, condition):
        """Until `condition(self)` holds; it is asked after every message."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_S), "nothing of the kind happened"

    def of(self, kind):
        """What was received of one kind of message."""
        return [message for message in list(self.received) if isinstance(message, kind)]

    def prompts(self):
        return [unpack(new.tokens) for new in self.of(NewRequest)]

    @property
    def running(self):
        return len(self._running)

    def _run(self):
        while (messages := self._collect()) is not None:
            out = [answer for message in messages for answer in self._take(message)]
            for request in [r for r in self._running.values() if r.gate.opened]:
                out += self._advance(request)
            if out:
                self.deliver(out)
            with self._changed:
                self._changed.notify_all()

    def _collect(self):
        messages = []
        block = not any(request.gate.opened for request in self._running.values())
        while True:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return messages
            if message is None:
                return None
            messages.append(message)
            block = False

    def _take(self, message):
        self.received.append(message)
        match message:
            case NewRequest():
                assert message.rid not in self._running, "the sender picks ids that are not in use"
                self._running[message.rid] = _Running(message.rid, self._answers(message))
            case Abort(rid):
                if self._running.pop(rid, None):
                    yield Output(rid=rid, tokens=(), finish=Finish(reason="abort"))
            case Flush(id=number):
                busy = f"the cache stays as it is: {self.running} requests are running or waiting"
                yield (
                    Refused(id=number, problem=busy, code="cache_busy")
                    if self._running
                    else Flushed(id=number, tokens=7)
                )
            case GetStats(id=number):
                yield Stats(id=number, values={"running": self.running})
            case GetCache(id=number):
                slots = {"free": 40, "evictable": 30, "protected": 20, "held": 10, "pool": 100}
                yield CacheReport(id=number, **slots, namespaces=2, pinned=3, pin_budget=25, pins=self.pins)
            case Explain(id=number):
                yield self._explained(number, message)
            case ExplainRequest(id=number):
                told = None if message.name == "nobody" else self.timeline or timeline(rid=message.name)
                yield (
                    RequestExplained(id=number, timeline=told)
                    if told
                    else Refused(id=number, problem="nobody knows it", code="unknown_request", field="rid", status=404)
                )
            case Pin(id=number):
                tokens = len(message.tokens) // 4
                pin = PinState(
                    name=message.name, tokens=tokens, namespace=message.namespace, expires_in_s=message.ttl_s
                )
                yield Pinned(id=number, pin=pin)
            case Unpin(id=number):
                yield Pinned(
                    id=number, pin=PinState(name=message.name, tokens=3, namespace=Namespace(), expires_in_s=1.5)
                )
            case Gate():
                message.opened = True

    def _explained(self, number, question):
        """Nothing of any prompt is cached, but for two tokens elsewhere; tests may put another explanation in."""
        explanation = self.explanation or Explanation(
            namespace=question.namespace,
            prompt_tokens=len(question.tokens) // 4,
            cached_tokens=0,
            matched_tokens=0,
            ends="new",
        )
        search = Search((Elsewhere(Namespace(salt="other"), 2),), 5) if question.elsewhere else None
        ago = None if explanation.evicted is None else 2.5
        return Explained(id=number, explanation=explanation, evicted_ago_s=ago, elsewhere=search)

    def _answers(self, new):
        """The script's steps as messages, with log-probabilities where they are asked for."""
        cached, prompt, top = min(2, len(new.tokens) // 4 - 1), prompt_scores(new), new.params.logprobs
        for i, step in enumerate(self.script(new)):
            if i == 0 and not isinstance(step, Verdict):
                yield Verdict(rid=new.rid, accepted=True)
            match step:
                case Finish():
                    tokens, finish = (), step
                case (tuple() as tokens, Finish() as finish):
                    pass
                case tuple():
                    tokens, finish = step, None
                case _:
                    yield step
                    continue
            logprobs = () if top is None else tuple(scores(token, top) for token in tokens)
            more = {"logprobs": logprobs, "prompt_logprobs": prompt}
            yield Output(rid=new.rid, tokens=tokens, cached_tokens=cached, finish=finish, **more)
            prompt = ()

    def _advance(self, request):
        answer = next(request.steps)
        if isinstance(answer, Gate):
            request.gate = answer
            return []
        if (isinstance(answer, Verdict) and not answer.accepted) or (isinstance(answer, Output) and answer.finish):
            del self._running[request.rid]
        return [answer]
