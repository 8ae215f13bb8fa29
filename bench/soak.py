"""A server under fire, and whether it is afterwards as it was before: pool, tables, grammars, sockets, memory.

    python bench/soak.py [--requests 2000] [--concurrency 48] [--seed 0] [--model NAME] [--json FILE] [-- FLAGS]

Starts `rtk serve` on a free port of this machine, with a tiny random model unless --model names another, and a KV pool
of a quarter of what the clients want at a time, so that requests are retracted. A fifth of the clients leaves: while it
sends, while it waits, in the middle of a stream; half of them tear the connection off. One in twenty sends something
malformed, one in ten wants an answer with a form, one in twenty has a deadline; half of all stream.

A warm-up of the same mix comes first, and what the server and its children hold then is what they must hold at the end;
memory may have grown by --memory-mib, descriptors by --files, which is none. Every client that stays must get what it
asked for. The clients are of two tenants, each of which may have as many answers at a time as all clients want at most;
at the end each asks for that many at once, and is refused if anything was not given back.

Of a request whose client left, at most one row may be computed after the scheduler knew: `wasted_rows` against the ends
that a step in flight could not know. Then everybody leaves; how long it took until that was known is told from outside,
by tokens that nobody received.

Prints a table and a line of JSON; exits with 1 where something is not as it must be. Ends by itself.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import soak_model
from soak_client import LONG, TENANTS, Outcome, Plan, crowds, formed, leavers, plans, run
from soak_server import Held, Server

QUIET_S = 60.0
"""How long the server may take to come to rest."""
ADMIN = "administrator"
"""Key of the bench."""
NOTHING = Held(0, 0, 0, 0)
MIB = 1 << 20


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    what: str
    found: Any
    wanted: str
    holds: bool


class Soak:
    """One run against one server."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self.server = server
        self.options = options
        self.checks: list[Check] = []
        self.figures: dict[str, Any] = {}

    def check(self, what: str, found: Any, wanted: Any, holds: Callable[[Any], bool] | None = None) -> None:
        """Note whether `found` is as wanted; equal, where nothing else is said."""
        self.checks.append(Check(what, found, str(wanted), found == wanted if holds is None else holds(found)))

    async def fire(self, clients: Sequence[Plan], concurrency: int) -> list[Outcome]:
        """All clients, so many at a time, in their order."""
        waiting, outcomes = iter(clients), []

        async def one_after_another() -> None:
            for plan in waiting:
                outcomes.append(await run(self.server.host, self.server.port, plan))

        await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
        return outcomes

    async def stats(self) -> dict[str, float]:
        """What the server counts, once nothing runs any more."""

        def at_rest() -> bool:
            found = self.server.stats()
            return not any(found.get(name) for name in ("in_flight", "running", "waiting", "compiling"))

        self.check("at rest after the clients", await self.server.until(at_rest, QUIET_S), True)
        return await asyncio.to_thread(self.server.stats)

    async def held(self, base: Held | None = None) -> Held:
        """What the server holds, once no client is connected, and all is back as in `base`, if it gets there."""

        def is_back() -> bool:
            grown = self.server.held() - base if base else NOTHING
            return grown.files <= self.options.files and grown.processes <= 0

        self.check("connections closed", await self.server.until(lambda: not self.server.connections(), QUIET_S), True)
        await self.server.until(is_back, QUIET_S)
        return await asyncio.to_thread(self.server.held)

    async def run(self) -> None:
        """Warm up, fire, have everybody leave, and look."""
        options = self.options
        several = await self._gives_several()
        warm_up = plans(options.requests // 4, options.seed + 1, several=several)
        early = await self.fire(warm_up, options.concurrency) + await self.fire(formed("early"), 1)
        before = await self.stats()
        base = await self.held()
        began = time.monotonic()
        outcomes = await self.fire(plans(options.requests, options.seed, several=several), options.concurrency)
        seconds = time.monotonic() - began
        middle = await self.stats()
        left = await self.fire(leavers(max(20, options.requests // 20), options.seed), 8)
        after = await self.stats()
        late = await self.fire(formed("late") + crowds(2 * options.concurrency), 1)
        held = await self.held(base)
        self._check_clients(early + outcomes + left + late)
        self._check_leaving(before, middle, after, left)
        self._check_server(before, after)
        self._check_metrics(self.server.metrics())
        self._check_held(base, held)
        self.figures |= {
            "requests": options.requests,
            "seconds": round(seconds, 1),
            "ends": dict(Counter(outcome.ends for outcome in outcomes).most_common()),
            "kinds": dict(Counter(outcome.plan.kind for outcome in outcomes).most_common()),
            "counted": {
                name: round(after[name] - before.get(name, 0), 3) for name in after if after[name] != before.get(name)
            },
            "held": {"after the warm-up": asdict(base), "at the end": asdict(held)},
        }

    async def _gives_several(self) -> bool:
        body = b'{"prompt": "a", "n": 2, "max_tokens": 1, "temperature": 1, "ignore_eos": true}'
        probe = Plan("probe", "/v1/completions", body, wants={"tokens": 1, "choices": 2})
        return not (await run(self.server.host, self.server.port, probe)).problem

    # --- checks -------------------------------------------------------------------------------------------------

    def _check_clients(self, outcomes: Sequence[Outcome]) -> None:
        """Everybody who stayed got what was asked for."""
        wrong = [f"{o.plan.kind} {o.plan.rid} {o.plan.path}: {o.problem}" for o in outcomes if o.problem]
        self.check("clients that got something wrong", len(wrong), 0)
        self.figures["wrong"] = wrong[:20]

    def _check_leaving(
        self, before: dict[str, float], middle: dict[str, float], after: dict[str, float], left: Sequence[Outcome]
    ) -> None:
        """No more than one row of a request is computed after the scheduler knows that its client has left."""

        def grown(name: str) -> int:
            return int(middle[name] - before[name])

        sudden = sum(map(grown, ("finished_abort", "finished_stop", "finished_error")))
        self.check("rows computed in vain, fire", grown("wasted_rows"), f"<= {sudden}", lambda n: n <= sudden)
        aborted = int(after["finished_abort"] - middle["finished_abort"])
        self.check("requests aborted, all leave", aborted, len(left))
        wasted = int(after["wasted_rows"] - middle["wasted_rows"])
        self.check("rows computed in vain, all leave", wasted, f"<= {aborted}", lambda n: n <= aborted)
        made = [self.server.ask(_explain(outcome.plan))["output_tokens"] for outcome in left]
        self.check("answers that went on to their length", sum(tokens >= LONG for tokens in made), 0)
        unread = [tokens - outcome.tokens for tokens, outcome in zip(made, left, strict=True)]
        self.figures["tokens that nobody received"] = {"median": statistics.median(unread), "most": max(unread)}

    def _check_server(self, before: dict[str, float], after: dict[str, float]) -> None:
        """The books agree, and nothing is held for nobody."""
        loose = after["free"] + after["evictable"] + after["pinned"]
        self.check("slots free, evictable or pinned", loose, after["pool"])
        for name in ("in_flight", "running", "waiting", "compiling", "held", "grammar_pending"):
            self.check(name, after.get(name, 0), 0)
        self.check("request rows", after["free_rows"], before["free_rows"])
        for name in ("invariant_violations", "plugin_faults", "sampling_errors", "steps_failed", "grammar_faults"):
            self.check(name, after.get(name, 0), 0)
        self.check("retractions", after["retractions"] - before["retractions"], "> 0", lambda n: n > 0)
        self.check("aborts", after["finished_abort"] - before["finished_abort"], "> 0", lambda n: n > 0)
        self.check("tracebacks in the log", sum("Traceback" in line for line in self.server.log), 0)
        self.check("health", self.server.ask("/health")["status"], "ok")

    def _check_metrics(self, found: dict[str, float]) -> None:
        """What is scraped says so too; a server that has no metrics is not asked."""
        for name in ("in_flight", "running", "waiting", "following", "compiling"):
            if (series := f"rtk_requests_{name}") in found:
                self.check(series, found[series], 0)

    def _check_held(self, base: Held, held: Held) -> None:
        options, grown = self.options, held - base
        self.check("processes", held.processes, base.processes)
        self.check("sockets more than before", grown.sockets, "<= 0", lambda n: n <= 0)
        self.check("descriptors more than before", grown.files, f"<= {options.files}", lambda n: n <= options.files)
        mib = round(grown.bytes / MIB, 1)
        self.check("MiB more than before", mib, f"<= {options.memory_mib}", lambda n: n <= options.memory_mib)

    def check_end(self) -> None:
        """It ends when it is told to, and leaves nobody behind."""
        status, left = self.server.terminate()
        self.check("exit status after SIGTERM", status, 0)
        self.check("processes left", left, 0)


def _explain(plan: Plan) -> str:
    return f"/requests/{plan.rid}/explain?tenant={plan.tenant}"


def keys_of(concurrency: int) -> dict[str, str]:
    """Variables of a server with tenants, who may have just so many answers at a time that no client is refused."""
    keys, most = json.dumps({name: name for name in TENANTS}), str(2 * concurrency)
    return {"RTK_SERVE__API_KEYS": keys, "RTK_SERVE__ADMIN_API_KEY": ADMIN, "RTK_SERVE__TENANTS__MAX_REQUESTS": most}


def flags_of(options: argparse.Namespace, folder: str) -> list[str]:
    """What the server is started with: a pool of a quarter of what is wanted at a time."""
    tiny = options.model is None
    model = folder if tiny else options.model
    bytes_per_token = 1 if tiny else 4
    sizes = [
        plan.wants["tokens"] + plan.prompt_bytes // bytes_per_token
        for plan in plans(400, options.seed, several=False)
        if plan.prompt_bytes
    ]
    pool = max(768, options.concurrency * sum(sizes) // len(sizes) // 4)
    return [
        "--model",
        model,
        "--pool-tokens",
        str(pool),
        "--conservativeness",
        "0.01",
        "--threads",
        "1",
        *options.flags,
    ]


def report(one: Soak) -> bool:
    """Print the table. Answers whether all is well."""
    for name in ("kinds", "ends", "tokens that nobody received"):
        print(f"{name}: " + ", ".join(f"{key} {count}" for key, count in one.figures.get(name, {}).items()))
    print(f"\n{'what':38} {'found':>12} {'wanted':>12}")
    for check in one.checks:
        print(f"{check.what:38} {check.found!s:>12} {check.wanted:>12}" + ("" if check.holds else "   NOT SO"))
    for line in one.figures.get("wrong", ()):
        print("wrong:", line)
    return all(check.holds for check in one.checks)


def soak(options: argparse.Namespace) -> Soak:
    """Start a server, run against it, and end it."""
    with tempfile.TemporaryDirectory() if options.model is None else nullcontext("") as folder:
        if options.model is None:
            soak_model.write(Path(folder))
        with Server(*flags_of(options, folder), env=keys_of(options.concurrency), key=ADMIN) as server:
            one = Soak(server, options)
            try:
                asyncio.run(asyncio.wait_for(one.run(), options.limit_s))
            except TimeoutError:
                one.check("end", f"none after {options.limit_s:.0f} s", "")
            one.check_end()
    return one


def parser() -> argparse.ArgumentParser:
    """The options."""
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--requests", type=int, default=2000)
    ap.add_argument("--concurrency", type=int, default=48)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--model", help="default: a tiny random one")
    ap.add_argument("--memory-mib", type=float, default=48.0, help="by so much memory may have grown")
    ap.add_argument("--files", type=int, default=0, help="by so many descriptors may have grown")
    ap.add_argument("--limit-s", type=float, default=1800.0, help="when to give up")
    ap.add_argument("--json", type=Path, metavar="FILE")
    ap.add_argument("flags", nargs="*", help="of rtk serve, behind --")
    return ap


def main() -> None:
    options = parser().parse_args()
    one = soak(options)
    well = report(one)
    content = json.dumps({**one.figures, "checks": [asdict(check) for check in one.checks], "well": well})
    print(content)
    if options.json:
        options.json.write_text(content + "\n")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
