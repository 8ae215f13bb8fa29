"""`rtk top` against a real port, and what it makes of two scrapes."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from fake_scheduler import saying
from http_harness import Served
from typer.testing import CliRunner

from rtk.observe.histogram import Histogram
from rtk.observe.render import rendered
from rtk.observe.series import Snapshot
from rtk.schedule.messages import Stats
from rtk_cli import top as top_module
from rtk_cli.looks import QUANTILES, Scrape, look, quantile, scraped
from rtk_cli.main import app

KEYS = {
    "up", "stats_age_s", "uptime_s", "version", "model", "over_s", "running", "waiting", "compiling", "following",
    "queue_full",
    "free", "evictable", "protected", "held", "pool", "hit_rate", "new_token_ratio", "prefill_tokens_s",
    "generated_tokens_s", "steps_s", "finished_s", "retractions_s", "retractions", "ttft_s", "inter_token_s", "queue_s",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RTK_SERVE__ADMIN_API_KEY", raising=False)


@pytest.fixture(scope="module")
def http() -> Iterator[Served]:
    with Served(saying()) as http:
        yield http


def rtk(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["top", *args])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def scrape_of(uptime: float, values: dict[str, float] | None = None, waits: tuple[float, ...] = (), **more) -> Scrape:
    """A scrape of a server with these counters, whose first tokens took so long."""
    histogram = Histogram((0.1, 0.5, 1.0))
    for seconds in waits:
        histogram.observe(seconds)
    histograms = {"time_to_first_token_seconds": histogram.read()}
    stats = Stats(id=0, values=values or {}, histograms=histograms)
    snapshot = Snapshot(stats=stats, uptime_s=uptime, version="1.2", model="tiny", **more)
    return scraped(rendered(snapshot)[0].decode())


# --- two scrapes ------------------------------------------------------------------------------------------------


def test_rates_and_percentiles_are_of_the_time_between_two_looks() -> None:
    counters = {"generated_tokens": 100, "uncached_tokens": 40, "cached_tokens": 60, "finished_stop": 2, "steps": 50}
    first = scrape_of(10, counters, (0.05,) * 10)
    found = look(None, first)
    assert (found["over_s"], found["generated_tokens_s"], found["hit_rate"], found["finished_s"]) == (10, 10, 0.6, 0.2)
    assert found["ttft_s"] == {"p50": 0.05, "p95": 0.095, "p99": 0.099}
    more = {"generated_tokens": 150, "uncached_tokens": 50, "cached_tokens": 90, "finished_stop": 2, "steps": 50}
    found = look(first, scrape_of(15, {**more, "finished_length": 5, "running": 3}, (0.05,) * 10 + (0.3,) * 4))
    assert (found["over_s"], found["generated_tokens_s"], found["hit_rate"], found["finished_s"]) == (5, 10, 0.75, 1)
    assert (found["running"], found["steps_s"]) == (3, 0)
    assert found["ttft_s"]["p50"] == pytest.approx(0.3)
    assert found["inter_token_s"] == dict.fromkeys(QUANTILES)
    assert set(found) == KEYS


def test_a_server_that_was_started_anew_is_looked_at_from_its_start() -> None:
    found = look(scrape_of(1000, {"generated_tokens": 9999}), scrape_of(4, {"generated_tokens": 8}))
    assert (found["over_s"], found["generated_tokens_s"]) == (4, 2)


def test_nothing_yet() -> None:
    found = look(None, scrape_of(0))
    assert (found["generated_tokens_s"], found["hit_rate"], found["version"], found["model"]) == (
        None,
        None,
        "1.2",
        "tiny",
    )


@pytest.mark.parametrize(
    ("counts", "q", "value"),
    [
        ({}, 0.5, None), ({1.0: 0.0, float("inf"): 0.0}, 0.5, None), ({1.0: 4.0, float("inf"): 4.0}, 0.5, 0.5),
        ({1.0: 0.0, 2.0: 4.0, float("inf"): 4.0}, 0.25, 1.25), ({1.0: 1.0, float("inf"): 4.0}, 0.99, 1.0),
        ({1.0: 2.0, 2.0: 2.0, 4.0: 4.0, float("inf"): 4.0}, 0.75, 3.0),
    ],
)  # fmt: skip
def test_quantiles(counts: dict[float, float], q: float, value: float | None) -> None:
    assert quantile(counts, q) == value


# --- the command ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["url", "parts", "port"])
def test_one_look(http: Served, where: str) -> None:
    address = {
        "url": ["--url", http.base],
        "parts": ["--host", "127.0.0.1", "--port", str(http.port)],
        "port": ["--port", str(http.port)],
    }[where]
    code, out, err = rtk(*address, "--once", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == KEYS
    assert (found["up"], found["model"], found["version"]) == (True, "tiny", "1.2.3")


def test_the_docs_list_what_json_has() -> None:
    page = top_module.__file__.replace("cli/rtk_cli/top.py", "docs/observability.md")
    with open(page, encoding="utf-8") as file:  # noqa: PTH123
        part = file.read().split("## rtk top")[1].split("## The log")[0]
    rows = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == KEYS


def test_one_look_as_text_fits_80_columns_whatever_the_numbers() -> None:
    big = dict.fromkeys(["running", "waiting", "free", "evictable", "protected", "held", "retractions"], 2**31 - 1)
    big |= {"pool": 4 * (2**31 - 1), "generated_tokens": 10**12, "prefill_tokens": 10**12, "queue_is_full": 1}
    found = look(None, scrape_of(1e6, big, (0.2,) * 5))
    for shown in (found, look(None, scrape_of(0)), {**found, "model": "m\x1b[31m" * 40, "version": "1"}):
        lines = top_module._text(shown).splitlines()
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in "".join(lines)
    text = top_module._text(found)
    for words in (
        "running",
        "waiting",
        "(full)",
        "hit rate",
        "rho",
        "retractions",
        "first token",
        "p95",
        "evictable",
        "held",
    ):
        assert words in text


def test_the_bar_shows_the_states_in_proportion() -> None:
    found = look(None, scrape_of(1, {"free": 25, "evictable": 25, "protected": 40, "held": 10, "pool": 100}))
    bar = top_module._text(found).splitlines()[2].removeprefix("pool  ")
    assert {mark: bar.count(mark) for mark in "#=-."} == {"#": 6, "=": 26, "-": 16, ".": 16}


def test_an_engine_that_does_not_answer_is_told() -> None:
    text = top_module._text(look(None, scrape_of(9, up=False, age_s=75.2)))
    assert "the engine does not answer: what it said is 75 s old" in text


def test_nobody_is_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        code, out, err = rtk("--url", url, "--once")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: no answer from {url}: Connection refused; ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["--url", "http://127.0.0.1:1", "--port", "2"],
            "--url, --host, --port: give the address once, as a whole or in parts",
        ),
        (["--url", "ftp://x"], "--url ftp://x: must begin with http:// or https://"),
    ],
)
def test_an_address_that_is_none(args: list[str], problem: str) -> None:
    assert rtk(*args, "--once") == (1, "", f"error: {problem}\n")


def test_another_kind_of_server(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_module.Server, "text", lambda self, path: "<p>hello</p>")
    assert rtk("--url", http.base, "--once")[2] == (
        "error: what is there answers /metrics like no rtk server; name another one with --url\n"
    )


def test_it_goes_on_when_the_server_is_gone(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends on Ctrl-C without a word."""
    waits = iter(range(3))
    scrape, gone = top_module._scrape, top_module.NoAnswerError("no answer from it: it is gone")

    def flaky(server: object) -> Scrape:
        if next(waits) == 1:
            raise gone
        return scrape(server)

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        if next(naps) == 2:
            raise KeyboardInterrupt

    naps = iter(range(3))
    monkeypatch.setattr(top_module, "_scrape", flaky)
    monkeypatch.setattr(top_module.time, "sleep", sleep)
    code, out, err = rtk("--url", http.base, "--json", "--interval", "0.5")
    assert (code, err) == (0, "no answer from it: it is gone; trying again\n")
    assert [json.loads(line)["up"] for line in out.splitlines()] == [True, True]


class Terminal:
    """The command in a terminal of 80 columns."""

    def __init__(self, *args: str) -> None:
        self._own, other = pty.openpty()
        code = "from rtk_cli.main import main; main()"
        environ = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "top", *args], stdin=other, stdout=other, stderr=other, env=environ
        )
        os.close(other)
        self.seen = ""

    def until(self, words: str, limit_s: float = 30.0) -> None:
        end = time.monotonic() + limit_s
        while words not in self.seen:
            left = end - time.monotonic()
            assert left > 0 and select.select([self._own], [], [], left)[0], self.seen
            self.seen += os.read(self._own, 65536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._own, keys)

    def rest(self) -> str:
        """What is left once it has ended."""
        try:
            while select.select([self._own], [], [], 0.2)[0] and (more := os.read(self._own, 65536)):
                self.seen += more.decode(errors="replace")
        except OSError:  # the end, on Linux
            pass
        os.close(self._own)
        return self.seen


@pytest.mark.parametrize("end", ["q", "interrupt"])
def test_the_live_view(end: str) -> None:
    with Served(saying()) as http:
        terminal = Terminal("--url", http.base, "--interval", "0.1")
        terminal.until("first token")
    terminal.until("trying again")  # the server is gone, and what it said stays
    if end == "q":
        terminal.type(b"xq")
    else:
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(30) == 0
    seen = terminal.rest()
    assert "Traceback" not in seen and "Error" not in seen
    assert seen.rfind("\x1b[?1049l") > seen.rfind("\x1b[?1049h") >= 0  # the screen of before is back
