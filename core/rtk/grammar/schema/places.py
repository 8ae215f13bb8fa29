"""The client's schema, checked for its form, as one record for each schema in it, in the terms of the latest draft."""

import difflib
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from rtk.errors import RequestError
from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.formats import FORMATS
from rtk.grammar.schema.keywords import (
    ANNOTATIONS,
    CONSTRAINTS,
    DRAFT_NAMES,
    DRAFTS,
    FORMS,
    KEYWORDS,
    LATEST,
    ROOT_ONLY,
)
from rtk.grammar.schema.patterns import canonical
from rtk.grammar.schema.place import Place, Places
from rtk.grammar.schema.unevaluated import work_out_unevaluated
from rtk.grammar.schema.values import Number, escaped, type_of

MAX_VALUE_DEPTH = 64
"""Levels of a constant."""

MAX_POINTERS = 1 << 24
"""Characters of the pointers of all schemas in a schema."""

MAX_NESTING = 64
"""Schemas that speak of the same value, one in the other: by references, allOf, anyOf, oneOf, not, if."""

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ANCHOR = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")


class Reader:
    """Makes places of a schema that was read."""

    def __init__(self, root: Any):
        self.places: Places = {}
        self._anchors: dict[str, str] = {}
        self._draft = LATEST
        self._id = ""
        if not isinstance(root, bool | dict):
            raise SchemaError(f"a schema is an object, true or false, and this is {_a(root)}")
        if isinstance(root, dict):
            self._dialect(root)
        self._root = root

    def read(self) -> Places:
        """Every schema in the schema, with its references resolved. None applies to itself without end."""
        work: list[tuple[Any, str]] = [(self._root, "#")]
        left = MAX_POINTERS
        while work:
            schema, pointer = work.pop()
            left -= len(pointer)
            if left < 0:
                raise SchemaError("names so long, and so deeply nested, that their pointers would be too large")
            if isinstance(schema, bool) and (self._draft >= 6 or pointer == "#" or _may_be_bool(pointer)):
                self.places[pointer] = schema
            elif isinstance(schema, dict):
                work.extend(reversed(self._place(schema, pointer)))
            else:
                raise SchemaError(f"a schema is an object, true or false, and this is {_a(schema)}", pointer)
        for place in self.places.values():
            if isinstance(place, Place) and "$ref" in place.keywords:
                place.keywords["$ref"] = self._resolve(place.keywords["$ref"], place.at("$ref"))
        self._check_ends()
        work_out_unevaluated(self.places)
        return self.places

    def _dialect(self, root: dict[str, Any]) -> None:
        name = root.get("$schema")
        if name is not None:
            bare = re.sub(r"^https?://|#$", "", name) if isinstance(name, str) else None
            if bare not in DRAFTS:
                known = ", ".join(DRAFTS)
                raise SchemaError(f"unknown $schema {name!r}; known: {known}", "#/$schema", "$schema")
            self._draft = DRAFTS[bare]
        keyword = "id" if self._draft == 4 else "$id"
        identity = root.get(keyword, "")
        if not isinstance(identity, str):
            raise SchemaError(f"{keyword} must be a string, not {_a(identity)}", f"#/{keyword}", keyword)
        self._id = identity.removesuffix("#")

    # --- one schema ---------------------------------------------------------------------------------------------------

    def _place(self, schema: dict[str, Any], pointer: str) -> list[tuple[Any, str]]:
        """Check a schema, and answer the schemas in it."""
        place = self.places[pointer] = Place(pointer)
        inside: list[tuple[Any, str]] = []
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS or keyword.startswith("x-") or (pointer == "#" and keyword in ROOT_ONLY):
                continue
            form = self._form(keyword, pointer)
            at = f"{pointer}/{escaped(keyword)}"
            if not _FORM_CHECKS[form](value):
                raise SchemaError(f"{keyword} must be {FORMS[form]}, not {_a(value)}", at, keyword)
            read = getattr(self, f"_read_{form.replace(' ', '_')}", None)
            place.keywords[keyword] = read(keyword, value, at, inside) if read else value
        self._translate(place)
        return inside

    def _form(self, keyword: str, pointer: str) -> str:
        at = f"{pointer}/{escaped(keyword)}"
        if keyword in ROOT_ONLY:
            raise SchemaError(f"{keyword} is taken at the root only", at, keyword)
        known = KEYWORDS.get(keyword)
        if known is None:
            near = difflib.get_close_matches(keyword, [*KEYWORDS, *ANNOTATIONS], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SchemaError(f"unknown keyword {keyword!r}{hint}", at, keyword)
        hint = f"; {known.hint}" if known.hint else ""
        if known.form == "refused":
            raise SchemaError(f"{keyword} is not supported{hint}", at, keyword)
        if not known.since <= self._draft <= known.until:
            raise SchemaError(f"{keyword} is no keyword of {DRAFT_NAMES[self._draft]}{hint}", at, keyword)
        return known.form

    def _read_schema(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> str:
        inside.append((value, at))
        return at

    def _read_schemas(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> list[str]:
        found = [f"{at}/{index}" for index in range(len(value))]
        inside.extend(zip(value, found, strict=True))
        return found

    def _read_schema_map(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> dict[str, str]:
        found = {name: f"{at}/{escaped(name)}" for name in value}
        inside.extend((value[name], part) for name, part in found.items())
        return found

    def _read_pattern_map(
        self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]
    ) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for pattern, part in self._read_schema_map(keyword, value, at, inside).items():
            name = self._read_pattern(keyword, pattern, part, inside)
            found[name] = (*found.get(name, ()), part)
        return found

    def _read_pattern(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> str:
        try:
            return canonical(value)
        except RequestError as error:
            raise SchemaError(f"{keyword}: {error}", at, keyword) from None

    def _read_format(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> str:
        if value not in FORMATS:
            known = f"known: {', '.join(FORMATS)}; leave it out, or say it with pattern"
            raise SchemaError(f"unknown format {value!r}; {known}", at, keyword)
        return str(value)

    def _read_items(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> Any:
        if not isinstance(value, list):
            return self._read_schema(keyword, value, at, inside)
        if self._draft == LATEST:
            problem = f"items must be a schema in {DRAFT_NAMES[LATEST]}; use prefixItems for an array of them"
            raise SchemaError(problem, at, keyword)
        return self._read_schemas(keyword, value, at, inside)

    def _read_dependencies(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> Any:
        schemas = {name: part for name, part in value.items() if not isinstance(part, list)}
        return (
            {name: part for name, part in value.items() if isinstance(part, list)},
            self._read_schema_map(keyword, schemas, at, inside),
        )

    def _read_bound(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> Any:
        if (type_of(value) == "boolean") != (self._draft == 4):
            other = "true or false" if self._draft == 4 else "a number"
            raise SchemaError(f"{keyword} must be {other} in {DRAFT_NAMES[self._draft]}, not {_a(value)}", at, keyword)
        return value

    def _read_anchor(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> str:
        if value in self._anchors:
            raise SchemaError(f"the anchor {value!r} is there twice", at, keyword)
        self._anchors[value] = at.rpartition("/")[0]
        return str(value)

    def _read_values(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> list[Any]:
        for item in value:
            self._read_value(keyword, item, at, inside)
        return list(value)

    def _read_value(self, keyword: str, value: Any, at: str, inside: list[tuple[Any, str]]) -> Any:
        level = [value]
        for _ in range(MAX_VALUE_DEPTH):
            level = [
                item
                for part in level
                if isinstance(part, list | dict)
                for item in (part.values() if isinstance(part, dict) else part)
            ]
            if not level:
                return value
        raise SchemaError(f"a value nested in more than {MAX_VALUE_DEPTH} levels", at, keyword)

    # --- what drafts mean ---------------------------------------------------------------------------------------------

    def _translate(self, place: Place) -> None:
        words = place.keywords
        if "$ref" in words and self._draft < 2019:
            beside = next((keyword for keyword in words if keyword in CONSTRAINTS), None)
            if beside:
                problem = (
                    f"{DRAFT_NAMES[self._draft]} ignores {beside} beside $ref; put the reference into an allOf,"
                    f" or name {DRAFT_NAMES[LATEST]} as the $schema"
                )
                raise SchemaError(problem, place.at(beside), beside)
        if isinstance(words.get("items"), list):
            words["prefixItems"] = words.pop("items")
            place.written["prefixItems"] = "items"
            if "additionalItems" in words:
                words["items"] = words["additionalItems"]
                place.written["items"] = "additionalItems"
        words.pop("additionalItems", None)
        if "dependencies" in words:
            words["dependentRequired"], words["dependentSchemas"] = words.pop("dependencies")
            place.written |= {"dependentRequired": "dependencies", "dependentSchemas": "dependencies"}
        for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if words.get(exclusive) is True:
                if plain not in words:
                    raise SchemaError(f"{exclusive} needs {plain} beside it", place.at(exclusive), exclusive)
                words[exclusive] = words.pop(plain)
                place.written[exclusive] = plain
            elif words.get(exclusive) is False:
                del words[exclusive]
        if "const" in words:
            value = words.pop("const")
            if "enum" in words:
                words["constant"] = [value]
                place.written["constant"] = "const"
            else:
                words["enum"] = [value]
                place.written["enum"] = "const"
        if isinstance(words.get("type"), str):
            words["type"] = [words["type"]]

    # --- references ---------------------------------------------------------------------------------------------------

    def _resolve(self, reference: str, at: str) -> str:
        base, _, fragment = reference.partition("#")
        if base and base != self._id:
            problem = f"the reference {reference!r} leads out of the schema, and none is fetched; put it into $defs"
            raise SchemaError(problem, at, "$ref")
        fragment = unquote(fragment, errors="surrogateescape")
        target = self._anchors.get(fragment, f"#{fragment}")
        if target not in self.places:
            raise SchemaError(f"the reference {reference!r} leads to no schema", at, "$ref")
        return target

    def _check_ends(self) -> None:
        """No schema applies to the same value again by way of itself, nor by too many steps."""
        depth: dict[str, int] = {}
        for start in self.places:
            work = [(start, False)]
            open_: set[str] = set()
            while work:
                pointer, done = work.pop()
                place = self.places[pointer]
                parts = place.inside() if isinstance(place, Place) else []
                if done:
                    open_.discard(pointer)
                    depth[pointer] = 1 + max((depth[part] for _, part in parts), default=0)
                    if depth[pointer] > MAX_NESTING:
                        problem = f"more than {MAX_NESTING} schemas in each other speak of the same value"
                        raise SchemaError(problem, pointer)
                elif pointer not in depth:
                    open_.add(pointer)
                    work.append((pointer, True))
                    assert isinstance(place, Place) or not parts
                    for keyword, part in parts:
                        if part in open_:
                            assert isinstance(place, Place)
                            problem = "the schema refers to itself with nothing in between, so it says nothing"
                            raise SchemaError(problem, place.at(keyword), keyword)
                        work.append((part, False))


def _may_be_bool(pointer: str) -> bool:
    """In draft-04 a schema is an object, but where more of something may be allowed or forbidden."""
    return pointer.rpartition("/")[2] in ("additionalProperties", "additionalItems")


def _a(value: Any) -> str:
    """What kind of value this is, for an error."""
    kind = type_of(value)
    return {"null": "null", "boolean": str(value).lower(), "array": "an array", "object": "an object"}.get(
        kind, f"{value!r}" if kind == "string" and len(value) <= 40 else f"a {kind}" if kind == "string" else f"{value}"
    )


def _count(value: Any) -> bool:
    return type_of(value) == "number" and isinstance(value, int) and value >= 0


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _number(value: Any) -> bool:
    return type_of(value) == "number"


def _positive(value: Any) -> bool:
    number: Number = value if _number(value) else 0
    return number > 0


_FORM_CHECKS: dict[str, Callable[[Any], bool]] = {
    "schema": lambda value: isinstance(value, dict | bool),
    "schemas": lambda value: isinstance(value, list) and bool(value),
    "schema map": lambda value: isinstance(value, dict),
    "pattern map": lambda value: isinstance(value, dict),
    "items": lambda value: isinstance(value, dict | bool | list),
    "dependencies": lambda value: (
        isinstance(value, dict)
        and all(_names(part) if isinstance(part, list) else isinstance(part, dict | bool) for part in value.values())
    ),
    "name map": lambda value: isinstance(value, dict) and all(map(_names, value.values())),
    "names": _names,
    "values": lambda value: isinstance(value, list),
    "type": lambda value: (
        (isinstance(value, str) and value in _TYPES)
        or (_names(value) and bool(value) and all(name in _TYPES for name in value))
    ),
    "count": _count,
    "number": _number,
    "bound": lambda value: type_of(value) in ("number", "boolean"),
    "positive": _positive,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "pattern": lambda value: isinstance(value, str),
    "format": lambda value: isinstance(value, str),
    "anchor": lambda value: isinstance(value, str) and _ANCHOR.fullmatch(value) is not None,
    "value": lambda value: True,
}
assert {*_FORM_CHECKS, "refused"} == set(FORMS)
