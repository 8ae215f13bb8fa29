"""Calls of tools as structural tags, in which each tool's arguments are valid under its schema.

What is asked for has `tags`, each with a `begin`, a `schema`, an `end`, the `tool` that it calls, and whether it is
`strict`; how they stand together, and what else an answer may be, is said as in `Spec.text` of structural tags. A
strict schema is kept, or the request refused. Of the others so much is kept as can be: where a schema is more than any
backend can do, the tool's arguments are any JSON object, and the reasons say so.
"""

import json
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from rtk.errors import RequestError
from rtk.grammar.schema import Normal
from rtk.plugin.grammar import Judgement

KIND = "tool_calls"
_ANY = {"type": "object"}


def parsed(text: str) -> Any:
    """What is asked for, as it came here. Raises `RequestError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise RequestError("a schema is nested too deeply", code="invalid_grammar") from None


class ReadCalls(NamedTuple):
    """Calls in normal form."""

    text: str
    """As `Spec.text` has it."""
    loosened: tuple[str, ...]
    """What may come that a schema does not allow."""
    schemas: tuple[Normal, ...]
    tools: tuple[str, ...]
    """Whose parameters those are."""
    otherwise: Normal | None
    """What an answer is that is no calls."""


def read(value: Any, loose: dict[int, str], normalise: Callable[[object], Normal]) -> ReadCalls:
    """Calls in normal form. `loose`: tags whose schemas are not kept, and why; gets those that cannot be read.

    Raises `RequestError`, which names the tool.
    """
    tags, tools = value["tags"], tuple(tag["tool"] for tag in value["tags"])
    schemas: list[Normal] = []
    loosened: list[str] = []
    for i, (tag, tool) in enumerate(zip(tags, tools, strict=True)):
        try:
            normal = normalise(_ANY if i in loose else _of_objects(tag["schema"]))
        except RequestError as error:
            if tag["strict"]:
                raise RequestError(f"the parameters of tool '{tool}': {error}", code=error.code) from error
            loose[i] = str(error)
            normal = normalise(_ANY)
        if i in loose:
            loosened.append(f"the arguments of tool '{tool}' may be any object: {loose[i]}")
        elif normal.open_keys and tag["strict"]:
            raise _open_keys(normal, f"in the parameters of tool '{tool}', which is strict")
        elif normal.open_keys:
            loosened.append(f"keys that are not named may come twice in the arguments of tool '{tool}'")
        schemas.append(normal)
    written = [
        f'{{"begin":{_json(tag["begin"])},"schema":{normal.text},"end":{_json(tag["end"])}}}'
        for tag, normal in zip(tags, schemas, strict=True)
    ]
    otherwise = normalise(value["otherwise"]) if "otherwise" in value else None
    if otherwise is not None and otherwise.open_keys:
        raise _open_keys(otherwise, "in the schema of answers that are no calls")
    others = [f"{_json(key)}:{_json(one)}" for key, one in value.items() if key not in ("tags", "otherwise")]
    others += [f'"otherwise":{otherwise.text}'] if otherwise else []
    text = ",".join([*others, '"tags":[' + ",".join(written) + "]"])
    return ReadCalls("{" + text + "}", tuple(loosened), tuple(schemas), tools, otherwise)


def given_up(value: Any, refused: Collection[Judgement], loose: Collection[int]) -> tuple[Judgement, list[int]]:
    """Which schemas to give up where all backends refuse, and for which of their judgements; none if all are strict.

    Those of which one backend alone complains; else whatever may be.
    """
    free = {i for i, tag in enumerate(value["tags"]) if not tag["strict"] and i not in loose}
    for judged in refused:
        blamed = {_tag_of(reason.at) for reason in judged.reasons}
        if blamed <= free:
            return judged, sorted(blamed)
    return next(iter(refused), Judgement.refused()), sorted(free)


def _tag_of(at: str) -> int:
    """The tag that a pointer leads into; -1 for none."""
    return int(at.split("/")[2]) if at.startswith("#/tags/") else -1


def _of_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of arguments, which are objects, whether it says so or not."""
    given = schema.get("type", "object")
    if given != "object" and not (isinstance(given, list) and "object" in given):
        raise RequestError("its type is not object", code="invalid_grammar")
    return {**schema, "type": "object"}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _open_keys(normal: Normal, where: str) -> RequestError:
    """The refusal of objects whose keys nobody keeps apart."""
    problem = 'an object may have keys that are not named, and a key twice; set "additionalProperties": false'
    return RequestError(f"{problem}, at {_open_place(normal)} {where}", code="invalid_grammar")


def _open_place(normal: Normal) -> str:
    """Where in the client's schema an object is written that may have other keys than those it names."""
    left: list[tuple[Any, str]] = [(json.loads(normal.text), "#")]
    while left:
        schema, at = left.pop()
        if isinstance(schema, dict):
            names = "propertyNames" in schema or "patternProperties" in schema
            if schema.get("type") == "object" and (names or schema.get("additionalProperties") is not False):
                return normal.origin(at)
            inside = [(key.replace("~", "~0").replace("/", "~1"), one) for key, one in schema.items() if key != "enum"]
        else:
            inside = [(str(i), one) for i, one in enumerate(schema)] if isinstance(schema, list) else []
        left += [(one, f"{at}/{step}") for step, one in reversed(inside)]
    return "#"
