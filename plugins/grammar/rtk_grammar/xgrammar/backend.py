"""The backend of xgrammar. It gets grammars of ours as EBNF; its own converters are not used."""

from rtk.plugin.grammar import Vocabulary
from rtk_grammar.compiled import Writing
from rtk_grammar.expr import Rules, endless_readings
from rtk_grammar.tokens import TokenMatcher
from rtk_grammar.xgrammar.linear import MOST_RULES, TooManyError, linear

VERSION = "0.2.9"
"""Of xgrammar: the one that the table was established on."""


class XGrammar(Writing):
    """See the module."""

    library = "xgrammar"
    install = "xgrammar>=0.2.9"
    free_by_rules = True

    def fits(self, rules: Rules) -> str:
        if endless_readings(rules):  # it crashes on some, and takes seconds for masks of others
            return "a rule that may be nothing but itself"
        try:
            linear(rules)
        except TooManyError:
            return f"counts of characters, as of maxLength or in a pattern, of more than {MOST_RULES} in all"
        return ""

    def compiled(self, rules: Rules, vocabulary: Vocabulary) -> TokenMatcher:
        from rtk_grammar.xgrammar.matcher import compiled

        return compiled(linear(rules), vocabulary)
