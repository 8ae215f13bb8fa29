"""`rtk.Engine`: the whole engine in one process, for Python programs that need no server."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeGuard, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from rtk.config.load import config_from
from rtk.config.models import Config
from rtk.errors import RequestError
from rtk.grammar.forms import ServedForm, asked_form
from rtk.schedule.messages import CacheReport, Finish, PinState, TokenLogprobs
from rtk.schedule.params import answers_wanted
from rtk.serve.explanation import CacheExplanation
from rtk.serve.request_explanation import RequestExplanation
from rtk.serve.runtime import Fetching, Runtime, quietly, start
from rtk.serve.tokenizer_manager import Chat, Delta, GenerateRequest

T = TypeVar("T")
Prompt = str | Sequence[int] | NDArray[np.integer[Any]] | Chat
"""Text, token ids, or messages for the model's chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One finished answer."""

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    finish: Finish
    thought: str = ""
    """Of the text: what the model thinks before it answers."""
    content: str = ""
    """Of the text: the answer."""
    form: ServedForm | None = None
    """Who saw to the form of the answer, and how far."""
    verified: bool | None = None
    """Where it was to be checked (`grammar_verify`): whether the answer has its form; None: that cannot be told."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities, one for each token id, where they were asked for (`logprobs`)."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """The same of the prompt's tokens from `prompt_logprobs_start` on (`prompt_logprobs`)."""
    others: tuple["Generation", ...] = ()
    """The further answers to the prompt, where several were asked for (`n`); they tell nothing of the prompt."""


class Engine:
    """Serves requests in this process. Methods may be called from any thread; use it as a context manager.

    It runs the scheduler that the HTTP server runs, through the same client protocol, so that nothing about a request
    differs between the two.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        *,
        fetching: Fetching = quietly,
        runtime: Runtime | None = None,
    ) -> None:
        """`config` may be nested or dotted keys of the configuration tree: `Engine({"cache.page_size": 16})`.

        Fetches the model where it is missing, which `fetching` may show. A given `runtime` is used instead of starting
        one, and closed with the engine. Raises `RtkError`.
        """
        if runtime is None:
            runtime = start(config if isinstance(config, Config) else config_from(config or {}), fetching)
        self._runtime = runtime
        self._manager = runtime.manager
        self._lock = threading.RLock()  # garbage may be collected, and with it a stream ended, while it is held
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rtk-engine", daemon=True)
        self._thread.start()

    @property
    def config(self) -> Config:
        """The configuration it runs with."""
        return self._runtime.config

    @overload
    def generate(
        self,
        prompts: Prompt,
        params: Mapping[str, Any] | None = None,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        routing_key: str | None = None,
        deadline_ms: float | None = None,
        tenant: str | None = None,
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompts: list[Prompt],
        params: Mapping[str, Any] | None = None,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        routing_key: str | None = None,
        deadline_ms: float | None = None,
        tenant: str | None = None,
    ) -> list[Generation]: ...

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        params: Mapping[str, Any] | None = None,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        routing_key: str | None = None,
        deadline_ms: float | None = None,
        tenant: str | None = None,
    ) -> Generation | list[Generation]:
        """Answer one prompt, or several together; waits for the end.

        A list or an array of integers is one prompt as token ids, any other list is several prompts. `params` are keyed
        by the fields of `SamplingParams`, and may say what the answer must look like by one of
        `rtk.grammar.forms.KINDS`, such as `json_schema`, with `grammar_whitespace` and `grammar_verify`. With `n`, the
        first answer to each prompt has the others in `others`. Only prompts of the same `tenant` and with the same
        `cache_salt` share what the cache has of them. `priority` and `routing_key`, and `tenant` otherwise, are for
        policies that read them. What has not ended `deadline_ms` after its arrival fails. Raises `RequestError` where a
        prompt is refused or fails; the others are aborted.
        """
        handling = {
            "cache_salt": cache_salt,
            "priority": priority,
            "routing_key": routing_key,
            "deadline_ms": deadline_ms,
            "tenant": tenant,
        }
        form, params = self._form(params)
        if _are_several(prompts):
            return self._wait(self._collect, [_request(prompt, params, form, **handling) for prompt in prompts])
        return self._wait(self._collect, [_request(cast("Prompt", prompts), params, form, **handling)])[0]

    def _form(self, params: Mapping[str, Any] | None) -> tuple[ServedForm | None, Mapping[str, Any]]:
        """Who sees to the form that parameters ask for, and the other parameters. Raises `RequestError`."""
        asked, others = asked_form(params or {})
        return None if asked is None else self._wait(self._manager.form, asked), others

    async def _collect(self, requests: list[GenerateRequest]) -> list[Generation]:
        if not requests:
            return []
        counts = [answers_wanted(request.sampling, request.names) for request in requests]
        deltas: list[list[Delta]] = [[] for _ in range(sum(counts))]
        async with contextlib.aclosing(self._manager.generate_batch(requests)) as stream:
            async for delta in stream:
                deltas[delta.index].append(delta)
        answers = iter(deltas)
        return [
            _joined([*islice(answers, count)], request.form) for count, request in zip(counts, requests, strict=True)
        ]

    def stream(
        self,
        prompt: Prompt,
        params: Mapping[str, Any] | None = None,
        *,
        rid: str | None = None,
        chat: bool | None = False,
        cache_salt: str | None = None,
        priority: int = 0,
        routing_key: str | None = None,
        deadline_ms: float | None = None,
        tenant: str | None = None,
    ) -> Iterator[Delta]:
        """Answer one prompt, delta by delta; see `generate`. Closing the iterator aborts the request.

        With `n`, the deltas of all answers come as they are made; `index` tells which one they are of.
        With `chat`, a text becomes the user's message in the model's chat template; None does so where there is one.
        """
        if isinstance(prompt, str) and (chat or (chat is None and self._manager.tokenizer.has_chat_template)):
            prompt = Chat([{"role": "user", "content": prompt}])
        form, params = self._form(params)
        request = _request(
            prompt,
            params,
            form,
            rid=rid,
            cache_salt=cache_salt,
            priority=priority,
            routing_key=routing_key,
            deadline_ms=deadline_ms,
            tenant=tenant,
        )
        stream = self._manager.generate(request)
        try:
            while (delta := self._wait(_next, stream)) is not None:
                yield delta
        finally:
            # Not waited for: one that nobody holds ends in whichever thread collects garbage, perhaps the loop's.
            with contextlib.suppress(RequestError):  # a closed engine has ended it already
                self._submit(stream.aclose)

    def abort(self, rid: str, *, tenant: str | None = None) -> bool:
        """End the tenant's request with this id; answers whether there was one."""
        return self._wait(self._abort, rid, tenant or "")

    async def _abort(self, rid: str, tenant: str) -> bool:
        return self._manager.abort(rid, tenant)

    # --- the prefix cache ---------------------------------------------------------------------------------------

    def cache(self) -> CacheReport:
        """What the KV pool holds, and the pins."""
        return self._wait(self._manager.cache)

    def explain(self, prompt: Prompt, *, cache_salt: str | None = None, tenant: str | None = None) -> CacheExplanation:
        """Why the prompt would hit the prefix cache as much as it does. Computes nothing."""
        return self._wait(self._manager.explain, _request(prompt, cache_salt=cache_salt, tenant=tenant))

    def explain_request(self, rid: str, *, tenant: str | None = None) -> RequestExplanation:
        """What became of the tenant's newest request with this `rid`, and why; see `stream`.

        Raises `RequestError` where there is none in flight and none among the last that have ended.
        """
        return self._wait(self._manager.explain_request, _plain(rid), tenant or "")

    def pin(
        self,
        name: str,
        prompt: Prompt,
        *,
        ttl_s: float | None = None,
        cache_salt: str | None = None,
        tenant: str | None = None,
    ) -> PinState:
        """Keep the prompt in the prefix cache under a name; computes what is missing, and waits for that.

        `ttl_s`: for so many seconds; None: until it is unpinned. Raises `RequestError` where it does not fit.
        """
        request = _request(prompt, cache_salt=cache_salt, tenant=tenant)
        return self._wait(self._manager.pin, _plain(name), request, _plain(ttl_s))

    def unpin(self, name: str) -> PinState:
        """Take a pin off; answers what was pinned. Raises `RequestError` where there is none of that name."""
        return self._wait(self._manager.unpin, _plain(name))

    def flush(self) -> int:
        """Empty the prefix cache, but for pins; answers the tokens given back.

        Raises `RequestError` while requests run.
        """
        return self._wait(self._manager.flush)

    # --- the rest -----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int | float]:
        """Counters since the start, and gauges of now; slots by state add up to `pool`."""
        return self._wait(self._manager.stats)

    def close(self) -> None:
        """End the engine; what still runs ends with an error. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._runtime.close()
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        """Let the callers that still wait hear of the end."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Have the loop run a coroutine function, and wait for its answer. Raises `RequestError` once closed."""
        future = self._submit(function, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: nobody waits for the answer any more
            raise

    def _submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> "Future[T]":
        """Hand a coroutine function to the loop, which begins them in this order. Raises `RequestError` once closed."""
        with self._lock:  # what is handed to the loop before it closes is heard of by `_finish`
            if self._closed:
                raise RequestError("the engine is closed; build another one", code="engine_stopped", status=503)
            return asyncio.run_coroutine_threadsafe(function(*args), self._loop)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _are_several(prompts: Prompt | list[Prompt]) -> TypeGuard[list[Prompt]]:
    return isinstance(prompts, list) and all(
        isinstance(prompt, Sequence | Chat) or np.ndim(prompt) == 1 for prompt in prompts
    )


def _request(
    prompt: Prompt, params: Mapping[str, Any] | None = None, form: ServedForm | None = None, **more: Any
) -> GenerateRequest:
    sampling = {name: _plain(value) for name, value in (params or {}).items()}
    handling = {name: _plain(value) for name, value in more.items()}
    return GenerateRequest(prompt=_plain(prompt), sampling=sampling, form=form, **handling)


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's own, what numpy takes for a row of integers as a list, all else as it is. O(n)."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | Chat):
        return value
    array = np.asarray(value)
    return array.tolist() if array.ndim == 1 and array.dtype.kind in "iu" else value


def _joined(answers: list[list[Delta]], form: ServedForm | None) -> Generation:
    """The answers to one prompt, from the deltas of each."""
    first, *others = (_generation(deltas, form) for deltas in answers)
    return dataclasses.replace(first, others=tuple(others))


def _generation(deltas: list[Delta], form: ServedForm | None) -> Generation:
    last = deltas[-1]
    assert last.finish is not None, "an iterator ends with a finish"
    return Generation(
        text="".join(delta.text for delta in deltas),
        token_ids=_all(delta.token_ids for delta in deltas),
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        finish=last.finish,
        thought="".join(delta.thought for delta in deltas),
        content="".join(delta.content for delta in deltas),
        form=form,
        verified=last.verified,
        logprobs=_all(delta.logprobs for delta in deltas),
        prompt_logprobs=_all(delta.prompt_logprobs for delta in deltas),
    )


def _all(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(chain.from_iterable(parts))


async def _next(stream: AsyncIterator[Delta]) -> Delta | None:
    return await anext(stream, None)
