"""The backend of outlines_core: one regular expression for whole answers, so nothing that is recursive."""

from rtk.plugin.grammar import Vocabulary
from rtk_grammar.compiled import Writing
from rtk_grammar.expr import NEVER, Rules, flat, in_order, without_empty
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
        if without_empty(expr) == NEVER:
            return "nothing but the empty text"
        return ""

    def compiled(self, rules: Rules, vocabulary: Vocabulary) -> TokenMatcher:
        from rtk_grammar.outlines.matcher import compiled

        expr = flat(rules, MOST_PARTS)
        assert expr is not None, "refused"
        return compiled(expr, vocabulary)
