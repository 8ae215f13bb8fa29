"""`unevaluatedProperties` and `unevaluatedItems`: what they apply to, found without a value to look at.

That is possible where only `$ref` and `allOf` lead to other schemas, since those apply to every valid value alike. Then
either is what `additionalProperties` or `items` would be, beside all that is said there.
"""

from dataclasses import dataclass, field

from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.place import TRUE, Place, Places

_OF_PROPERTIES = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("prefixItems", "items", "contains", "unevaluatedItems")


def work_out_unevaluated(places: Places) -> None:
    """Put a schema with what the two keywords mean into an `allOf` beside each."""
    places[TRUE] = True
    found = [place for place in places.values() if isinstance(place, Place)]
    seen = {keyword: [place for place in found if keyword in place.keywords] for keyword in _MEANT}
    meant = [(place, keyword, _MEANT[keyword](places, place)) for keyword, those in seen.items() for place in those]
    for place, keyword, words in meant:
        part = place.keywords.pop(keyword)
        if words is not None:
            key = f"{place.at(keyword)}/"  # no schema of the client's is there: it would be under an unknown keyword
            words["additionalProperties" if keyword == "unevaluatedProperties" else "items"] = part
            places[key] = Place(key, words, shown=place.at(keyword))
            place.keywords["allOf"] = [*place.keywords.get("allOf", ()), key]


@dataclass(slots=True)
class _Said:
    """What schemas say of parts of the same value."""

    names: dict[str, str] = field(default_factory=dict)
    patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    items: int = 0
    all: bool = False


def _properties(places: Places, place: Place) -> dict[str, object] | None:
    said = _Said()
    _collect(places, place, said, "unevaluatedProperties", _OF_PROPERTIES, place)
    return None if said.all else {"properties": said.names, "patternProperties": said.patterns}


def _items(places: Places, place: Place) -> dict[str, object] | None:
    said = _Said()
    _collect(places, place, said, "unevaluatedItems", _OF_ITEMS, place)
    return None if said.all else {"prefixItems": [TRUE] * said.items}


_MEANT = {"unevaluatedProperties": _properties, "unevaluatedItems": _items}


def _collect(places: Places, place: Place, said: _Said, keyword: str, speak: tuple[str, ...], root: Place) -> None:
    words = place.keywords
    if keyword == "unevaluatedProperties":
        said.names.update(dict.fromkeys(words.get("properties", ()), TRUE))
        said.patterns.update(dict.fromkeys(words.get("patternProperties", ()), (TRUE,)))
        said.all |= "additionalProperties" in words
    else:
        said.items = max(said.items, len(words.get("prefixItems", ())))
        said.all |= "items" in words
    said.all |= keyword in words and place is not root
    if "contains" in words and "contains" in speak:
        raise SchemaError(f"{keyword} is not supported beside contains", root.at(keyword), keyword)
    for how, part in place.inside():
        inner = places[part]
        if how == "not" or isinstance(inner, bool):
            continue
        if how in ("$ref", "allOf"):
            _collect(places, inner, said, keyword, speak, root)
        elif _speaks(places, inner, speak):
            problem = f"{keyword} is not supported where {how} says of which; say additionalProperties or items there"
            raise SchemaError(problem, root.at(keyword), keyword)


def _speaks(places: Places, place: Place, speak: tuple[str, ...]) -> bool:
    """Whether a schema, or one that it applies to the same value, has one of these keywords."""
    if any(keyword in place.keywords for keyword in speak):
        return True
    inner = (places[part] for how, part in place.inside() if how != "not")
    return any(_speaks(places, part, speak) for part in inner if isinstance(part, Place))
