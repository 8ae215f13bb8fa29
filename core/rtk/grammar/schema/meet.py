"""What two schemas allow together."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, lcm

from rtk.grammar.regex import TooLargeError
from rtk.grammar.schema.book import Book
from rtk.grammar.schema.holds import admits, side
from rtk.grammar.schema.patterns import matches
from rtk.grammar.schema.shapes import (
    ANYTHING,
    COMPARISONS,
    Arr,
    At,
    Enum,
    Left,
    Num,
    Obj,
    Shape,
    Shapes,
    State,
    Str,
    enum_of,
    every,
)
from rtk.grammar.schema.values import TYPES, Number, last_step, number_text, tidy_number, value_text


def meet(book: Book, *parts: Shapes) -> Shapes:
    """What all of them allow."""
    found = parts[0]
    for part in parts[1:]:
        found = _meet(book, found, part)
    return found


def _meet(book: Book, a: Shapes, b: Shapes) -> Shapes:
    found: dict[str, tuple[Shape, ...]] = {}
    for kind in [kind for kind in (b if len(a) == len(TYPES) else a) if kind in a and kind in b]:
        shapes: list[Shape] = []
        for first in a[kind]:
            for second in b[kind]:
                shape = meet_shapes(book, kind, first, second)
                if shape is not None and shape not in shapes:
                    shapes.append(shape)
                book.spend(len(shapes) // COMPARISONS)
        if shapes:
            found[kind] = tuple(shapes)
    if a and b and not any(kind in b for kind in a):
        at = next(iter(b.values()))[0].at
        pointer = at.get("type", at.get("", "#"))
        kinds, others = " or ".join(a), " or ".join(b)
        book.clash(f"one part asks for {kinds}, another for {others}", pointer, last_step(pointer))
    return found


def meet_shapes(book: Book, kind: str, a: Shape, b: Shape) -> Shape | None:
    """What both of two shapes of a type are; None for nothing."""
    book.spend()
    for all_, other in ((a, b), (b, a)):
        if every(kind, all_):
            named = "type" in all_.at and "type" not in other.at
            return replace(other, at={**other.at, "type": all_.at["type"]}) if named else other
    if isinstance(a, Enum) or isinstance(b, Enum):
        one, other = (a, b) if isinstance(a, Enum) else (b, a)
        assert isinstance(one, Enum)
        return filtered(book, one, other)
    if isinstance(a, Num) and isinstance(b, Num):
        return _numbers(book, a, b)
    if isinstance(a, Str) and isinstance(b, Str):
        return _strings(book, a, b)
    if isinstance(a, Arr) and isinstance(b, Arr):
        return _arrays(book, a, b)
    assert isinstance(a, Obj) and isinstance(b, Obj)
    return _objects(book, a, b)


def filtered(book: Book, one: Enum, other: Shape) -> Enum | None:
    """The constants that are of the other shape too."""
    found = enum_of([value for value in one.values if admits(book, other, value)], one.at)
    if found is None:
        first = value_text(one.values[0])
        shown = first if len(first) <= 40 else first[:40] + "…"
        many = f"none of the {len(one.values)} values is" if len(one.values) > 1 else f"{shown} is not"
        at = one.at.get("enum", one.at.get("", "#"))
        book.clash(f"{many} as the schema says besides", at, "const" if at.endswith("/const") else "enum")
    return found


def _at(a: At, b: At, **better: bool) -> At:
    """Where the parts of a merged shape were written; `better` names those that come from the second."""
    return {**b, **a, **{keyword: b[keyword] for keyword, second in better.items() if second and keyword in b}}


def _left(a: tuple[Left, ...], b: tuple[Left, ...]) -> tuple[Left, ...]:
    return (*a, *(left for left in b if left not in a))


# --- numbers ----------------------------------------------------------------------------------------------------------


def _numbers(book: Book, a: Num, b: Num) -> Shape | None:
    low_b = b.low is not None and (a.low is None or (b.low, b.low_open) > (a.low, a.low_open))
    high_b = b.high is not None and (a.high is None or (b.high, not b.high_open) < (a.high, not a.high_open))
    low, high = (b if low_b else a), (b if high_b else a)
    return tidy_num(
        book,
        Num(
            a.integer or b.integer,
            low.low,
            low.low_open,
            high.high,
            high.high_open,
            common_multiple(a.step, b.step),
            _left(a.left, b.left),
            _at(a.at, b.at, minimum=low_b, maximum=high_b),
        ),
    )


def common_multiple(a: Number | None, b: Number | None) -> Number | None:
    """The numbers that are multiples of both are the multiples of this one."""
    if a is None or b is None:
        return a if b is None else b
    a, b = Fraction(a), Fraction(b)
    return tidy_number(
        Fraction(lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)
    )


def tidy_num(book: Book, num: Num) -> Shape | None:
    """Bounds that are reached wherever they can be, and one form for whole numbers; None for nothing."""
    step = common_multiple(num.step, 1 if num.integer else None)
    integer = isinstance(step, int)
    for left in num.left:
        if left.keyword == "not" and isinstance(left.shape, Num) and step is not None:
            unit = 1 if left.shape.integer and left.shape.step is None else left.shape.step
            if unit is not None and Fraction(step) % unit == 0:
                book.clash(
                    f"no multiple of {number_text(step)} is no multiple of {number_text(unit)}", left.pointer, "not"
                )
                return None
    low, low_open, high, high_open = num.low, num.low_open, num.high, num.high_open
    if step is not None:
        if low is not None:
            times = Fraction(low) / step
            up = floor(times) + 1 if low_open else ceil(times)
            low, low_open = tidy_number(up * step), False
        if high is not None:
            times = Fraction(high) / step
            down = ceil(times) - 1 if high_open else floor(times)
            high, high_open = tidy_number(down * step), False
    if low is not None and high is not None:
        if low > high or (low == high and (low_open or high_open)):
            what = (
                " whole number" if step == 1 else f" multiple of {number_text(step)}" if step is not None else " number"
            )
            assert num.low is not None and num.high is not None
            lower = f"{'above' if num.low_open else 'at least'} {number_text(num.low)}"
            upper = f"{'below' if num.high_open else 'at most'} {number_text(num.high)}"
            keyword = "minimum" if "minimum" in num.at else "maximum"
            book.clash(f"no{what} is {lower} and {upper}", num.at.get(keyword, num.at.get("", "#")), keyword)
            return None
        if low == high:
            one = enum_of([low], {**num.at, "enum": num.at.get("minimum", num.at.get("", "#"))})
            assert one
            rest = Num(left=num.left)
            return filtered(book, one, rest) if num.left else one
    return replace(
        num,
        integer=integer,
        low=low,
        low_open=low_open,
        high=high,
        high_open=high_open,
        step=None if step == 1 else step,
    )


# --- strings ----------------------------------------------------------------------------------------------------------


def _least(a: int | None, b: int | None) -> int | None:
    return a if b is None else b if a is None else min(a, b)


def _crossed(book: Book, low: int, high: int | None, at: At, least: str, most: str, what: str) -> bool:
    """There is no number of characters, items or properties that will do."""
    if high is None or low <= high:
        return False
    keyword = least if least in at else most
    book.clash(f"at least {low} {what} and at most {high}", at.get(keyword, at.get("", "#")), keyword)
    return True


def _strings(book: Book, a: Str, b: Str) -> Shape | None:
    at = _at(a.at, b.at, minLength=b.low > a.low, maxLength=_least(a.high, b.high) != a.high)
    return tidy_str(
        book,
        Str(
            max(a.low, b.low),
            _least(a.high, b.high),
            a.wanted | b.wanted,
            a.unwanted | b.unwanted,
            a.excluded | b.excluded,
            _left(a.left, b.left),
            at,
        ),
    )


def tidy_str(book: Book, string: Str) -> Str | None:
    """None for nothing."""
    return (
        None if _crossed(book, string.low, string.high, string.at, "minLength", "maxLength", "characters") else string
    )


# --- arrays -----------------------------------------------------------------------------------------------------------


def _arrays(book: Book, a: Arr, b: Arr) -> Arr | None:
    prefix = tuple(book.both(a.item(i), b.item(i)) for i in range(max(len(a.prefix), len(b.prefix))))
    high = _least(a.high, b.high)
    return tidy_arr(
        book,
        Arr(
            prefix,
            book.both(a.items, b.items),
            max(a.low, b.low),
            high,
            _left(a.left, b.left),
            _at(a.at, b.at, minItems=b.low > a.low, maxItems=high != a.high, items=a.items == ANYTHING),
        ),
    )


def tidy_arr(book: Book, arr: Arr) -> Arr | None:
    """Nothing said of items that cannot be; None where no array will do."""
    high = arr.high
    at = arr.at
    for index, state in enumerate((*arr.prefix, arr.items)):
        if book.is_nothing(state) and (high is None or high > index):
            high = index
            at = {**at, "maxItems": book.pointer(state) or at.get("", "#")}
    if _crossed(book, arr.low, high, at, "minItems", "maxItems", "items"):
        return None
    prefix, items = arr.prefix, arr.items
    if high is not None and high <= len(prefix):
        prefix, items = prefix[:high], ANYTHING
    while prefix and prefix[-1] == items and (high is None or high > len(prefix)):
        prefix = prefix[:-1]
    return replace(arr, prefix=prefix, items=items, high=high, at=at)


# --- objects ----------------------------------------------------------------------------------------------------------


def _objects(book: Book, a: Obj, b: Obj) -> Obj | None:
    try:
        patterns = _patterns(book, a, b)
    except TooLargeError:
        return replace(a, left=_left(a.left, (Left("allOf", b.at.get("", "#"), b),)))
    names = list(a.props) + [name for name in b.props if name not in a.props]
    high = _least(a.high, b.high)
    return tidy_obj(
        book,
        Obj(
            {name: book.both(side(book, a, name), side(book, b, name)) for name in names},
            (*a.required, *(name for name in b.required if name not in a.required)),
            book.both(a.additional, b.additional),
            patterns,
            book.both(a.names, b.names),
            max(a.low, b.low),
            high,
            _left(a.left, b.left),
            _at(
                a.at,
                b.at,
                minProperties=b.low > a.low,
                maxProperties=high != a.high,
                additionalProperties=a.additional == ANYTHING,
            ),
        ),
    )


def _patterns(book: Book, a: Obj, b: Obj) -> Mapping[str, State]:
    """What both say of properties by patterns. Raises `TooLargeError`."""
    found: dict[str, State] = {}
    for one, other in ((a, b), (b, a)):
        for pattern, state in one.patterns.items():
            found[pattern] = book.both(found.get(pattern, ANYTHING), state)
            if pattern in other.patterns or other.additional == ANYTHING:
                continue
            rest: str | None = pattern  # of it, what is among the additional properties of the other one
            named = [name for name in other.props if matches(pattern, name)]
            if other.patterns or named:
                rest = book.combined([pattern], other.patterns, named)
            if rest is not None:
                found[rest] = book.both(found.get(rest, ANYTHING), other.additional)
    return found


def tidy_obj(book: Book, obj: Obj) -> Obj | None:
    """What is required is among the properties; None where no object will do."""
    props = {**obj.props}
    for name in obj.required:
        if name not in props:
            props[name] = side(book, obj, name)
        if book.is_nothing(props[name]):
            at = obj.at.get(f"required/{name}", obj.at.get("required", obj.at.get("", "#")))
            book.clash(f"the property {name!r} is required, and forbidden", at, "required")
            return None
    if obj.high is not None and len(obj.required) > obj.high:
        at = obj.at.get("maxProperties", obj.at.get("", "#"))
        book.clash(f"{len(obj.required)} properties are required, and at most {obj.high} allowed", at, "maxProperties")
        return None
    if _crossed(book, obj.low, obj.high, obj.at, "minProperties", "maxProperties", "properties"):
        return None
    return replace(obj, props=props)
