"""The backend of outlines_core: one regular expression for whole answers, so nothing that is recursive."""

from rtk.plugin.grammar import Vocabulary
from rtk_grammar.compiled import Writing
from rtk_grammar.expr import Rules, flat, in_order, unused
from rtk_grammar.tokens import TokenMatcher

VERSION = "0.2.14"
"""Of outlines_core: the one that the table was established on."""
MOST_PARTS = 20_000
"""Of an expression."""


class Outlines(Writing):
    """See the module."""

    spec_kinds = frozenset({"choice", "json_schema", "regex"})
    library = "outlines_core"
    install = "rtk-inference[outlines]"

    def fits(self, rules: Rules) -> str:
        if in_order(rules) is None:
            return "a schema that is recursive, or has values of any kind"
        expr = flat(rules, MOST_PARTS)
        if expr is None:
            return f"a schema of more than {MOST_PARTS} parts once its references are written out"
        return "" if unused(expr) else "texts of any characters, each of them allowed"

    def compiled(self, rules: Rules, vocabulary: Vocabulary) -> TokenMatcher:
        from rtk_grammar.outlines.matcher import compiled

        expr = flat(rules, MOST_PARTS)
        mark = unused(expr) if expr is not None else None
        assert expr is not None and mark is not None, "refused"
        return compiled(expr, mark, vocabulary)
