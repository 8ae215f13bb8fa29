"""What a process tells of itself."""

import gc
import os

from rtk.observe import vitals
from rtk.observe.histogram import PAUSE_S
from rtk.observe.vitals import GcWatch, process_report


def test_a_process():
    report = process_report()
    assert report.pid == os.getpid()
    assert 1e6 < report.memory_bytes < 1e12
    assert report.log_drops >= 0


def test_collections_are_measured_between_start_and_stop(monkeypatch):
    watch, moments = GcWatch(), iter([1.0, 1.25, 5.0, 4.0, 6.0, 6.5])
    monkeypatch.setattr(vitals, "perf_counter", lambda: next(moments))
    gc.disable()
    try:
        gc.collect()
        watch.start()
        watch.start()
        gc.collect()
        gc.collect()
        watch.stop()
        gc.collect()
        watch.stop()
        gc.collect()
    finally:
        gc.enable()
    found = watch.read()
    assert (found.bounds, found.count, found.total) == (PAUSE_S, 2, 0.75)  # the clock went back in the second
    assert watch.longest_s == 0.5
    assert watch._told not in gc.callbacks
