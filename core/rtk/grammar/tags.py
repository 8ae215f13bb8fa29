"""Structural tags: free text until a trigger is written, then a tag that begins so.

Three ways to write them are known: `{"type": "structural_tag", "structures": [...], "triggers": [...]}` with a `begin`,
a `schema` and an `end` for each structure; the same with `tags` in place of `structures`; and
`{"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags": [...]}}`, where a tag has a
`content` of `{"type": "json_schema", "json_schema": ...}` in place of a `schema`.
"""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from rtk.errors import RequestError
from rtk.grammar.choice import writable

MAX_TAGS = 256
MAX_LENGTH = 1024
"""Characters of a trigger, a begin or an end."""


class TagError(RequestError):
    """Structural tags that are malformed, or that cannot be told apart."""

    def __init__(self, problem: str):
        super().__init__(f"structural tags: {problem}", code="invalid_grammar")


class _Tag(NamedTuple):
    begin: str
    schema: object
    end: str


def normalise(value: object, schema: Callable[[object], str]) -> str:
    """A JSON text of `triggers` and `tags`, as `Spec.text` has it.

    `schema` answers the JSON text of a schema's normal form; it is called for one tag after the other. Raises
    `TagError`, which names the trigger or tag by its index, also for what `schema` refuses.
    """
    triggers, tags = _read(value)
    triggers = _without_longer(triggers, tags)
    written = []
    for i, tag in enumerate(tags):
        try:
            text = schema(tag.schema)
        except RequestError as error:
            raise TagError(f"tag {i}: {error}") from error
        written.append(f'{{"begin":{_json(tag.begin)},"schema":{text},"end":{_json(tag.end)}}}')
    return f'{{"triggers":{_json(triggers)},"tags":[{",".join(written)}]}}'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read(value: object) -> tuple[list[str], list[_Tag]]:
    """Triggers and tags, each well-formed."""
    outer = _object(value, "it")
    _type(outer, "it", "structural_tag")
    if "format" in outer:
        _keys(outer, "it", ("type", "format"), ("format",))
        inner = _object(outer["format"], "format")
        _type(inner, "format", "triggered_tags")
        _keys(inner, "format", ("type", "triggers", "tags", "at_least_one", "stop_after_first"), ("triggers", "tags"))
        for key in ("at_least_one", "stop_after_first"):
            if inner.get(key, False) is not False:
                raise TagError(f"{key} of format is not supported; leave it out")
        name, read = "tags", _with_content
    else:
        inner, name, read = outer, "structures" if "structures" in outer else "tags", _with_schema
        _keys(inner, "it", ("type", "triggers", name), ("triggers", name))
    tags = [read(tag, i) for i, tag in enumerate(_array(inner[name], name))]
    return [_text(trigger, f"trigger {i}") for i, trigger in enumerate(_array(inner["triggers"], "triggers"))], tags


def _with_schema(value: object, i: int) -> _Tag:
    where = f"tag {i}"
    tag = _object(value, where)
    _keys(tag, where, ("begin", "schema", "end"), ("begin", "schema", "end"))
    return _tag(tag, tag["schema"], where)


def _with_content(value: object, i: int) -> _Tag:
    where = f"tag {i}"
    tag = _object(value, where)
    _type(tag, where, "tag")
    _keys(tag, where, ("type", "begin", "content", "end"), ("begin", "content", "end"))
    content = _object(tag["content"], f"the content of {where}")
    _type(content, f"the content of {where}", "json_schema")
    _keys(content, f"the content of {where}", ("type", "json_schema"), ("json_schema",))
    return _tag(tag, content["json_schema"], where)


def _tag(tag: Mapping[str, object], schema: object, where: str) -> _Tag:
    begin, end = _text(tag["begin"], f"begin of {where}"), _text(tag["end"], f"end of {where}", empty=True)
    return _Tag(begin, schema, end)


def _without_longer(triggers: list[str], tags: list[_Tag]) -> list[str]:
    """The triggers without those that begin with another, which is written first. Each tag begins with one of them."""
    used: set[str] = set()
    for i, tag in enumerate(tags):
        found = {trigger for trigger in triggers if tag.begin.startswith(trigger)}
        if not found:
            raise TagError(f"tag {i} begins with no trigger: {_short(tag.begin)}")
        used |= found
        same = next(j for j, other in enumerate(tags) if other.begin == tag.begin)
        if same != i:
            raise TagError(f"tag {i} begins as tag {same} does: {_short(tag.begin)}")
    kept = [one for one in dict.fromkeys(triggers) if not any(one != o and one.startswith(o) for o in triggers)]
    for i, trigger in enumerate(triggers):
        if trigger not in used:
            raise TagError(f"no tag begins with trigger {i}: {_short(trigger)}; leave it out")
        inside = next(
            (j for j, other in enumerate(triggers) if other in trigger and not trigger.startswith(other)), None
        )
        if inside is not None and trigger in kept:
            raise TagError(f"trigger {i} has trigger {inside} in it: {_short(trigger)}")
    return kept


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TagError(f"{where} must be an object")
    return cast(Mapping[str, object], value)


def _array(value: object, where: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise TagError(f"{where} must be an array of one at least")
    if len(value) > MAX_TAGS:
        raise TagError(f"{where} has {len(value)} items, {MAX_TAGS} are allowed")
    return value


def _type(value: Mapping[str, object], where: str, expected: str) -> None:
    found = value.get("type", expected)
    if found != expected:
        raise TagError(
            f"the type of {where} must be '{expected}'" + (f", not {_short(found)}" if isinstance(found, str) else "")
        )


def _keys(value: Mapping[str, object], where: str, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise TagError(f"an unknown key {_short(str(key))} of {where}; known are {', '.join(known)}")
    for key in needed:
        if key not in value:
            raise TagError(f"{where} has no {key}")


def _text(value: object, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise TagError(f"{where} must be a text")
    if not value and not empty:
        raise TagError(f"{where} is empty")
    if not writable(value):
        raise TagError(f"{where} has half of a surrogate pair in it, which no text can have")
    if len(value) > MAX_LENGTH:
        raise TagError(f"{where} has {len(value)} characters, {MAX_LENGTH} are allowed")
    return value
