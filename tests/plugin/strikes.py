"""A strike of the watchdog and a guarded call meet at every bytecode. A script: `strikes.py WAY KIND ACT`.

WAY `strikes`: the whole strike falls before the n-th bytecode of the call; `overtakes`: the call goes on before the
n-th bytecode of the strike. KIND: the policy's. ACT: what the policy does after that, `returns` or `raises`.

Prints a line for each n: what the call, and one after it, were answered by, and how many faults there were. Each is in
a fork: tracing by bytecode does not survive code that has run often (CPython 3.11), nor a raising trace function.
"""

import logging
import os
import queue
import random
import sys
import threading
import traceback

from rtk.plugin import EvictionPolicy, NodeView, ScheduleContext, SchedulePolicy, foreign, guard, watchdog
from rtk.plugin.guard import GuardedEviction, GuardedSchedule, Health
from rtk.plugin.watchdog import PATIENCE, Watchdog

VIEW = NodeView(id=3, size=4, start=0, created=1, last_use=9, hits=2)
CONTEXT = ScheduleContext(now=0.0, rng=random.Random(1), running=1)
OURS = {guard.__file__, watchdog.__file__, foreign.__file__, __file__}


class Eviction(EvictionPolicy):
    def __init__(self, act):
        self.act = act

    def key(self, node):
        self.act()
        return (node.hits, node.id)


class Schedule(SchedulePolicy):
    def __init__(self, act):
        self.act = act

    def rank(self, columns, ctx):
        return (columns.id,)

    def prefer_decode(self, ctx):
        self.act()
        return True


class Asked:
    """A guarded policy of either kind; each call asks it once, and answers "policy" or "host": who decided."""

    def __init__(self, kind, act=lambda: None):
        self.health = Health()
        self.watchdog = self.health.watchdog
        if kind == "eviction":
            self.policy = Eviction(act)
            self.guarded = GuardedEviction(self.policy, "odd", self.health)
        else:
            self.policy = Schedule(act)
            self.guarded = GuardedSchedule(self.policy, "odd", self.health)

    def __call__(self):
        if isinstance(self.guarded, GuardedEviction):
            return {(VIEW.hits, VIEW.id): "policy", (VIEW.last_use,): "host"}[self.guarded.key(VIEW._replace())]
        return "policy" if self.guarded.prefer_decode(CONTEXT) else "host"

    @property
    def given_up(self):
        return self.guarded.faulted if isinstance(self.guarded, GuardedEviction) else self.guarded._given_up

    def check_clear(self):
        """Nothing of a call is left, and nothing comes late."""
        assert (self.watchdog.call, self.watchdog.alarm, self.watchdog._interrupted) == (None, False, False)
        assert not self.watchdog._lock.locked()
        for _ in range(100):
            pass


def strike(watchdog):
    """All the looks that it takes to interrupt a call, in a thread of their own."""
    looks = threading.Thread(target=lambda: [watchdog.tick() for _ in range(PATIENCE + 1)])
    looks.start()
    looks.join()


def raises():
    raise ValueError("wrong")


ACTS = {"returns": lambda: None, "raises": raises}


def strikes(asked, n):
    """Ask once, with a strike before the n-th bytecode while the call is noted; None where there are fewer.

    One more strikes after it.
    """
    left = n

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in OURS:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (asked.watchdog.call is not None or left == 1):
            left -= 1
            if not left:
                sys.settrace(None)
                strike(asked.watchdog)
        return trace

    with asked.watchdog.watching():
        sys.settrace(trace)
        try:
            answer = asked()
        finally:
            sys.settrace(None)
        return answer if left <= 0 else None


class Announcing(Watchdog):
    """Tells when the calling thread is about to take the lock, and then would wait for a strike under way."""

    def __init__(self):
        self.go_on = queue.SimpleQueue()  # an Event's own code could be interrupted, and would stay locked
        super().__init__()

    @property
    def _lock(self):
        if threading.get_ident() == self._thread:
            self.go_on.put(None)
        return self._real

    @_lock.setter
    def _lock(self, lock):
        self._real, self._thread = lock, None


def overtakes(asked, n):
    """Ask once, and go on from the policy's code before the n-th bytecode of a strike; None where there are fewer."""
    reached, go_on, left = queue.SimpleQueue(), asked.watchdog.go_on, n

    def trace(frame, event, argument):
        nonlocal left
        frame.f_trace_opcodes = frame.f_code.co_filename in OURS
        if event == "opcode":
            left -= 1
            if not left:
                reached.put(None)
                go_on.get()
        return trace

    def last_look():
        sys.settrace(trace)
        asked.watchdog.tick()
        sys.settrace(None)
        reached.put(None)

    def begin():
        for _ in range(PATIENCE):
            asked.watchdog.tick()
        thread.start()
        reached.get()
        act()

    thread, act, asked.policy.act = threading.Thread(target=last_look), asked.policy.act, begin
    with asked.watchdog.watching():
        answer = asked()
        go_on.put(None)
        thread.join()
    return answer if left <= 0 else None


def report(way, kind, act, n):
    guard.Watchdog = Announcing
    asked = Asked(kind, ACTS[act])
    answer = {"strikes": strikes, "overtakes": overtakes}[way](asked, n)
    if answer is None:
        return 1
    asked.check_clear()
    asked.policy.act = ACTS["returns"]
    print(answer, asked(), asked.health.faults.total(), flush=True)  # noqa: T201
    return 0


def main(way, kind, act):
    logging.disable(logging.CRITICAL)
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 looks for one such frame when a trace function is set
    code, n = 0, 0
    while not code:
        n += 1
        child = os.fork()
        if not child:
            try:
                code = report(way, kind, act, n)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                code = 2
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code - 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
