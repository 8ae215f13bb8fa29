"""`rtk serve` as a process, and what it and its children hold. See bench/soak.py."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPResponse
from typing import Any

import psutil

START_S, ASK_S, END_S = 180, 60, 60


@dataclass(frozen=True)
class Held:
    """What the processes of a server hold together."""

    processes: int
    sockets: int
    files: int
    """All descriptors, sockets among them."""
    bytes: int
    """Memory that no other process shares."""

    def __sub__(self, other: "Held") -> "Held":
        return Held(*(a - b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


class Server:
    """The command in a process of its own, on a free port of this machine. A context manager."""

    def __init__(self, *flags: str, env: Mapping[str, str] | None = None, key: str = "") -> None:
        """`env`: variables beside those that there are; `key`: an administrator's, empty where there are no keys."""
        script = "from rtk_cli.main import main; main()"
        command = [sys.executable, "-c", script, "serve", "--host", "127.0.0.1", "--port", "0", *flags]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace", env=os.environ | {**(env or {})}
        )
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.log: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.host, self.port = "", 0

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self.log.append(line.rstrip("\n"))
            if found := re.search(r"ready on http://([^:]+):(\d+)", line):
                self.host, self.port = found[1], int(found[2])
                self._ready.set()
        self._ready.set()

    def __enter__(self) -> "Server":
        self._ready.wait(START_S)
        end = time.monotonic() + START_S
        while not (self.port and self._is_healthy()):
            if not self.port or self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise SystemExit("the server did not start:\n" + "\n".join(self.log[-20:]))
            time.sleep(0.05)
        return self

    def _is_healthy(self) -> bool:
        """It may say that it is ready before it takes connections."""
        try:
            return self.ask("/health")["status"] == "ok"
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        """Whatever has not ended is killed: nothing is left behind."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._reader.join(5)
        if self._process.stderr:
            self._process.stderr.close()

    def processes(self) -> list[psutil.Process]:
        """The server and all below it."""
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def held(self) -> Held:
        """What it holds now."""
        processes = sockets = files = size = 0
        for process in self.processes():
            try:
                mine = (len(process.net_connections("all")), process.num_fds(), process.memory_full_info().uss)
            except psutil.NoSuchProcess:
                continue
            processes, sockets, files, size = processes + 1, sockets + mine[0], files + mine[1], size + mine[2]
        return Held(processes, sockets, files, size)

    def connections(self) -> int:
        """Ends of clients' connections that it has not closed."""
        found = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                sockets = process.net_connections("tcp")
                found += sum(bool(one.raddr) and one.laddr.port == self.port for one in sockets)
        return found

    def ask(self, path: str) -> Any:
        """What a GET answers, parsed."""
        with self._get(path) as answer:
            return json.load(answer)

    def _get(self, path: str) -> HTTPResponse:
        request = urllib.request.Request(f"http://{self.host}:{self.port}{path}", headers=self._headers)
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=ASK_S)
        return answer

    def stats(self) -> dict[str, float]:
        """Counters and gauges, and the requests in flight."""
        info = self.ask("/server_info")
        return {**info["stats"], "in_flight": info["in_flight"]}

    def metrics(self) -> dict[str, float]:
        """What /metrics says, summed over labels; nothing where there is none."""
        try:
            with self._get("/metrics") as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            error.close()
            return {}
        sums: dict[str, float] = {}
        for series, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            sums[series] = sums.get(series, 0.0) + float(value)
        return sums

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Wait until something holds; answers whether it did."""
        end = time.monotonic() + limit_s
        while not (held := await asyncio.to_thread(holds)) and time.monotonic() < end:
            await asyncio.sleep(0.1)
        return held

    def terminate(self) -> tuple[int | None, int]:
        """Ask it to end. Answers its exit status, None where it did not, and how many of its processes are left."""
        processes = self.processes()
        self._process.terminate()
        try:
            status: int | None = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            status = None
        _, left = psutil.wait_procs(processes, 5)
        return status, len(left)
