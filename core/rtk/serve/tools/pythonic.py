"""`[f(a=1, b="x"), g()]`, of Llama 4, small Llama 3.2 models and others.

A call is delivered when it is complete: what its values are in JSON shows then. Calls that a grammar forces are written
as in `json`, which is read here too.
"""

import ast
import json
import warnings
from collections.abc import Callable
from typing import Any

from rtk.serve.tools.layout import Format
from rtk.serve.tools.machine import NAME, SPACE, Outcome, Steps, Take
from rtk.serve.tools.objects import JSON, Objects

CONSTANTS = {"true": True, "false": False, "null": None}
"""As JSON has them; Python's own are known anyway."""
PREFIX = "_"
"""Put before names of arguments for Python to read them: it has no argument `from`, or `class`."""
CLOSING = {"(": ")", "[": "]", "{": "}"}


class Pythonic(Objects):
    """A list of calls, with which an answer begins."""

    def array(self, raw: list[str]) -> Steps[Outcome]:
        raw.append("[")
        yield
        yield from self.space(raw.append)
        if self.char == "{":
            return (yield from self.call_objects(raw, ",", "]"))
        while self.char in NAME:
            done = yield from self._call(raw)
            self.text("".join(raw))
            raw.clear()
            if done is Outcome.MALFORMED:
                return done
            yield from self.space(raw.append)
            if self.char == "]":
                raw.append("]")
                yield
                if done is Outcome.CALL:
                    raw.clear()
                return done
            if self.char != ",":
                break
            raw.append(",")
            yield
            yield from self.space(raw.append)
        return Outcome.MALFORMED

    def _call(self, raw: list[str]) -> Steps[Outcome]:
        name = yield from self.name(raw.append)
        given: list[str] = []

        def take(char: str) -> None:
            given.append(char)
            raw.append(char)

        if self.char != "(" or not (yield from self._in_brackets(take, lambda: given.append(PREFIX))):
            return Outcome.MALFORMED
        arguments = _read("".join(given)) if self.may_call(name) else None
        if arguments is None:
            return Outcome.OTHER
        raw.clear()
        self.call(name)
        self.arguments(arguments)
        self.open = False
        return Outcome.CALL

    def _in_brackets(self, take: Take, named: Callable[[], object]) -> Steps[bool]:
        """What stands in brackets, with them. False where they do not match.

        `named` is called ahead of what may be the name of an argument.
        """
        closing: list[str] = []
        begins = False
        while char := self.char:
            if begins and (char == "_" or char.isalpha()):
                named()
            begins = (char == "," and len(closing) == 1) or (char == "(" and not closing) or (begins and char in SPACE)
            if char in "'\"":
                if not (yield from self.string(take, char)):
                    return False
                continue
            if char in CLOSING:
                closing.append(CLOSING[char])
            elif char in ")]}" and closing.pop() != char:
                return False
            take(char)
            yield
            if not closing:
                return True
        return False


def _read(arguments: str) -> str | None:
    """Named arguments in brackets as a JSON object; None where they are something else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that mean nothing
            tree = ast.parse(f"f{arguments}", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Name):
            return None
        found = {keyword.arg.removeprefix(PREFIX): _value(keyword.value) for keyword in tree.keywords if keyword.arg}
        if len(found) < len(tree.keywords):
            return None
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return text


def _value(node: ast.expr) -> Any:
    """What an expression says. Raises `ValueError` where that is no JSON value."""
    match node:
        case ast.Constant((None | bool() | int() | float() | str()) as value):
            return value
        case ast.Name(name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(ast.USub(), ast.Constant((int() | float()) as value)):
            return -value
        case ast.List(items) | ast.Tuple(items):
            return [_value(item) for item in items]
        case ast.Dict(keys, values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no JSON value")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("no text")


FORMAT = Format("pythonic", Pythonic, JSON.layout)
