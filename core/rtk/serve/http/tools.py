"""The fields that say which tools a model may call, and whether it must: OpenAI's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rtk.errors import RequestError
from rtk.grammar.calls import KIND
from rtk.grammar.forms import AskedForm, check_options
from rtk.schedule.params import shown
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.chat import check_texts
from rtk.serve.http.fields import Ignored, not_supported
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.tools.choose import NAMES, tool_format
from rtk.serve.tools.layout import Format
from rtk.serve.tools.machine import Tool
from rtk.serve.tools.reader import Reader

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""Names: what every format can write."""

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_CHOICES = 'one of none, auto, required, {"type": "function", …}, {"type": "allowed_tools", …}'

Mode = Literal["none", "auto", "required"]
Beside = Literal["calls", "text", "schema"]
"""What an answer may be beside calls: nothing else, any text, a text of a schema."""


@dataclass(frozen=True, slots=True)
class AskedTools:
    """What a request says of tools."""

    shown: tuple[dict[str, Any], ...] = ()
    """For the chat template."""
    format: Format | None = None
    """How calls are written; None: nobody looks for calls."""
    tools: tuple[Tool, ...] = ()
    """Those that may be called."""
    mode: Mode = "none"
    most: int | None = None
    """Calls of one answer; None: any number."""
    whitespace: int | None = None
    verify: bool | None = None
    """Those of `AskedForm`."""

    @property
    def options(self) -> dict[str, Any]:
        """For the chat template."""
        return {"tools": list(self.shown)} if self.shown else {}

    def reader(self, *, either: bool = False) -> Reader | None:
        """What reads one answer; None where there can be no calls in it. `either`: see `form`."""
        return None if self.format is None else Reader(self.format, self.tools, self.most, either=either)

    def form(self, other: AskedForm | None) -> AskedForm | None:
        """What the answer must look like, given what else is asked for. Raises `RequestError` where both cannot be.

        Where it may be calls, and a schema is asked for, it is either calls or a text of the schema.
        """
        if self.format is None:
            return other
        forced = self.mode == "required"
        if other is None and not forced and not any(tool.strict for tool in self.tools):
            return None
        beside: Beside = "calls" if forced else "text" if other is None else "schema"
        value = _written(self.format, self.tools, self.most, beside)
        if other is not None and not forced:
            if other.kind != "json_schema" or not self.format.layout.trigger:
                raise RequestError(
                    f"{other.called}: where an answer may be calls of tools, it can have no other form than a JSON "
                    'Schema, and that only in formats with marks; leave one of them out, or send "tool_choice": "none"',
                    field=other.called,
                    code="tools_and_form",
                )
            value["otherwise"] = other.value
        return AskedForm(kind=KIND, value=value, field="tools", whitespace=self.whitespace, verify=self.verify)


def read_tools(values: Mapping[str, Any], ignored: Ignored, tokenizer: Tokenizer, parser: str) -> AskedTools:
    """What the fields in `values` ask for; `parser` is how the model writes calls, see `tool_format`."""
    shown_tools, tools = read_list(values, ignored)
    mode, tools = _choice(values.get("tool_choice"), tools)
    named = isinstance(values.get("tool_choice"), dict) and values["tool_choice"].get("type") == "function"
    most = 1 if named or not typed(values, "parallel_tool_calls", bool, True) else None
    if not tools or mode == "none":
        return AskedTools(shown_tools if tokenizer.knows_tools else ())
    _check_template(tokenizer)
    found = tool_format(tokenizer, parser)
    if found is None:
        why = "this server reads no calls" if parser == "none" else "the chat template does not say how it writes calls"
        raise RequestError(
            f"tools: {why} (serve.tool_parser, one of {', '.join(NAMES)}); leave tools out",
            field="tools",
            code="tools_not_supported",
        )
    return AskedTools(shown_tools, found, tools, mode, most, *check_options(values))


def read_flat_tools(values: Mapping[str, Any], ignored: Ignored, tokenizer: Tokenizer, parser: str) -> AskedTools:
    """The same of /v1/responses, where a function is no object of its own."""
    nested = {name: value for name, value in values.items() if name not in ("tools", "tool_choice")}
    if isinstance(tools := values.get("tools"), list):
        nested["tools"] = [_nested(tool) for tool in tools]
    elif tools is not None:
        nested["tools"] = tools
    choice = values.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = _nested(choice)
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        of = choice.get("tools")
        allowed = {**choice, "tools": [_nested(tool) for tool in of] if isinstance(of, list) else of}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
    nested["tool_choice"] = choice
    try:
        return read_tools(nested, ignored, tokenizer, parser)
    except RequestError as error:
        field = None if error.field is None else _flat(error.field)
        raise RequestError(_flat(str(error)), field=field, code=error.code, status=error.status) from error


def _nested(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _flat(text: str) -> str:
    """Places as the client has them."""
    text = re.sub(r"^(tools\[\d+\]|tool_choice(?:\.allowed_tools\.tools\[\d+\])?)\.function\b", r"\1", text)
    return re.sub(r"^tool_choice\.allowed_tools\b", "tool_choice", text)


def template_tools(values: Mapping[str, Any], ignored: Ignored, tokenizer: Tokenizer) -> dict[str, Any]:
    """The tools in `values` as an option of the chat template, where there are any."""
    shown_tools, _ = read_list(values, ignored)
    if shown_tools:
        _check_template(tokenizer)
    return AskedTools(shown_tools).options


def read_list(values: Mapping[str, Any], ignored: Ignored) -> tuple[tuple[dict[str, Any], ...], tuple[Tool, ...]]:
    """The tools, as templates get them, and as they may be called."""
    given = typed(values, "tools", list, [])
    if len(given) > MAX_TOOLS:
        raise RequestError(f"tools: {len(given)} tools; at most {MAX_TOOLS}", field="tools")
    read = [_tool(tool, f"tools[{i}]", ignored) for i, tool in enumerate(given)]
    places: dict[str, str] = {}
    for _, tool in read:
        if tool.name in places:
            problem = f"{tool.place}.name = {shown(tool.name)}: {places[tool.name]} has this name"
            raise RequestError(problem, field=f"{tool.place}.name")
        places[tool.name] = tool.place
    return tuple(one for one, _ in read), tuple(tool for _, tool in read)


def _tool(tool: Any, place: str, ignored: Ignored) -> tuple[dict[str, Any], Tool]:
    if not isinstance(tool, dict):
        raise must_be('an object such as {"type": "function", "function": {"name": "…"}}', place, tool)
    if tool.get("type", "function") != "function":
        raise not_supported(f"{place}: {shown(tool['type'])}", f"{place}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise must_be('an object with "name", "description" and "parameters"', f"{place}.function", function)
    for inside, known, where in (
        (tool, ("type", "function"), place),
        (function, ("name", "description", "parameters", "strict"), f"{place}.function"),
    ):
        for name in inside:
            if name not in known:
                ignored.unknown(f"{where}.", name, known)
    place = f"{place}.function"
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise must_be("1 to 128 of letters, digits and _ . : / -", f"{place}.name", name)
    typed(function, "description", str, "", prefix=f"{place}.")
    parameters = typed(function, "parameters", dict, None, prefix=f"{place}.")
    strict = typed(function, "strict", bool, False, prefix=f"{place}.")
    check_texts(function, place)
    told = {key: value for key, value in function.items() if key in ("name", "description", "parameters")}
    return {"type": "function", "function": told}, Tool(
        name, _NO_ARGUMENTS if parameters is None else parameters, strict, place
    )


def _choice(choice: Any, tools: tuple[Tool, ...]) -> tuple[Mode, tuple[Tool, ...]]:
    """Whether tools are called, and which of them may be."""
    if choice is None:
        return ("auto" if tools else "none"), tools
    place = "tool_choice"
    mode: Mode
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise must_be(_CHOICES, place, choice)
        mode = choice  # type: ignore[assignment]
    elif isinstance(choice, dict) and choice.get("type") == "function":
        tools, mode = (_named(choice, place, tools),), "required"
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        mode, tools = _allowed(choice.get("allowed_tools"), f"{place}.allowed_tools", tools)
    else:
        raise must_be(_CHOICES, place, choice)
    if mode == "required" and not tools:
        raise RequestError("tool_choice: there are no tools to call; send some in tools", field=place)
    return mode, tools


def _allowed(value: Any, place: str, tools: tuple[Tool, ...]) -> tuple[Mode, tuple[Tool, ...]]:
    if not isinstance(value, dict) or not isinstance(value.get("tools"), list) or not value["tools"]:
        raise must_be('an object with "mode" and "tools", of one at least', place, value)
    mode = value.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise must_be("auto or required", f"{place}.mode", mode)
    allowed = [_named(one, f"{place}.tools[{i}]", tools) for i, one in enumerate(value["tools"])]
    return mode, tuple(tool for tool in tools if tool in allowed)


def _named(value: Any, place: str, tools: tuple[Tool, ...]) -> Tool:
    """The tool that `{"type": "function", "function": {"name": …}}` names."""
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        names = ", ".join(tool.name for tool in tools[:8]) or "none"
        raise must_be(f"the name of one of tools, such as {names}", f"{place}.function.name", name)
    return found


def _check_template(tokenizer: Tokenizer) -> None:
    """Nobody would tell the model of its tools, and it could only guess."""
    if not tokenizer.knows_tools:
        raise RequestError(
            "tools: this model's chat template does not read tools, so the model would not see them; "
            "leave tools out, and describe them in a message",
            field="tools",
            code="tools_not_supported",
        )


def _written(form: Format, tools: tuple[Tool, ...], most: int | None, beside: Beside) -> dict[str, Any]:
    """Calls in this format as `rtk.grammar.calls` reads them, and what else an answer may be."""
    layout = form.layout
    value: dict[str, Any] = {
        "tags": [
            {
                "begin": layout.head_of(tool.name),
                "schema": tool.parameters,
                "end": layout.tail,
                "tool": tool.name,
                "strict": tool.strict,
            }
            for tool in tools
        ],
    }
    if most == 1:
        value["once"] = True
    if beside != "text" or layout.begin or not layout.trigger:  # else each call has a trigger of its own
        value["run"] = {"begin": layout.begin, "between": layout.between, "end": layout.end}
    if beside == "text" and layout.trigger:
        value["triggers"] = [layout.trigger]
    elif beside == "text":
        value["openers"] = list(layout.openers)
    return value
