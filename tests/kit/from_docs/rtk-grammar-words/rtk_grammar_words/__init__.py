"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pydantic import Field
from rtk.plugin import Options, Plugin, hookimpl


class BackendOptions(Options):
    max_bytes: int = Field(65536, ge=1, description="bytes in UTF-8 that the texts of one choice may have together")


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="grammar",
            name="words",
            summary="one of a few texts, by a trie of their bytes",
            target="rtk_grammar_words.backend:Words",
            options=BackendOptions,
        )
    ]
