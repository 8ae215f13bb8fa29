"""Compiles grammars with xgrammar: masks are worked out when a grammar is compiled, and are quick to fill."""

from rtk.plugin import Plugin, hookimpl


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="grammar",
            name="xgrammar",
            summary="all kinds of specs; compiles in ten to some hundred milliseconds, fills masks in microseconds",
            target="rtk_grammar.xgrammar.backend:XGrammar",
        )
    ]
