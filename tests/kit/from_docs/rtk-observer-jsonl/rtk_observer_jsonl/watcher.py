"""Adds a line of JSON for each request that ended: how it ended, its tokens, and how long it took."""

import json
import sys
import time

from rtk.plugin import Observer, RequestReport

from . import WatcherOptions


class Watcher(Observer):
    def __init__(self, options: WatcherOptions) -> None:
        # Opened here, so that a path that cannot be written refuses the start.
        self._file = None if options.path is None else options.path.open("a", encoding="utf-8")

    def on_request(self, report: RequestReport) -> None:
        first = report.first_token_s
        entry = {
            "logged_at": round(time.time(), 3),
            "rid": report.rid,
            "reason": report.reason,
            "prompt_tokens": report.prompt_tokens,
            "cached_tokens": report.cached_tokens,
            "output_tokens": report.output_tokens,
            "retractions": report.retractions,
            "priority": report.priority,
            "first_token_after_s": None if first is None else round(first - report.arrival_s, 6),
            "ended_after_s": round(report.ended_s - report.arrival_s, 6),
        }
        out = self._file or sys.stderr
        out.write(json.dumps(entry) + "\n")
        out.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
