"""Log lines: what is in them, and that no disk, pipe or message stops whoever writes them."""

import io
import json
import logging
import os
import subprocess
import sys

import pytest

from rtk.config.load import config_from
from rtk.observe import logs, visit

log = logging.getLogger("rtk.tests")


@pytest.fixture(autouse=True)
def as_before():
    """The levels and handlers of this process come back."""
    root, own = logging.getLogger(), logging.getLogger("rtk")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)


def lines(monkeypatch, act, process="main", **keys):
    """What is written once the log is configured so."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure(config_from({f"observe.{key}": value for key, value in keys.items()}), process)
    act()
    return out.getvalue().splitlines()


def test_json_is_one_object_a_line_with_exceptions_as_a_field(monkeypatch):
    def act():
        log.info("two\nlines of %s \x1b[31m é", "text", extra=logs.about("12:story:1"))
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("it failed")
        logging.getLogger("other").info("not told")
        logging.getLogger("other").warning("told")

    first, second, third = map(json.loads, lines(monkeypatch, act, "scheduler", log_format="json"))
    assert list(first) == ["time", "level", "logger", "message", "process", "pid", "request_id"]
    assert (first["level"], first["logger"]) == ("info", "rtk.tests")
    assert first["message"] == "two\nlines of text \x1b[31m é"
    assert (first["process"], first["pid"], first["request_id"]) == ("scheduler", os.getpid(), "story:1")
    assert first["time"].endswith("+00:00")
    assert "request_id" not in second
    assert second["exception"].startswith("Traceback (most recent call last):")
    assert second["exception"].endswith("ValueError: no")
    assert (third["logger"], third["level"]) == ("other", "warning")


def test_text_is_what_it_was(monkeypatch):
    written = lines(monkeypatch, lambda: log.info("a\nb %s", "c"))
    assert written == ["INFO: a\\nb c"]


@pytest.mark.parametrize(
    ("level", "told"),
    [("debug", ["d", "i", "w", "e"]), ("info", ["i", "w", "e"]), ("warning", ["w", "e"]), ("error", ["e"])],
)
def test_levels(monkeypatch, level, told):
    def act():
        for write, word in ((log.debug, "d"), (log.info, "i"), (log.warning, "w"), (log.error, "e")):
            write(word)

    assert [line[-1] for line in lines(monkeypatch, act, log_level=level)] == told


def test_a_line_written_while_somebody_is_served_has_the_requests_id(monkeypatch):
    def act():
        visit.begin().serves(["a", "b"])
        log.info("of a")
        log.info("of c", extra=logs.about("c"))
        log.info("of d", extra={"rid": "d", "path": "/p", "seconds": 0.5, "level": "mine", "odd": {1}})

    first, second, third = map(json.loads, lines(monkeypatch, act, log_format="json"))
    assert [line["request_id"] for line in (first, second, third)] == ["a", "c", "d"]
    more = {name: third[name] for name in third.keys() - first.keys()}
    assert more == {"path": "/p", "seconds": 0.5, "odd": "{1}"}
    assert third["level"] == "info"
    visit.begin()


@pytest.mark.parametrize(("rid", "name"), [("7:a", "a"), ("a", "a"), ("7:", "7:"), ("x:y", "x:y"), ("pin:3", "pin:3")])
def test_the_clients_id(rid, name):
    assert logs.about(rid) == {"request_id": name}


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_lines_that_cannot_be_written_are_counted_and_stop_nobody(monkeypatch, fmt):
    monkeypatch.setattr(sys, "stderr", Full())
    logging.getLogger().handlers[:] = []  # pytest's, which raise what they cannot format
    logs.configure(config_from({"observe.log_format": fmt}))
    before = logs.drops()
    log.error("lost")
    log.error("lost too: %d", "no number")
    assert logs.drops() == before + 2


def test_configuring_twice_writes_once_and_leaves_handlers_of_others(monkeypatch):
    others = logging.NullHandler()
    logging.getLogger().addHandler(others)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logs.begin()
    assert lines(monkeypatch, lambda: log.info("once")) == ["INFO: once"]
    assert others in logging.getLogger().handlers


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")  # noqa: PTH110
def test_a_full_disk_changes_no_exit_code():
    code = (
        "import logging\nfrom rtk.observe import logs\nlogs.begin()\n"
        "for _ in range(3000): logging.getLogger('rtk').error('x' * 100)\nassert logs.drops() == 3000"
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123
        assert subprocess.run([sys.executable, "-c", code], stderr=full, check=False).returncode == 0


CLOSED = """
import os
os.closerange(0, 3)
from rtk.observe.logs import begin
begin()
os._exit(sum(os.path.samestat(os.fstat(one), os.stat(os.devnull)) for one in range(3)))
"""


def test_no_file_gets_the_number_of_a_stream_that_is_closed(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    assert subprocess.run([sys.executable, "-c", CLOSED], check=False).returncode == 3
