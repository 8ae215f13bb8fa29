"""Grammars are compiled in processes: whatever one does, it does to its own job, and it really stops."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading

import pytest
from grammar_toys import MEMORY, RESULT, WORDS, Beacon, alive, script, setups

from rtk.grammar.process import Job
from rtk.grammar.workers import Compiled, Failed, Workers
from rtk.plugin.testing.toys import ChoiceMatcher

WAIT_S = 60


class Pool:
    """Workers, and what they have said."""

    def __init__(self, **limits):
        self.said = queue.SimpleQueue()
        self.threads = set()
        self.workers = Workers(
            setups(), self.done, **{"processes": 1, "limit_s": 2 * WAIT_S, "quick_s": WAIT_S, **limits}
        )

    def done(self, order, outcome):
        self.threads.add(threading.current_thread())
        self.said.put((order, outcome))

    def submit(self, *act, backend="toy"):
        return self.workers.submit(Job(backend, "choice", script(*act), 8))

    def next(self):
        return self.said.get(timeout=WAIT_S)

    def one(self, *act, **more):
        order = self.submit(*act, **more)
        said, outcome = self.next()
        assert said is order
        return outcome


@pytest.fixture(scope="module")
def shared():
    pool = Pool()
    yield pool
    pool.workers.close()


@pytest.fixture
def made(beacon):  # whose processes end before it is closed
    pools = []

    def make(**limits):
        pools.append(Pool(**limits))
        return pools[-1]

    yield make
    for pool in pools:
        pool.workers.close()


@pytest.fixture
def beacon():
    one = Beacon()
    yield one
    one.close()


def pid_of(pool):
    """The process that serves next."""
    torch, main, warm, pid = pool.one("tell").problem.split()
    assert (torch, main) == ("False", "None")  # it starts soon, and runs nothing of the user's
    assert warm == "True"
    return int(pid)


# --- what comes back ------------------------------------------------------------------------------------------------


def test_a_matcher_comes_back_over_the_vocabulary_of_the_engine(shared):
    outcome = shared.one("say", "yes")
    assert isinstance(outcome, Compiled)
    assert isinstance(outcome.matcher, ChoiceMatcher)
    assert outcome.matcher.vocabulary is WORDS
    assert outcome.matcher.texts == (b'["say", "yes"]',)
    assert 0 < outcome.size < 300  # the vocabulary stays where it is
    assert outcome.seconds > 0
    assert threading.main_thread() not in shared.threads


def test_one_process_serves_job_after_job(shared):
    assert pid_of(shared) == pid_of(shared) != os.getpid()


ENDS = {
    ("refuse", "no\nsuch thing"): ("invalid", "no such thing"),
    ("fail", "bad"): ("failed", "RuntimeError: bad"),
    ("leave",): ("failed", "SystemExit: 3"),
    ("answer",): ("failed", r"compile\(\) answered a int, which is no Matcher"),
    ("unpackable",): ("failed", "RuntimeError: not again"),
    ("swell",): ("too_large", rf"compiled it has 1,048,\d\d\d bytes, and may have {RESULT:,}"),
    ("devour",): ("too_large", f"it takes more than {MEMORY:,} bytes of memory to compile"),
}


@pytest.mark.parametrize("act", ENDS)
def test_what_goes_wrong_is_told_and_the_process_goes_on(shared, act):
    before = pid_of(shared)
    outcome = shared.one(*act)
    why, problem = ENDS[act]
    assert outcome.why == why
    assert re.fullmatch(problem, outcome.problem)
    assert pid_of(shared) == before


@pytest.mark.parametrize(("act", "how"), [("end", "exit status 3"), ("crash", "SIGSEGV")])
def test_a_process_that_ends_takes_its_own_job_along_and_no_other(shared, act, how):
    before = pid_of(shared)
    first, second = shared.submit(act), shared.submit("say", "after")
    assert shared.next() == (first, Failed("failed", f"its process ended with {how}", pytest.approx(0, abs=WAIT_S)))
    order, outcome = shared.next()
    assert order is second and isinstance(outcome, Compiled)
    assert pid_of(shared) != before


def test_a_process_that_ends_while_idle_is_replaced(shared):
    before = pid_of(shared)
    os.kill(before, signal.SIGKILL)
    assert pid_of(shared) != before


def test_a_process_that_keeps_much_is_replaced(shared):
    before = pid_of(shared)
    assert isinstance(shared.one("keep"), Compiled)
    assert pid_of(shared) != before


def test_a_backend_that_cannot_be_built_is_told(shared):
    before = pid_of(shared)
    outcome = shared.one("say", backend="broken")
    assert outcome.why == "unbuildable"
    assert outcome.problem.startswith("grammar plugin 'broken' of rtk-grammar-broken 0.1 (entry point 'broken') ")
    assert pid_of(shared) == before


# --- limits and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["loop", "hold"])
def test_what_takes_too_long_is_killed(made, beacon, act):
    pool = made()
    before = pid_of(pool)
    pool.workers.limit_s = 0.05
    assert pool.one(act, beacon.port) == Failed("timeout", "it takes more than 0.05 s to compile", 0.05)
    assert not alive(before)


def test_what_nobody_wants_any_more_is_killed_and_says_nothing(made, beacon):
    pool = made()
    order, behind = pool.submit("loop", beacon.port), pool.submit("say", "behind")
    beacon.lit()
    waits = pool.submit("loop", beacon.port)
    pool.workers.cancel(waits)
    pool.workers.cancel(order)
    pool.workers.cancel(order)
    assert beacon.out()
    assert pool.next()[0] is behind
    pool.workers.close()
    assert pool.said.empty()


def test_close_ends_what_is_busy_and_what_is_idle(made, beacon):
    pool = made(processes=2)
    pool.submit("loop", beacon.port, 1)
    pool.submit("loop", beacon.port, 2)
    assert len(beacon.lit(2)) == 2
    pool.workers.close()
    assert beacon.out()
    assert pool.said.empty()
    other = made()
    assert isinstance(other.one("light", beacon.port), Compiled)
    beacon.lit()
    other.workers.close()
    other.workers.close()
    assert beacon.out()


PARENT = """
import sys
from grammar_toys import script, setups
from rtk.grammar.process import Job
from rtk.grammar.workers import Workers
print("once", flush=True)
workers = Workers(setups(), print, processes=2, limit_s=600, quick_s=600)
for act in ("loop", "hold"):
    workers.submit(Job("toy", "choice", script(act, int(sys.argv[1])), 8))
sys.stdin.read()
"""


def test_nothing_outlives_an_engine_that_is_killed(beacon, tmp_path):
    main = tmp_path / "main.py"
    main.write_text(PARENT)
    path = os.pathsep.join(filter(None, sys.path))
    command = (sys.executable, str(main), str(beacon.port))
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, **pipe) as engine:
        assert len(beacon.lit(2)) == 2
        engine.kill()
        assert beacon.out()
        assert engine.stdout.read() == b"once\n"


# --- whose turn it is -----------------------------------------------------------------------------------------------


def test_slow_ones_make_room_for_those_who_have_not_had_a_try(made, beacon):
    pool = made(quick_s=0.0)
    with pool.workers._change:  # all of them, before the first is looked at
        slow = [pool.submit("loop", beacon.port, i) for i in range(2)]
        quick = pool.submit("say", "quick")
    order, outcome = pool.next()
    assert order is quick and isinstance(outcome, Compiled)
    assert [order.tried for order in slow] == [True, True]
    assert len(beacon.lit()) == 1  # the first of them again, with all its time


def test_alone_a_slow_one_has_all_its_time_at_once(made, beacon):
    pool = made(quick_s=0.0)
    order = pool.submit("wait", beacon.port)
    beacon.lit()
    beacon.put_out()
    said, outcome = pool.next()
    assert said is order and isinstance(outcome, Compiled)  # started again, it would wait for the beacon again


def test_one_place_of_several_is_for_first_tries(made, beacon):
    pool = made(processes=2, quick_s=0.0)
    for i in range(2):
        pool.submit("loop", beacon.port, i)
    change, slow = pool.workers._change, pool.workers._slow
    with change:
        assert change.wait_for(lambda: slow, WAIT_S)
    pool.workers.quick_s = WAIT_S
    assert isinstance(pool.one("say"), Compiled)
    assert len(slow) == 1
