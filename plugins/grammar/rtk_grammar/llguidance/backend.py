"""The backend of llguidance. It gets grammars of ours as Lark text; its own converters are not used."""

from rtk.plugin.grammar import Vocabulary
from rtk_grammar.compiled import Writing
from rtk_grammar.expr import Rules
from rtk_grammar.tokens import TokenMatcher

VERSION = "1.9.1"
"""Of llguidance: the one that the table was established on."""


class LLGuidance(Writing):
    """See the module."""

    library = "llguidance"
    install = "llguidance>=1.9.1"

    def compiled(self, rules: Rules, vocabulary: Vocabulary) -> TokenMatcher:
        from rtk_grammar.llguidance.matcher import compiled

        return compiled(rules, vocabulary)
