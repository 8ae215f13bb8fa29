"""Forms that are judged in processes: what comes back, and what becomes of those that take too much."""

import asyncio
import os
import signal

import pytest
from grammar_toys import BACKENDS, MEMORY, Beacon, Judging, alive, script

from rtk.errors import RequestError
from rtk.grammar.forms import AskedForm
from rtk.grammar.judges import Judges
from rtk.plugin import Options

WAIT_S = 60


def asked(*act):
    return AskedForm(kind="choice", value=[script(*act)[2:-2].replace('\\"', '"')])


@pytest.fixture
def made():
    judges = []

    def build(name="judging", **limits):
        plugins = {name: BACKENDS[name]}
        judges.append(
            Judges(plugins, {name: Judging(Options())}, **{"limit_s": WAIT_S, "memory_bytes": MEMORY, **limits})
        )
        return judges[-1]

    yield build
    for one in judges:
        one.close()


@pytest.fixture
def beacon():
    one = Beacon()
    yield one
    one.close()


def pid_of(form):
    (reason,) = form.reasons
    return int(reason.removeprefix("judged by "))


def refusal(judges, *act):
    with pytest.raises(RequestError) as caught:
        asyncio.run(judges.serve(asked(*act)))
    return caught.value


def test_it_is_judged_elsewhere_once(made):
    judges = made()
    first, again, other = (asyncio.run(judges.serve(asked("say", word))) for word in "aab")
    assert first == again
    assert pid_of(first) == pid_of(other) != os.getpid()
    assert (first.order.backend, first.verdict) == ("judging", "narrowed")
    assert judges.stats() == {"forms_exact": 0, "forms_narrowed": 3, "forms_loosened": 0, "forms_refused": 0}


def test_a_refusal_is_the_one_that_would_be_told_here(made):
    error = refusal(made(), "refuse", "no such thing")
    assert (error.code, error.field, error.status) == ("unsupported_grammar", "choice", 400)
    assert str(error).endswith("judging: it cannot judge this: ValueError: no such thing")


@pytest.mark.parametrize("act", ["loop", "hold"])
def test_what_takes_too_long_is_killed(made, beacon, act):
    judges = made()
    before = pid_of(asyncio.run(judges.serve(asked("say"))))
    judges._limit_s = 0.05
    error = refusal(judges, act, beacon.port)
    assert (error.code, str(error)) == (
        "grammar_timeout",
        "choice: it takes more than 0.05 s to read (grammar.compile_timeout_s)",
    )
    assert not alive(before)
    judges._limit_s = WAIT_S
    assert pid_of(asyncio.run(judges.serve(asked("say", "again")))) != before


def test_what_takes_too_much_memory_is_refused(made):
    assert "MemoryError" in str(refusal(made(), "devour"))


@pytest.mark.parametrize("act", ["crash", "end"])
def test_a_process_that_ends_is_replaced(made, act):
    judges = made()
    assert refusal(judges, act).code == "grammar_failed"
    assert asyncio.run(judges.serve(asked("say"))).verdict == "narrowed"


def test_one_that_has_ended_while_idle_is_replaced(made):
    judges = made()
    os.kill(pid_of(asyncio.run(judges.serve(asked("say")))), signal.SIGKILL)
    while not judges._idle[0].ended:
        pass
    assert asyncio.run(judges.serve(asked("say", "again"))).verdict == "narrowed"


def test_closing_ends_what_is_under_way(made, beacon):
    judges = made()

    async def test():
        waiting = asyncio.create_task(judges.serve(asked("loop", beacon.port)))
        await asyncio.to_thread(beacon.lit)
        await asyncio.to_thread(judges.close)
        with pytest.raises(RequestError):
            await waiting

    asyncio.run(test())
    assert beacon.out()
