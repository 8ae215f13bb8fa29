"""Planted faults of observers: the contract suite catches each."""

import threading
from collections import deque

import pytest
from planted import assert_caught, assert_passes

from rtk.plugin import Observer, Options
from rtk.plugin.testing.toys import Recorder, RecorderOptions


def test_the_toy_passes_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_passes("observer", lambda: Recorder(RecorderOptions()))
    assert list(tmp_path.iterdir()) == []


class Keeps(Observer):
    """The last few reports."""

    def __init__(self, options):
        self.steps, self.requests = deque(maxlen=9), deque(maxlen=9)

    def on_step(self, report):
        self.steps.append(report)

    def on_request(self, report):
        self.requests.append(report)


class StepsAlone(Observer):
    def __init__(self, options):
        self.rows = 0

    def on_step(self, report):
        self.rows += report.rows


class WithAThread(Keeps):
    """Its thread ends when it is told to."""

    def __init__(self, options):
        super().__init__(options)
        self.end = threading.Event()
        threading.Thread(target=self.end.wait).start()

    def close(self):
        self.end.set()


@pytest.mark.parametrize("observer", [Keeps, StepsAlone, WithAThread])
def test_sound_ones_pass(observer):
    assert_passes("observer", lambda: observer(Options()))


class MisspellsTheMethod(Observer):
    def __init__(self, options):
        pass

    def on_steps(self, report):
        pass


class DividesByTheOutput(Keeps):
    """Seconds for each token of the answer: aborted requests have none."""

    def on_request(self, report):
        assert (report.ended_s - report.arrival_s) / report.output_tokens >= 0


class WantsAFirstToken(Keeps):
    def on_request(self, report):
        self.requests.append(report.first_token_s - report.arrival_s)


class KnowsTheStep(Keeps):
    """Thinks that a request ends in a step that it was told of."""

    def on_request(self, report):
        assert self.steps[-1].ended_s <= report.ended_s


class CountsSteps(Keeps):
    """Thinks that it is told of every step."""

    def on_step(self, report):
        assert not self.steps or report.step == self.steps[-1].step + 1
        super().on_step(report)


class KnowsTheEnds(Keeps):
    def on_request(self, report):
        self.requests.append({"stop": 0, "length": 1, "abort": 2}[report.reason])


class WritesAscii(Keeps):
    def on_request(self, report):
        self.requests.append(report.rid.encode("ascii"))


class Averages(Keeps):
    """Over all requests, of which there may be none."""

    def close(self):
        assert sum(report.output_tokens for report in self.requests) / len(self.requests) >= 0


class Exits(Keeps):
    def close(self):
        raise SystemExit(0)


RUNNING = threading.Event()


class LeavesAThread(Keeps):
    def close(self):
        threading.Thread(target=RUNNING.wait, name="uploader").start()


@pytest.fixture
def end_of_threads(monkeypatch):
    monkeypatch.setattr("rtk.plugin.testing.observer.END_S", 0)
    yield
    RUNNING.set()


@pytest.mark.usefixtures("end_of_threads")
def test_a_thread_that_is_left_is_caught():
    assert_caught("observer", lambda: LeavesAThread(Options()), "its process can end")


class ListensLater(Keeps):
    async def on_request(self, report):
        super().on_request(report)


class Yields(Keeps):
    def on_step(self, report):
        yield report


@pytest.mark.parametrize(
    ("observer", "check"),
    [
        (ListensLater, "every report is taken"),
        (Yields, "every report is taken"),
        (MisspellsTheMethod, "it listens"),
        (DividesByTheOutput, "every report is taken"),
        (WantsAFirstToken, "every report is taken"),
        (WantsAFirstToken, "any reports are taken"),
        (KnowsTheStep, "requests come without steps"),
        (CountsSteps, "gaps are taken"),
        (KnowsTheEnds, "every report is taken"),
        (WritesAscii, "every report is taken"),
        (WritesAscii, "any reports are taken"),
        (Averages, "nothing may happen"),
        (Exits, "nothing may happen"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_planted_faults_are_caught(observer, check):
    assert_caught("observer", lambda: observer(Options()), check)
