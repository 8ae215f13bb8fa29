"""The backend of xgrammar. It gets grammars of ours as EBNF; its own converters are not used."""

from rtk.plugin.grammar import Vocabulary
from rtk_grammar.compiled import Writing
from rtk_grammar.expr import Rules
from rtk_grammar.tokens import TokenMatcher

VERSION = "0.2.9"
"""Of xgrammar: the one that the table was established on."""


class XGrammar(Writing):
    """See the module."""

    library = "xgrammar"
    install = "xgrammar>=0.2.9"

    def compiled(self, rules: Rules, vocabulary: Vocabulary) -> TokenMatcher:
        from rtk_grammar.xgrammar.matcher import compiled

        return compiled(rules, vocabulary)
