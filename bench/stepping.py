"""The demo model behind a scheduler that is stepped by hand: see bench/chunk.py and bench/profile.py."""

import random
import time
from dataclasses import replace

from rtk.cache.key import pack
from rtk.config.load import config_from
from rtk.model.store import fetch
from rtk.plugin.host import installed
from rtk.schedule.build import build_scheduler
from rtk.schedule.messages import NewRequest, Output
from rtk.schedule.params import SamplingParams
from rtk.schedule.scheduler import Scheduler
from rtk.schedule.settings import Settings
from rtk.serve.computing import Computing, choose_backend, load
from rtk.serve.runtime import build_policies
from rtk.serve.tokenizer import Tokenizer


class Stepping:
    """The model is loaded once; every run has a scheduler of its own, with an empty cache."""

    def __init__(self, threads: int, pool_tokens: int = 46603) -> None:
        folder = fetch()
        keys = {"model.path": f"{folder}", "model.threads": threads, "cache.pool_tokens": pool_tokens}
        self._config = config_from({**keys, "model.dtype": "float32"})
        self._tokenizer = Tokenizer.load(folder)
        self._rng = random.Random(1)
        self.backend = choose_backend(self._config, installed())
        self.computing: Computing = load(self._config, self.backend, folder, self._tokenizer.size)

    def scheduler(self, *, chunk: int | None = None, mixed: bool = True) -> Scheduler:
        """As an engine builds it; `chunk`: a piece of that size in every step, whoever decodes beside it."""
        own = self.computing.limits
        limits = own if chunk is None else replace(own, chunk_tokens=chunk, mixed_tokens=None)
        return build_scheduler(
            build_policies(self._config),
            self.computing.executor,
            limits,
            cache_enabled=True,
            settings=Settings(mixed_chunk=mixed),
            pin_budget=None,
            end_tokens=self.computing.end_tokens,
            match_stop=self._tokenizer.match_stop,
            clock=time.monotonic,
            rng=random.Random(1),
        )

    def request(self, rid: str, prompt: int, new: int) -> NewRequest:
        """One of random tokens, greedy."""
        tokens = [self._rng.randrange(1000, 40000) for _ in range(prompt)]
        params = SamplingParams(temperature=0.0, max_new_tokens=new, ignore_eos=True)
        return NewRequest(rid=rid, tokens=pack(tokens), params=params)

    def decoding(self, scheduler: Scheduler, requests: int, context: int, new: int) -> None:
        """So many requests with that much context, stepped until all of them decode."""
        scheduler.receive([self.request(f"d{i}", context, new) for i in range(requests)])
        told: set[str] = set()
        while len(told) < requests:
            told |= {said.rid for said in scheduler.step() if isinstance(said, Output)}
