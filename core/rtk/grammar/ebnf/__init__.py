"""Grammars of clients: read, refused with line and column, and written for every backend alike."""

from rtk.grammar.ebnf.check import parse
from rtk.grammar.ebnf.errors import EbnfError
from rtk.grammar.ebnf.nodes import Grammar
from rtk.grammar.ebnf.text import text

__all__ = ["EbnfError", "Grammar", "parse", "text"]
