"""Shapes in the terms of the normal form: one pattern for a string, arrays of few values listed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rtk.grammar.regex import TooLargeError
from rtk.grammar.schema.book import Book
from rtk.grammar.schema.holds import admits
from rtk.grammar.schema.keys import settled_object, tightened
from rtk.grammar.schema.meet import tidy_arr
from rtk.grammar.schema.patterns import lengths, literal_of
from rtk.grammar.schema.shapes import Arr, Left, Obj, Shape, State, Str, enum_of
from rtk.grammar.schema.values import identity

MAX_LISTED = 256
"""Arrays that are written out one by one."""


def settle(book: Book, shape: Shape, texts_of: Callable[[State], Sequence[Shape]]) -> Shape | None:
    """A shape without what the normal form has no keyword for; None where nothing is of it."""
    if isinstance(shape, Str):
        return _string(book, shape)
    if isinstance(shape, Arr):
        return _array(shape)
    if isinstance(shape, Obj):
        return settled_object(book, shape, texts_of)
    return shape


def _string(book: Book, string: Str) -> Shape | None:
    low, high = string.low, string.high
    plain = replace(string, excluded=frozenset())
    excluded = frozenset(text for text in string.excluded if admits(book, plain, text))
    if not (string.wanted or string.unwanted or excluded):
        return Str(low, high, left=string.left, at=string.at) if high != 0 else _constant(book, string, "")
    if len(string.wanted) == 1 and not string.unwanted and not excluded:
        (only,) = string.wanted
        shortest, longest = lengths(only)
        if low <= shortest and (high is None or (longest is not None and longest <= high)):
            return _patterned(book, string, only)
    try:
        pattern = book.combined(string.wanted, string.unwanted, excluded, low, high)
    except TooLargeError:
        return _uncombined(string, excluded)
    if pattern is None:
        at = string.at.get("pattern", string.at.get("", "#"))
        book.clash("no text matches the pattern and all else that is asked of it", at, "pattern")
        return None
    return _patterned(book, string, pattern)


def _patterned(book: Book, string: Str, pattern: str) -> Shape | None:
    text = literal_of(pattern)
    if text is not None:
        return _constant(book, string, text)
    return Str(wanted=frozenset({pattern}), left=string.left, at=string.at)


def _constant(book: Book, string: Str, text: str) -> Shape | None:
    if not admits(book, string, text):
        return None
    return enum_of([text], {**string.at, "enum": string.at.get("pattern", string.at.get("", "#"))})


def _uncombined(string: Str, excluded: frozenset[str]) -> Str:
    """What cannot be one pattern is left over."""
    first, *more = sorted(string.wanted) or [""]
    pointer = string.at.get("pattern", string.at.get("", "#"))
    left = [*string.left]
    left += [Left("allOf", pointer, Str(wanted=frozenset({pattern}), at=string.at)) for pattern in more]
    left += [
        Left("not", pointer, Str(wanted=frozenset({pattern}), at=string.at)) for pattern in sorted(string.unwanted)
    ]
    others = enum_of(sorted(excluded), string.at)
    if others:
        left.append(Left("not", pointer, others))
    wanted = frozenset({first} if first else ())
    return Str(string.low, string.high, wanted, left=tuple(left), at=string.at)


def _array(arr: Arr) -> Arr:
    left = [part for part in arr.left if not (part.keyword == "uniqueItems" and arr.high is not None and arr.high <= 1)]
    return replace(arr, left=tuple(left))


def listed(book: Book, arr: Arr, values_of: Callable[[State], Sequence[Any] | None]) -> Shape | None:
    """Its arrays one by one, where something is left over and there are few; None where there are none at all."""
    if not arr.left:
        return arr
    unique = any(part.keyword == "uniqueItems" for part in arr.left)
    prefix = [values_of(state) for state in arr.prefix]
    items = values_of(arr.items)
    high = arr.high
    if unique and items is not None and None not in prefix:
        every = {identity(value) for values in (*prefix, items) for value in values or ()}
        high = len(every) if high is None else min(high, len(every))
        if arr.low > high:
            at = arr.at.get("uniqueItems", arr.at.get("", "#"))
            book.clash(f"at least {arr.low} items, all different, of {len(every)} values", at, "uniqueItems")
            return None
        arr = replace(arr, high=high)
    if high is None or None in prefix or (items is None and high > len(prefix)):
        return arr
    columns = [prefix[index] if index < len(prefix) else items for index in range(min(high, MAX_LISTED))]
    found: list[list[Any]] = []
    for value in _arrays([column or () for column in columns], unique):
        book.spend()
        if admits(book, arr, value):
            found.append(value)
        if len(found) > MAX_LISTED or value is _TOO_MANY:
            return arr
    found.sort(key=len)
    pointer = next(part.pointer for part in arr.left)
    one = enum_of(found, {**arr.at, "enum": pointer})
    if one is None:
        book.clash("no array is as it says", pointer, arr.left[0].keyword)
    return one


_TOO_MANY: list[Any] = []


def _arrays(columns: Sequence[Sequence[Any]], unique: bool) -> Iterator[list[Any]]:
    """All arrays of such items, up to as many; `_TOO_MANY` last where that takes too long."""
    tries = 16 * MAX_LISTED
    work: list[list[Any]] = [[]]
    while work:
        value = work.pop()
        yield value
        if len(value) < len(columns):
            seen = set(map(identity, value)) if unique else set()
            more = [[*value, item] for item in columns[len(value)] if identity(item) not in seen]
            tries -= len(more)
            if tries < 0:
                yield _TOO_MANY
                return
            work.extend(reversed(more))


def pruned(book: Book, shape: Shape, possible: Callable[[State], bool]) -> Shape | None:
    """A shape without the parts that nothing can be."""

    def live(state: State) -> State:
        return state if possible(state) else book.nothing(book.pointer(state) or "#")

    if isinstance(shape, Arr) and not all(map(possible, (*shape.prefix, shape.items))):
        return tidy_arr(book, replace(shape, prefix=tuple(map(live, shape.prefix)), items=live(shape.items)))
    if isinstance(shape, Obj) and not all(
        map(possible, (*shape.props.values(), *shape.patterns.values(), shape.additional))
    ):
        shape = replace(
            shape,
            props={name: live(state) for name, state in shape.props.items()},
            patterns={pattern: live(state) for pattern, state in shape.patterns.items()},
            additional=live(shape.additional),
        )
        return tightened(book, shape)
    return shape
