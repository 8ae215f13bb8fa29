"""Texts with which models mark what is neither prompt nor plain answer: calls of tools, and thoughts.

Where a tokenizer has special tokens of these texts, they have text all the same: whoever reads an answer must see
them, and a grammar must be able to write them. It is so whatever a request asks for, so all processes agree where a
text ends.
"""

THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
)
"""Where thoughts begin and end."""

CALLS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>")

MARKS = frozenset({*CALLS, *(mark for pair in THOUGHTS for mark in pair)})
