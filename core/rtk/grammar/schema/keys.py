"""The keys of objects: names, patterns for names and schemas for names, in the terms of the normal form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rtk.grammar.regex import TooLargeError
from rtk.grammar.schema.book import Book
from rtk.grammar.schema.holds import holds, side
from rtk.grammar.schema.meet import tidy_obj
from rtk.grammar.schema.patterns import literal_of, matches, of_length
from rtk.grammar.schema.shapes import ANYTHING, Enum, Left, Obj, Shape, State, Str

MAX_LISTED = 256
"""Names that are written out one by one."""
MAX_PATTERNS = 8
"""Patterns that are kept apart from each other."""


def settled_object(book: Book, obj: Obj, texts_of: Callable[[State], Sequence[Shape]]) -> Obj | None:
    props, patterns = {**obj.props}, {**obj.patterns}
    for pattern in obj.patterns:
        name = literal_of(pattern)
        if name is not None:
            props.setdefault(name, side(book, obj, name))
            del patterns[pattern]
    settled: Obj | None = replace(obj, props=props, patterns=patterns)
    if obj.names and settled:
        settled = _named(book, settled, texts_of)
    if settled:
        settled = tidy_obj(book, settled)
    settled = tightened(book, settled) if settled else None
    if settled and settled.patterns:
        settled = replace(settled, patterns=_apart(book, settled.patterns, settled.props))
    return settled


def _named(book: Book, obj: Obj, texts_of: Callable[[State], Sequence[Shape]]) -> Obj:
    """Without a schema for names, where properties and patterns say the same."""
    pointer = obj.at.get("propertyNames", obj.at.get("", "#"))
    nothing = book.nothing(pointer)
    props = {name: state if holds(book, obj.names, name) else nothing for name, state in obj.props.items()}
    obj = replace(obj, props=props)
    if book.is_nothing(obj.additional) and not obj.patterns:
        return replace(obj, names=ANYTHING)
    texts = texts_of(obj.names)
    if len(texts) == 1 and texts[0] == Str():
        return replace(obj, names=ANYTHING)
    if all(isinstance(shape, Enum) for shape in texts):
        names = [name for shape in texts if isinstance(shape, Enum) for name in shape.values]
        if len(names) <= MAX_LISTED:
            found = {name: side(book, obj, name) for name in names if name not in props}
            return replace(obj, props={**props, **found}, additional=nothing, patterns={}, names=ANYTHING)
    if len(texts) == 1:
        try:
            return _by_pattern(book, obj, texts[0], pointer)
        except TooLargeError:
            pass
    return replace(obj, names=ANYTHING, left=(*obj.left, Left("propertyNames", pointer, None, obj.names)))


def _by_pattern(book: Book, obj: Obj, text: Shape, pointer: str) -> Obj:
    """What names match, as patterns. Raises `TooLargeError`."""
    if not isinstance(text, Str) or text.left:
        raise TooLargeError("no pattern")
    nothing = book.nothing(pointer)
    names = next(iter(text.wanted)) if text.wanted else of_length(text.low, text.high)
    if text.wanted and (text.low, text.high) != (0, None):
        raise TooLargeError("no pattern")
    patterns = {**obj.patterns}
    for pattern in obj.patterns:
        other = book.combined([pattern], [names])
        if other is not None:
            patterns[other] = nothing
    if not book.is_nothing(obj.additional):
        rest = book.combined([names], obj.patterns, [name for name in obj.props if matches(names, name)])
        if rest is not None:
            patterns[rest] = book.both(obj.additional, patterns.get(rest, ANYTHING))
    at = {**obj.at, "additionalProperties": pointer}
    return replace(obj, patterns=patterns, additional=nothing, names=ANYTHING, at=at)


def _apart(book: Book, patterns: Mapping[str, State], props: Mapping[str, State]) -> Mapping[str, State]:
    """Patterns of which no two match the same name, nor one that of a property, if these are not too many."""
    found: list[tuple[str, State]] = []
    try:
        for pattern, state in patterns.items():
            fresh: str | None = pattern
            named = [name for name in props if matches(pattern, name)]
            if named:
                fresh = book.combined([pattern], excluded=named)
            for index, (other, known) in enumerate(list(found)):
                if fresh is None:
                    break
                if book.overlap(other, fresh):
                    both = book.combined([other, fresh])
                    assert both
                    found.append((both, book.both(known, state)))
                    found[index] = (book.combined([other], [fresh]) or "", known)
                    fresh = book.combined([fresh], [other])
            if fresh is not None:
                found.append((fresh, state))
            found = [(pattern, state) for pattern, state in found if pattern]
            if len(found) > MAX_PATTERNS:
                return patterns
    except TooLargeError:
        return patterns
    return dict(found)


def tightened(book: Book, obj: Obj) -> Obj | None:
    """Bounds on the number of properties left out where they mean nothing, or said by what may be there."""
    low, high, required, props = obj.low, obj.high, obj.required, obj.props
    if high is not None and high == len(required):
        at = {**obj.at, "additionalProperties": obj.at.get("maxProperties", obj.at.get("", "#"))}
        nothing = book.nothing(at["additionalProperties"])
        props = {name: state for name, state in props.items() if name in required}
        return replace(obj, props=props, additional=nothing, patterns={}, low=0, high=None, at=at)
    if low <= len(required):
        low = 0
    if book.is_nothing(obj.additional):
        patterns = {} if all(map(book.is_nothing, obj.patterns.values())) else obj.patterns
        props = {
            name: state
            for name, state in props.items()
            if not book.is_nothing(state) or any(matches(pattern, name) for pattern in patterns)
        }
        if not patterns:
            if high is not None and high >= len(props):
                high = None
            if low > len(props):
                at_low = obj.at.get("minProperties", obj.at.get("", "#"))
                problem = f"at least {low} properties, and only {len(props)} are allowed"
                book.clash(problem, at_low, "minProperties")
                return None
            if low == len(props):
                low, required = 0, (*required, *(name for name in props if name not in required))
        return replace(obj, props=props, patterns=patterns, required=required, low=low, high=high)
    if not obj.additional:
        patterns = {pattern: state for pattern, state in obj.patterns.items() if state}
        return replace(obj, patterns=patterns, low=low)
    return replace(obj, low=low)
