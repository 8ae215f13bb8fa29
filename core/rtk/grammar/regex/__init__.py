"""Regular expressions of clients: read, refused with the place, combined exactly, and written for every backend alike.

A node is an expression for whole texts, without anchors; `NOTHING` matches none.
"""

from rtk.grammar.regex.automaton import matches
from rtk.grammar.regex.combine import combined, contains, overlap
from rtk.grammar.regex.errors import RegexError, TooLargeError
from rtk.grammar.regex.json_text import json_string
from rtk.grammar.regex.nodes import ANYTHING, EMPTY, NOTHING, Node, alt, lengths, literal, nullable, repeat, seq, size
from rtk.grammar.regex.parse import parse
from rtk.grammar.regex.text import anchored, text

__all__ = [
    "ANYTHING",
    "EMPTY",
    "NOTHING",
    "Node",
    "RegexError",
    "TooLargeError",
    "alt",
    "anchored",
    "combined",
    "contains",
    "json_string",
    "lengths",
    "literal",
    "matches",
    "nullable",
    "overlap",
    "parse",
    "repeat",
    "seq",
    "size",
    "text",
]
