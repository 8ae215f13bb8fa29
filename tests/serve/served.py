"""`rtk serve` in its processes, over a tiny model, as its users and its operators see it."""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import psutil

WAIT_S = 60
LONG = 1900
"""Tokens of an answer that takes a while: no test waits for its end without having to."""


def checkpoint(zoo, tokenizer):
    """The folder of a tiny model with a tokenizer."""
    folder = zoo.folder("llama")
    if not (folder / "tokenizer.json").exists():
        tokenizer._backend.save(str(folder / "tokenizer.json"))
    return folder


class Served:
    """The command in a process group of its own. `tmp` gets its sockets; `log`, if given, its lines: none is read."""

    def __init__(self, folder, tmp, *flags, path=(), log=None):
        self.tmp = tmp
        port = _free_port() if log else 0
        self._lines = queue.SimpleQueue()
        self.log = []
        path = os.pathsep.join([*map(str, path), *filter(None, sys.path)])
        lines = Path(log).open("w") if log else subprocess.PIPE  # noqa: SIM115 - closed below
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from rtk_cli.main import main; main()", "serve", "--port", f"{port}"),
                *("--pool-tokens", "32768", "--threads", "1", "--model", str(folder), *flags),
            ],
            stderr=lines,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp)},
        )
        if log:
            lines.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.http = httpx.Client(timeout=WAIT_S)
        try:
            if log:
                self.http.base_url = f"http://127.0.0.1:{port}"
                self.until(self._answers)
            else:
                self.http.base_url = re.search(r"ready on (http://\S+) as", self.wait_for_line("ready on "))[1]
        except BaseException:
            self.close()
            raise

    def _read(self):
        for line in self.process.stderr or ():
            self.log.append(line)
            self._lines.put(line)
        self._lines.put("")

    def _answers(self):
        assert self.process.poll() is None, f"exit status {self.process.returncode}"
        try:
            return self.http.get("/health").is_success
        except httpx.ConnectError:
            return False

    def wait_for_line(self, text):
        """The next line of the log that has `text` in it."""
        while text not in (line := self._lines.get(timeout=WAIT_S)):
            assert line, "".join(self.log)
        return line

    def children(self):
        """The processes of the engine, by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            match = re.search(r"rtk\.serve\.processes\.(\w+)", " ".join(child.cmdline()))
            found |= {match[1]: child} if match else {}
        return found

    def sockets(self):
        """What is left in the temporary folder."""
        return sorted(path.name for path in Path(self.tmp).rglob("*"))

    def body(self, i=0, tokens=LONG, **more):
        return {"prompt": f"{i}", "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | more

    def complete(self, i=0, tokens=LONG, **more):
        return self.http.post("/v1/completions", json=self.body(i, tokens, **more))

    def text(self, i=0, tokens=LONG):
        return self.complete(i, tokens).json()["choices"][0]["text"]

    def stream(self, i=0, tokens=LONG, **more):
        return Stream(self, self.body(i, tokens, stream=True, **more))

    def stats(self):
        return self.http.get("/server_info").json()["stats"]

    def until(self, condition):
        """Ask until `condition()` holds."""
        end = threading.Event()
        for _ in range(WAIT_S * 50):
            if condition():
                return
            end.wait(0.02)
        raise AssertionError("nothing of the kind happened: " + "".join(self.log))

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self):
        """The exit status, once the log has ended too: nobody has it open any more."""
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert not self._reader.is_alive(), "a process is left that has the log"
        return status

    def close(self):
        self.http.close()
        for child in self.children().values() if self.process.poll() is None else ():
            child.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        if self.process.stderr:
            self.process.stderr.close()


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Stream:
    """A stream of which the first event has come."""

    def __init__(self, served, body):
        self._context = served.http.stream("POST", "/v1/completions", json=body)
        self._response = self._context.__enter__()
        assert self._response.status_code == 200
        self._lines = (line[6:] for line in self._response.iter_lines() if line)
        self.events = [json.loads(next(self._lines))]

    def rest(self):
        """The text, the error if that is the last event, and whether it was said that all is done."""
        lines = list(self._lines)
        self.close()
        self.events += [json.loads(line) for line in lines if line != "[DONE]"]
        error = self.events[-1].get("error")
        text = "".join(event["choices"][0]["text"] for event in self.events if "choices" in event)
        return text, error and error["code"], lines[-1:] == ["[DONE]"]

    def close(self):
        self._context.__exit__(None, None, None)
