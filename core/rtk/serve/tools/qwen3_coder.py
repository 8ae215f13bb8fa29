"""`<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`, of Qwen 3 Coder, Qwen 3.5 and others.

Values are texts; which type they are of, the tool's schema says. A call that a grammar forces is written as in
`hermes`, which is read here too: in this format a grammar could promise nothing about a text with marks in it.
"""

import json
from typing import Any

from rtk.serve.tools import hermes
from rtk.serve.tools.layout import Format
from rtk.serve.tools.machine import Outcome, Steps, Tool

FUNCTION, PARAMETER = "<function=", "<parameter="
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
"""As models write some where there can be no text."""
ENDS = {FUNCTION: "</function>", PARAMETER: "</parameter>"}


class Qwen3Coder(hermes.Hermes):
    """As `Hermes`, with calls of both kinds between the marks."""

    def body(self, raw: list[str]) -> Steps[Outcome]:
        if self.char == "{":
            return (yield from super().body(raw))
        if not (yield from self.literal(FUNCTION, raw.append)):
            return Outcome.MALFORMED
        name = yield from self.name(raw.append)
        if not ((yield from self.literal(">", raw.append)) and self.may_call(name)):
            return Outcome.MALFORMED
        raw.clear()
        self.call(name)
        yield from self._parameters(self.tools[name])
        return Outcome.CALL

    def _parameters(self, tool: Tool) -> Steps[None]:
        """Up to the end of the function. What stands between parameters is content, and follows the call."""
        begin = "{"
        between: list[str] = []
        ends = (PARAMETER, ENDS[FUNCTION], hermes.END)
        while (mark := (yield from self.until(*ends, take=between.append))) == PARAMETER:
            key: list[str] = []
            value: list[str] = []
            yield from self.until(">", take=key.append)
            whole = yield from self.until(ENDS[PARAMETER], take=value.append)
            name = "".join(key)
            text = _value("".join(value), tool.parameters.get("properties"), name)
            if not whole:  # nor is the text
                text = text[:-1] if text[0] == '"' else text
            self.arguments(f"{begin}{json.dumps(name, ensure_ascii=False)}: {text}")
            begin = ", "
        if mark:
            self.arguments("{}" if begin == "{" else "}")
            self.open = False
        self.text("".join(between))


def _value(text: str, properties: Any, name: str) -> str:
    """A value as JSON: as it is written where that is JSON of a type that the schema has there, else as a text."""
    text = text.removeprefix("\n").removesuffix("\n")
    types = _types(properties.get(name)) if isinstance(properties, dict) else TYPES
    if types != {"string"}:
        written = text.strip() if "string" in types else CONSTANTS.get(text.strip(), text.strip())
        try:
            if _type(json.loads(written, parse_constant=_no_constant)) in types or "string" not in types:
                return written
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any) -> frozenset[str]:
    """The types of JSON that a schema has; all where it does not say so in a simple way."""
    branches = schema.get("anyOf", schema.get("oneOf", [schema])) if isinstance(schema, dict) else []
    named: set[str] = set()
    for branch in branches if isinstance(branches, list) else []:
        if not isinstance(branch, dict):
            return TYPES
        one = branch.get("type")
        if isinstance(values := branch.get("enum"), list):
            named |= {_type(value) for value in values}
        elif "const" in branch:
            named.add(_type(branch["const"]))
        elif isinstance(one, str | list):
            named |= {one} if isinstance(one, str) else {str(kind) for kind in one}
        else:
            return TYPES
    return frozenset(named | {"integer"} if "number" in named else named) & TYPES or TYPES


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "integer" if isinstance(value, int) or value.is_integer() else "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _no_constant(name: str) -> None:
    raise ValueError(name)


FORMAT = Format("qwen3_coder", Qwen3Coder, hermes.LAYOUT)
