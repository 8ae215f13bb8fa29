"""Observers: told in a process of their own, and unable to do anything to the engine."""

import json
import queue
import subprocess
import sys
from io import BytesIO

import msgspec
import pytest

from rtk.errors import PluginError
from rtk.frames import receive, send
from rtk.observe import feed as feed_module
from rtk.observe import logs, process
from rtk.observe.feed import Feeds
from rtk.observe.process import REQUEST, STEP
from rtk.plugin import Observer, Options, Plugin, RequestReport, StepReport
from rtk.plugin.registry import Origin, Registered
from rtk.plugin.testing.observer import reports
from rtk.plugin.testing.toys import RecorderOptions

STEP_1 = StepReport(1, 0.5, False, 2, 10, 0, 2, 3, 90, 0, 6, 4)
REQUEST_1 = RequestReport("é", 0.1, None, 0.9, 5, 2, 0, 1, -3, "abort")


def registered(target, options=Options, name="toy"):
    plugin = Plugin(kind="observer", name=name, summary="s", target=target, options=options)
    return Registered(plugin, Origin("toy", "rtk-observer-toy", "0.1"))


LABEL = "observer plugin 'toy' of rtk-observer-toy 0.1 (entry point 'toy')"
TOY = registered("rtk.plugin.testing.toys:Recorder", RecorderOptions)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Put a module with an observer `It` on the path of the processes."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(body, name):
        source = f"import os, sys, time\nfrom rtk.plugin import Observer\nclass It(Observer):\n{body}\n"
        (tmp_path / f"{name}.py").write_text(source)
        return registered(f"{name}:It"), Options()

    return put


def test_an_observer_gets_every_report_in_order_and_is_closed(tmp_path):
    out = tmp_path / "out"
    feeds = Feeds([(TOY, RecorderOptions(path=out))])
    made = list(reports(300, seed=5))
    for report in made:
        (feeds.on_step if isinstance(report, StepReport) else feeds.on_request)(report)
    assert feeds.report() == {"toy": {"dropped": 0}}
    feeds.close()
    assert out.read_text().splitlines() == [*map(repr, made), "closed"]


def test_several_observers_get_the_same(tmp_path):
    second = registered("rtk.plugin.testing.toys:Recorder", RecorderOptions, name="other")
    paths = [tmp_path / "a", tmp_path / "b"]
    feeds = Feeds(zip((TOY, second), (RecorderOptions(path=path) for path in paths), strict=True))
    feeds.on_step(STEP_1)
    feeds.on_request(REQUEST_1)
    feeds.close()
    assert [path.read_text() for path in paths] == [f"{STEP_1!r}\n{REQUEST_1!r}\nclosed\n"] * 2


BROKEN = {
    "target": ("    def __init__(self): pass", "cannot be built: TypeError: "),
    "raises": ("    def __init__(self, options): raise ValueError('no')", "cannot be built: ValueError: no"),
    "exits": ("    def __init__(self, options): sys.exit(3)", "cannot be built: SystemExit: 3"),
    "dies": (
        "    def __init__(self, options): os._exit(3)",
        "cannot be used: its process ended early; tell its authors",
    ),
    "foreign": ("    def __new__(cls, options): return 42", "cannot be used: foreign:It made no Observer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_observer_that_cannot_be_built_refuses_the_start(module, name):
    body, problem = BROKEN[name]
    with pytest.raises(PluginError) as caught:
        Feeds([module(body, name)])
    assert str(caught.value).startswith(f"{LABEL} {problem}")


def test_options_that_cannot_be_sent_refuse_the_start():
    class Local(Options):
        pass

    with pytest.raises(PluginError) as caught:
        Feeds([(TOY, Local())])
    assert str(caught.value).startswith(f"{LABEL} cannot be used: its options cannot be sent to its process: ")
    assert str(caught.value).endswith("; define them at the top of a module, and of values that can be pickled")


def test_where_one_cannot_be_built_none_is_left(module, tmp_path):
    body, _ = BROKEN["raises"]
    with pytest.raises(PluginError):
        Feeds([(TOY, RecorderOptions(path=tmp_path / "out")), module(body, "second")])
    assert (tmp_path / "out").read_text() == "closed\n"


def test_an_observer_that_is_never_built_refuses_the_start(module, monkeypatch):
    monkeypatch.setattr(feed_module, "START_S", 0.05)
    monkeypatch.setattr(feed_module, "END_S", 0.05)
    with pytest.raises(PluginError, match=r"it was not built within 0\.05 s; tell its authors, or do without it"):
        Feeds([module("    def __init__(self, options): time.sleep(100)", "never")])


def flood(feeds):
    """Reports, until one is dropped."""
    while not feeds.report()["toy"]["dropped"]:
        feeds.on_step(STEP_1)


def test_one_that_hangs_costs_reports_only_and_ends_with_the_engine(module, monkeypatch, caplog):
    monkeypatch.setattr(feed_module, "LIMIT", 50)
    monkeypatch.setattr(feed_module, "END_S", 0.05)
    body = "    def __init__(self, options): pass\n    def on_step(self, report):\n        while True: time.sleep(100)"
    feeds = Feeds([module(body, "hangs")])
    child = feeds._feeds[0]._process
    flood(feeds)
    feeds.on_request(REQUEST_1)
    assert feeds.report()["toy"]["dropped"] >= 1
    assert caplog.messages == [f"{LABEL} takes reports more slowly than they come; what it misses is counted"]
    feeds.close()
    assert child.returncode is not None


def test_who_is_ended_is_ended_with_what_it_has_started(module, monkeypatch, tmp_path):
    """Its child has the pipe too: the engine would wait for ever to be rid of its last reports."""
    monkeypatch.setattr(feed_module, "END_S", 0.05)
    forked = tmp_path / "forked"
    body = f"""
    def __init__(self, options): pass
    def on_step(self, report):
        if os.fork(): open({str(forked)!r}, "w").close()
        while True: time.sleep(100)"""
    feeds = Feeds([module(body, "forks")])
    writer = feeds._feeds[0]._writer
    while not (forked.exists() and feeds.report()["toy"]["dropped"] > feed_module.LIMIT):  # the pipe is full
        feeds.on_step(STEP_1)
    feeds.close()
    writer.join(30)
    assert not writer.is_alive()


def test_one_that_has_started_another_and_is_never_built_refuses_the_start(module, monkeypatch):
    monkeypatch.setattr(feed_module, "START_S", 1.0)
    body = "    def __init__(self, options):\n        os.fork()\n        time.sleep(100)"
    with pytest.raises(PluginError, match=r"it was not built within 1 s"):
        Feeds([module(body, "forks_first")])


def test_what_an_observer_reads_is_no_report(module, tmp_path):
    body = f"""
    def __init__(self, options): pass
    def on_request(self, report):
        with open({str(tmp_path / "read")!r}, "a") as out: out.write(repr((report.rid, sys.stdin.read())))"""
    feeds = Feeds([module(body, "reads")])
    feeds.on_request(REQUEST_1)
    feeds.on_request(REQUEST_1)
    feeds.close()
    assert (tmp_path / "read").read_text() == "('é', '')" * 2


def test_what_it_raises_is_in_the_log_as_the_engine_writes_it(module, monkeypatch, capfd):
    monkeypatch.setattr(logs, "_setup", logs.LogSetup("json"))
    feeds = Feeds([module("    def __init__(self, options): pass\n    def on_step(self, report): 1 / 0", "raises")])
    feeds.on_step(STEP_1)
    feeds.close()
    (line,) = map(json.loads, capfd.readouterr().err.splitlines())
    assert (line["level"], line["process"], line["logger"]) == ("error", "observer toy", "rtk.observe.process")
    assert line["message"] == (
        f"{LABEL}: on_step() failed: ZeroDivisionError: division by zero; the next report comes all the same"
    )


def test_one_that_dies_costs_reports_only(module, caplog):
    body = "    def __init__(self, options): pass\n    def on_step(self, report): os._exit(5)"
    feeds = Feeds([module(body, "dies_later")])
    feeds.on_step(STEP_1)
    assert feeds._feeds[0]._process.wait(30) == 5
    feeds.on_step(STEP_1)
    feeds._feeds[0]._writer.join(30)  # it noticed
    feeds.on_request(REQUEST_1)
    assert feeds.report() == {"toy": {"dropped": 2}}
    feeds.close()
    assert caplog.messages == [f"{LABEL}: its process has ended; what it misses is counted, and the engine goes on"]


class Fails(Observer):
    def __init__(self, error):
        self.seen = []
        self.error = error

    def on_step(self, report):
        self.seen.append(report)
        raise self.error

    def close(self):
        self.seen.append("closed")


@pytest.mark.parametrize(
    ("error", "said"), [(ValueError("wrong"), "ValueError: wrong"), (SystemExit(3), "SystemExit: 3")]
)
def test_what_an_observer_raises_is_told_once_and_it_gets_the_rest(error, said):
    told, observer, inbox = [], Fails(error), queue.Queue()
    for item in ((STEP, list(STEP_1)), (REQUEST, list(REQUEST_1)), (STEP, list(STEP_1)), None):
        inbox.put(item)
    process.tell(observer, inbox, told.append)
    assert observer.seen == [STEP_1, STEP_1, "closed"]
    assert told == [f"on_step() failed: {said}; the next report comes all the same"]


def test_the_process_of_an_observer_that_goes_on_ends_when_the_engine_is_gone(monkeypatch):
    parents, slept, gone = [7, 7, 1], [], []
    monkeypatch.setattr(process.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(process.time, "sleep", slept.append)
    monkeypatch.setattr(process.os, "_exit", gone.append)
    process.outlive(7)
    assert (parents, slept, gone) == ([], [process.PATIENCE_S, process.PATIENCE_S, process.LAST_S], [1])


def test_a_reader_that_fails_says_that_there_is_no_more():
    """The observer may have closed what is not its own, or left no memory to read with."""
    source, reports = BytesIO(), queue.Queue()
    send(source, msgspec.msgpack.encode([(STEP, STEP_1)]))
    send(source, b"no MessagePack \xc1")
    source.seek(0)
    with pytest.raises(msgspec.DecodeError):
        process.read(source, reports)
    assert [reports.get_nowait(), reports.get_nowait()] == [[STEP, list(STEP_1)], None]


@pytest.mark.parametrize("cut", [0, 3, 4, 9])
def test_a_frame_that_is_cut_off_is_the_end(cut):
    source = BytesIO()
    send(source, b"0123456789")
    assert receive(BytesIO(source.getvalue())) == b"0123456789"
    assert receive(BytesIO(source.getvalue()[:cut])) is None


def test_the_process_imports_no_torch():
    code = "import sys, rtk.observe.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_nobody_takes_is_dropped_from_a_bound_on():
    feed = object.__new__(feed_module.Feed)
    feed._queue, feed._lost, feed.dropped, feed._label = queue.SimpleQueue(), False, 0, LABEL
    for _ in range(feed_module.LIMIT + 3):
        feed.offer(STEP, STEP_1)
    assert (feed._queue.qsize(), feed.dropped) == (feed_module.LIMIT, 3)
