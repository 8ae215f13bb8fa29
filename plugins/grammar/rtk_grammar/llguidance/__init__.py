"""Compiles grammars with llguidance: nothing is worked out ahead, masks are computed as they are asked for."""

from rtk.plugin import Plugin, hookimpl


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="grammar",
            name="llguidance",
            summary="all kinds of specs; compiles in milliseconds, fills masks in tens of microseconds",
            target="rtk_grammar.llguidance.backend:LLGuidance",
        )
    ]
