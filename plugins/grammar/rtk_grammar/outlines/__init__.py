"""Compiles regular expressions with outlines_core, and schemas without recursion by way of these."""

from rtk.plugin import Plugin, hookimpl


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="grammar",
            name="outlines",
            summary="choices, patterns and small schemas; compiles in up to seconds, fills masks in microseconds",
            target="rtk_grammar.outlines.backend:Outlines",
        )
    ]
