"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pathlib import Path

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class StoreOptions(Options):
    path: Path | None = Field(
        default=None,
        description="folder of the pages, made where it is missing; null: a temporary one, removed at the end",
    )
    max_bytes: int = Field(
        default=1 << 32, ge=1, description="most bytes that pages take; the least recently used make room"
    )


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="storage",
            name="folder",
            summary="pages as files in a folder",
            target="rtk_storage_folder.store:Store",
            options=StoreOptions,
        )
    ]
