"""Whether a constant is as a schema says: asked of what a client wrote, not of what was made of it."""

from fractions import Fraction
from typing import Any

from rtk.grammar.schema.book import Book
from rtk.grammar.schema.formats import FORMATS
from rtk.grammar.schema.patterns import canonical, matches
from rtk.grammar.schema.place import Place
from rtk.grammar.schema.shapes import Arr, Enum, Left, Num, Obj, Shape, State, Str
from rtk.grammar.schema.values import distinct, identity, type_of


def holds(book: Book, state: State, value: Any) -> bool:
    """The value is in the state."""
    return all(_literal(book, number, value) == sign for number, sign in state)


def _literal(book: Book, number: int, value: Any) -> bool:
    what = book.sources[number].what
    if isinstance(what, bool):
        return what
    return _place(book, what, value) if isinstance(what, Place) else admits(book, what, value)


def admits(book: Book, shape: Shape, value: Any) -> bool:
    """The value, of any type, is of this shape."""
    book.spend()
    kind = type_of(value)
    if isinstance(shape, Enum):
        return identity(value) in shape.keys
    if not all(_left(book, left, value) for left in shape.left):
        return False
    if isinstance(shape, Num):
        return kind == "number" and _number(shape, value)
    if isinstance(shape, Str):
        return (
            kind == "string"
            and shape.low <= len(value)
            and (shape.high is None or len(value) <= shape.high)
            and value not in shape.excluded
            and all(matches(pattern, value) for pattern in shape.wanted)
            and not any(matches(pattern, value) for pattern in shape.unwanted)
        )
    if isinstance(shape, Arr):
        return (
            kind == "array"
            and shape.low <= len(value)
            and (shape.high is None or len(value) <= shape.high)
            and all(holds(book, shape.item(index), item) for index, item in enumerate(value))
        )
    return (
        kind == "object"
        and shape.low <= len(value)
        and (shape.high is None or len(value) <= shape.high)
        and all(name in value for name in shape.required)
        and all(holds(book, side(book, shape, name), item) for name, item in value.items())
        and (not shape.names or all(holds(book, shape.names, name) for name in value))
    )


def side(book: Book, shape: Obj, name: str) -> State:
    """What an object's property of this name is."""
    if name in shape.props:
        return shape.props[name]
    found = [state for pattern, state in shape.patterns.items() if matches(pattern, name)]
    return book.both(*found) if found else shape.additional


def _number(shape: Num, value: Any) -> bool:
    if shape.integer and not isinstance(value, int):
        return False
    if shape.low is not None and (value < shape.low or (shape.low_open and value == shape.low)):
        return False
    if shape.high is not None and (value > shape.high or (shape.high_open and value == shape.high)):
        return False
    return shape.step is None or Fraction(value) % shape.step == 0


def _left(book: Book, left: Left, value: Any) -> bool:
    if left.keyword == "uniqueItems":
        return distinct(value)
    if left.keyword == "contains":
        count = sum(holds(book, left.state, item) for item in value)
        return left.least <= count and (left.most is None or count <= left.most)
    if left.keyword == "propertyNames":
        return all(holds(book, left.state, name) for name in value)
    assert left.shape is not None
    return admits(book, left.shape, value) == (left.keyword == "allOf")


def _at(book: Book, pointer: str, value: Any) -> bool:
    place = book.places[pointer]
    return place if isinstance(place, bool) else _place(book, place, value)


def _place(book: Book, place: Place, value: Any) -> bool:
    with book.level(place.here):
        return _is_valid(book, place, value)


def _is_valid(book: Book, place: Place, value: Any) -> bool:
    words = place.keywords
    kind = type_of(value)
    kinds = {kind, "integer"} if kind == "number" and isinstance(value, int) else {kind}
    if "type" in words and kinds.isdisjoint(words["type"]):
        return False
    if any(key in words and identity(value) not in set(map(identity, words[key])) for key in ("enum", "constant")):
        return False
    own = {"number": _numbers, "string": _strings, "array": _arrays, "object": _objects}.get(kind)
    return (own is None or own(book, words, value)) and _applied(book, words, value)


def _numbers(book: Book, words: dict[str, Any], value: Any) -> bool:
    return (
        not ("minimum" in words and value < words["minimum"])
        and not ("maximum" in words and value > words["maximum"])
        and not ("exclusiveMinimum" in words and value <= words["exclusiveMinimum"])
        and not ("exclusiveMaximum" in words and value >= words["exclusiveMaximum"])
        and not ("multipleOf" in words and Fraction(value) % words["multipleOf"])
    )


def _within(words: dict[str, Any], what: str, count: int) -> bool:
    return bool(words.get(f"min{what}", 0) <= count <= words.get(f"max{what}", count))


def _strings(book: Book, words: dict[str, Any], value: str) -> bool:
    return (
        _within(words, "Length", len(value))
        and ("pattern" not in words or matches(words["pattern"], value))
        and ("format" not in words or matches(canonical(FORMATS[words["format"]]), value))
    )


def _arrays(book: Book, words: dict[str, Any], value: list[Any]) -> bool:
    prefix = words.get("prefixItems", ())
    rest = words.get("items")
    parts = [*prefix[: len(value)], *[rest] * (len(value) - len(prefix))]
    if not _within(words, "Items", len(value)) or (words.get("uniqueItems") and not distinct(value)):
        return False
    if not all(part is None or _at(book, part, item) for part, item in zip(parts, value, strict=True)):
        return False
    if "contains" not in words:
        return True
    count = sum(_at(book, words["contains"], item) for item in value)
    return bool(words.get("minContains", 1) <= count <= words.get("maxContains", count))


def _objects(book: Book, words: dict[str, Any], value: dict[str, Any]) -> bool:
    if not _within(words, "Properties", len(value)) or not all(name in value for name in words.get("required", ())):
        return False
    if any(name in value and not all(n in value for n in more) for name, more in _map(words, "dependentRequired")):
        return False
    for name, item in value.items():
        parts = [words["properties"][name]] if name in words.get("properties", ()) else []
        parts += [part for key, found in _map(words, "patternProperties") if matches(key, name) for part in found]
        if not parts and "additionalProperties" in words:
            parts = [words["additionalProperties"]]
        if not all(_at(book, part, item) for part in parts):
            return False
        if "propertyNames" in words and not _at(book, words["propertyNames"], name):
            return False
    return True


def _map(words: dict[str, Any], keyword: str) -> list[tuple[str, Any]]:
    return list(words.get(keyword, {}).items())


def _applied(book: Book, words: dict[str, Any], value: Any) -> bool:
    if "$ref" in words and not _at(book, words["$ref"], value):
        return False
    if not all(_at(book, part, value) for part in words.get("allOf", ())):
        return False
    if "anyOf" in words and not any(_at(book, part, value) for part in words["anyOf"]):
        return False
    if "oneOf" in words and sum(_at(book, part, value) for part in words["oneOf"]) != 1:
        return False
    if "not" in words and _at(book, words["not"], value):
        return False
    if "if" in words:
        then = words.get("then" if _at(book, words["if"], value) else "else")
        if then is not None and not _at(book, then, value):
            return False
    if isinstance(value, dict):
        return all(_at(book, part, value) for name, part in _map(words, "dependentSchemas") if name in value)
    return True
