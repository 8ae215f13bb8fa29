"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pathlib import Path

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class WatcherOptions(Options):
    path: Path | None = Field(default=None, description="file that lines are added to; null: standard error")


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="observer",
            name="jsonl",
            summary="a line of JSON for each request that ended",
            target="rtk_observer_jsonl.watcher:Watcher",
            options=WatcherOptions,
        )
    ]
