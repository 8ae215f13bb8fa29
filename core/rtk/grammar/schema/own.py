"""What the keywords of one schema say themselves, schemas applied to the same value left aside; and the opposite."""

from collections.abc import Iterator
from typing import Any

from rtk.grammar.schema.book import Book
from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.formats import FORMATS, NARROWED
from rtk.grammar.schema.meet import filtered, meet, tidy_arr, tidy_num, tidy_obj, tidy_str
from rtk.grammar.schema.patterns import canonical, matches
from rtk.grammar.schema.place import Place
from rtk.grammar.schema.shapes import (
    ANYTHING,
    Arr,
    At,
    Left,
    Num,
    Obj,
    Shape,
    Shapes,
    State,
    Str,
    anything,
    enum_of,
    every,
)
from rtk.grammar.schema.values import TYPES, Number, identity, type_of, value_text

_NAMES = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
}


def own(book: Book, place: Place) -> Shapes:
    """What the schema's own keywords allow."""
    words = place.keywords
    at: dict[str, str] = {"": place.here}
    at.update((keyword, place.at(keyword)) for keyword in words)
    kinds = _kinds(words["type"]) if "type" in words else TYPES
    default = anything(at)
    found = {kind: default[kind] for kind in kinds}
    for kind, read in (("number", _num), ("string", _str), ("array", _arr), ("object", _obj)):
        if kind in found:
            shape = read(book, place, at)
            if shape is None:
                del found[kind]
            else:
                found[kind] = (shape,)
    for keyword in ("enum", "constant"):
        if keyword in words:
            found = _constants(book, words[keyword], found, {**at, "enum": place.at(keyword)})
    return found


def _kinds(types: list[str]) -> list[str]:
    return list(dict.fromkeys("number" if name == "integer" else name for name in types))


def _constants(book: Book, values: list[Any], among: Shapes, at: At) -> dict[str, tuple[Shape, ...]]:
    found: dict[str, tuple[Shape, ...]] = {}
    if not values:
        book.clash("an enum of no values", at["enum"], "enum")
    for kind in dict.fromkeys(map(type_of, values)):
        one = enum_of([value for value in values if type_of(value) == kind], at)
        assert one
        if kind not in among:
            first = value_text(one.values[0])
            others = " or ".join(among) or "nothing"
            at_enum = at["enum"]
            keyword = "const" if at_enum.endswith("/const") else "enum"
            shown = first if len(first) <= 40 else first[:40] + "…"
            book.clash(f"{shown} is a {kind}, and only {others} would do", at_enum, keyword)
            continue
        kept = one if every(kind, among[kind][0]) else filtered(book, one, among[kind][0])
        if kept is not None:
            found[kind] = (kept,)
    return found


def _bounds(words: dict[str, Any]) -> tuple[Number | None, bool, Number | None, bool]:
    low, high = words.get("minimum"), words.get("maximum")
    above, below = words.get("exclusiveMinimum"), words.get("exclusiveMaximum")
    low_open = above is not None and (low is None or above >= low)
    high_open = below is not None and (high is None or below <= high)
    return above if low_open else low, low_open, below if high_open else high, high_open


def _num(book: Book, place: Place, at: At) -> Shape | None:
    words = place.keywords
    types = words.get("type", ())
    low, low_open, high, high_open = _bounds(words)
    at = {
        **at,
        **({"minimum": place.at("exclusiveMinimum")} if low_open else {}),
        **({"maximum": place.at("exclusiveMaximum")} if high_open else {}),
    }
    integer = "integer" in types and "number" not in types
    return tidy_num(book, Num(integer, low, low_open, high, high_open, words.get("multipleOf"), (), at))


def _str(book: Book, place: Place, at: At) -> Shape | None:
    words = place.keywords
    wanted = {words["pattern"]} if "pattern" in words else set()
    if "format" in words:
        name = words["format"]
        wanted.add(canonical(FORMATS[name]))
        if name in NARROWED:
            book.narrowed[place.at("format")] = f"{name}: {NARROWED[name]}"
    if "pattern" not in words and wanted:
        at = {**at, "pattern": place.at("format")}
    return tidy_str(book, Str(words.get("minLength", 0), words.get("maxLength"), frozenset(wanted), at=at))


def _arr(book: Book, place: Place, at: At) -> Shape | None:
    words = place.keywords
    prefix = tuple(map(book.state, words.get("prefixItems", ())))
    items = book.state(words["items"]) if "items" in words else ANYTHING
    low, high = words.get("minItems", 0), words.get("maxItems")
    left: list[Left] = []
    if words.get("uniqueItems"):
        left.append(Left("uniqueItems", place.at("uniqueItems")))
    if "contains" in words:
        least, most = words.get("minContains", 1), words.get("maxContains")
        pointer = place.at("contains")
        if most is not None and most < least:
            book.clash(f"at least {least} items and at most {most} that the array contains", pointer, "contains")
            return None
        if most == 0:
            none = book.state(words["contains"], False)
            prefix, items = tuple(book.both(state, none) for state in prefix), book.both(items, none)
        elif least or most is not None:
            left.append(Left("contains", pointer, None, book.state(words["contains"]), least, most))
            low = max(low, least)
    return tidy_arr(book, Arr(prefix, items, low, high, tuple(left), at))


def _obj(book: Book, place: Place, at: At) -> Shape | None:
    words = place.keywords
    patterns = {key: book.both(*map(book.state, parts)) for key, parts in words.get("patternProperties", {}).items()}
    props = {}
    for name, part in words.get("properties", {}).items():
        also = [state for pattern, state in patterns.items() if matches(pattern, name)]
        props[name] = book.both(book.state(part), *also)
    return tidy_obj(
        book,
        Obj(
            props,
            tuple(words.get("required", ())),
            book.state(words["additionalProperties"]) if "additionalProperties" in words else ANYTHING,
            patterns,
            book.state(words["propertyNames"]) if "propertyNames" in words else ANYTHING,
            words.get("minProperties", 0),
            words.get("maxProperties"),
            (),
            at,
        ),
    )


# --- the opposite -----------------------------------------------------------------------------------------------------


def not_own(book: Book, place: Place) -> Shapes:
    """What the schema's own keywords do not allow."""
    at = {"": place.here}
    return book.join(*_opposites(book, place, at))


def _opposites(book: Book, place: Place, at: At) -> Iterator[Shapes]:
    words = place.keywords
    if "type" in words:
        kinds = _kinds(words["type"])
        yield {kind: shapes for kind, shapes in anything(at).items() if kind not in kinds}
        if "integer" in words["type"] and "number" not in words["type"]:
            yield {"number": (Num(left=(Left("not", place.at("type"), Num(integer=True, at=at)),), at=at),)}
    for keyword in ("enum", "constant"):
        if keyword in words:
            yield _without(book, words[keyword], at)
    for kind, read in (("number", _not_num), ("string", _not_str), ("array", _not_arr), ("object", _not_obj)):
        if any(keyword in words for keyword in _NAMES[kind]):
            shapes = tuple(shape for shape in read(book, place, at) if shape is not None)
            yield {kind: shapes} if shapes else {}


def _without(book: Book, values: list[Any], at: At) -> Shapes:
    """Everything but these values."""
    found = {**anything(at)}
    keys = set(map(identity, values))
    for kind, every_one in (("null", (None,)), ("boolean", (False, True))):
        rest = enum_of([value for value in every_one if identity(value) not in keys], at)
        if rest is None:
            del found[kind]
        else:
            found[kind] = (rest,)
    texts = frozenset(value for value in values if type_of(value) == "string")
    found["string"] = (Str(excluded=texts, at=at),)
    numbers = sorted({value for value in values if type_of(value) == "number"})
    book.spend(len(numbers))
    if numbers:
        gaps = zip([None, *numbers], [*numbers, None], strict=True)
        ranges = [tidy_num(book, Num(False, low, True, high, True, at=at)) for low, high in gaps]
        found["number"] = tuple(shape for shape in ranges if shape is not None)
    for kind in ("array", "object"):
        one = enum_of([value for value in values if type_of(value) == kind], at)
        if one is not None:
            left = (Left("not", at[""], one),)
            found[kind] = (Arr(left=left, at=at),) if kind == "array" else (Obj(left=left, at=at),)
    return found


def _not_num(book: Book, place: Place, at: At) -> Iterator[Shape | None]:
    words = place.keywords
    low, low_open, high, high_open = _bounds(words)
    if low is not None:
        keyword = "exclusiveMinimum" if low_open else "minimum"
        yield Num(high=low, high_open=not low_open, at={**at, "maximum": place.at(keyword)})
    if high is not None:
        keyword = "exclusiveMaximum" if high_open else "maximum"
        yield Num(low=high, low_open=not high_open, at={**at, "minimum": place.at(keyword)})
    if "multipleOf" in words:
        inner = tidy_num(book, Num(step=words["multipleOf"], at=at))
        yield Num(left=(Left("not", place.at("multipleOf"), inner),), at=at)


def _not_str(book: Book, place: Place, at: At) -> Iterator[Shape | None]:
    words = place.keywords
    if words.get("minLength"):
        yield Str(high=words["minLength"] - 1, at={**at, "maxLength": place.at("minLength")})
    if "maxLength" in words:
        yield Str(low=words["maxLength"] + 1, at={**at, "minLength": place.at("maxLength")})
    for keyword in ("pattern", "format"):
        if keyword in words:
            pattern = words["pattern"] if keyword == "pattern" else canonical(FORMATS[words["format"]])
            if keyword == "format" and words["format"] in NARROWED:
                # The opposite of less than the format would be more than its opposite.
                problem = f"the opposite of the format {words['format']!r} is not supported: it is not known exactly"
                raise SchemaError(problem, place.at("format"), "format")
            yield Str(unwanted=frozenset({pattern}), at={**at, "pattern": place.at(keyword)})


def _not_arr(book: Book, place: Place, at: At) -> Iterator[Shape | None]:
    words = place.keywords
    if words.get("minItems"):
        yield Arr(high=words["minItems"] - 1, at={**at, "maxItems": place.at("minItems")})
    if "maxItems" in words:
        yield Arr(low=words["maxItems"] + 1, at={**at, "minItems": place.at("maxItems")})
    prefix = words.get("prefixItems", ())
    for index, part in enumerate(prefix):
        yield tidy_arr(book, Arr((*[ANYTHING] * index, book.state(part, False)), low=index + 1, at=at))
    if "items" in words and book.state(words["items"]):
        items = book.state(words["items"])
        if book.is_nothing(items):
            yield Arr(low=len(prefix) + 1, at=at)
        else:
            inner = Arr((ANYTHING,) * len(prefix), items, at={**at, "items": place.at("items")})
            yield Arr(low=len(prefix) + 1, left=(Left("not", place.at("items"), inner),), at=at)
    if words.get("uniqueItems"):
        yield Arr(low=2, left=(Left("not", place.at("uniqueItems"), _unique(place)),), at=at)
    if "contains" in words:
        least, most = words.get("minContains", 1), words.get("maxContains")
        pointer, state = place.at("contains"), book.state(words["contains"])
        if least == 1:
            yield tidy_arr(book, Arr(items=book.state(words["contains"], False), at=at))
        elif least:
            yield Arr(left=(Left("contains", pointer, None, state, 0, least - 1),), at=at)
        if most is not None:
            yield Arr(low=most + 1, left=(Left("contains", pointer, None, state, most + 1, None),), at=at)


def _unique(place: Place) -> Arr:
    pointer = place.at("uniqueItems")
    return Arr(left=(Left("uniqueItems", pointer),), at={"": place.here})


def has(name: str, state: State, at: At) -> Obj:
    """An object with this property."""
    return Obj({name: state}, (name,), at=at)


def _not_obj(book: Book, place: Place, at: At) -> Iterator[Shape | None]:
    words = place.keywords
    if words.get("minProperties"):
        yield Obj(high=words["minProperties"] - 1, at={**at, "maxProperties": place.at("minProperties")})
    if "maxProperties" in words:
        yield Obj(low=words["maxProperties"] + 1, at={**at, "minProperties": place.at("maxProperties")})
    for name in words.get("required", ()):
        yield lacks(book, name, place.at("required"), at)
    for name, part in words.get("properties", {}).items():
        yield tidy_obj(book, has(name, book.state(part, False), at))
    patterns = {key: book.both(*map(book.state, parts)) for key, parts in words.get("patternProperties", {}).items()}
    patterns = {key: state for key, state in patterns.items() if state}
    additional = book.state(words["additionalProperties"]) if "additionalProperties" in words else ANYTHING
    if patterns or additional:
        keyword = "additionalProperties" if additional else "patternProperties"
        every = {**dict.fromkeys(words.get("patternProperties", ()), ANYTHING), **patterns}
        props = {
            name: book.both(*(state for pattern, state in every.items() if matches(pattern, name)))
            for name in words.get("properties", {})
        }
        inner = Obj(props, (), additional, every if additional else patterns, at={**at, keyword: place.at(keyword)})
        yield Obj(low=1, left=(Left("not", place.at(keyword), inner),), at=at)
    if "propertyNames" in words and book.state(words["propertyNames"]):
        inner = Obj(names=book.state(words["propertyNames"]), at={**at, "propertyNames": place.at("propertyNames")})
        yield Obj(low=1, left=(Left("not", place.at("propertyNames"), inner),), at=at)


def lacks(book: Book, name: str, pointer: str, at: At) -> Obj:
    """An object without this property."""
    return Obj({name: book.nothing(pointer)}, at=at)


def with_dependencies(book: Book, place: Place, found: Shapes) -> Shapes:
    """What `found` allows, where properties that come with others do."""
    for name, more in place.keywords.get("dependentRequired", {}).items():
        pointer = place.at("dependentRequired")
        at = {"": place.here, "required": pointer}
        together = tidy_obj(book, Obj(required=(name, *(other for other in more if other != name)), at=at))
        assert together
        either = {**anything(at), "object": (lacks(book, name, pointer, at), together)}
        if more:
            found = meet(book, found, either)
    return found


def without_dependencies(book: Book, place: Place) -> Iterator[Shapes]:
    """Where one of them does not come along."""
    for name, more in place.keywords.get("dependentRequired", {}).items():
        pointer = place.at("dependentRequired")
        at = {"": place.here, "required": pointer}
        for other in more:
            if other != name:
                yield {"object": (Obj({name: ANYTHING, other: book.nothing(pointer)}, (name,), at=at),)}
