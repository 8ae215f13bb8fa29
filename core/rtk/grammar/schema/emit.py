"""The normal form as text, and where each part of it comes from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rtk.grammar.schema.book import Book
from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.shapes import (
    Arr,
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
    kind_of,
    parts,
)
from rtk.grammar.schema.values import TYPES, escaped, number_text, string_text, value_text

MAX_NORMAL = 1 << 21
"""Characters of a normal form."""
SHARED = 16
"""Constants of an enum that is written once, where it is meant several times."""


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One schema of the normal form: a shape, or several of them as `anyOf`; `shapes` is empty for what is `true`."""

    shapes: tuple[tuple[str, Shape], ...] = ()
    choices: tuple["Branch", ...] = ()
    never: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Inside:
    """A schema in a schema, at a step of the pointer."""

    branch: Branch
    step: str
    state: State | None = None


Piece = Text | Inside


@dataclass(slots=True)
class Emitter:
    """Writes the schema of a state, those that are shared or recursive once, under `$defs`."""

    book: Book
    solved: Mapping[State, Shapes]
    origins: dict[str, str] = field(default_factory=dict)
    open_keys: bool = False
    _branches: dict[Any, Branch] = field(default_factory=dict)
    _names: dict[Branch, str] = field(default_factory=dict)

    def emit(self, root: State) -> str:
        """The text; `origins` and `open_keys` are known then."""
        first = self._branch(root)
        self._name(first)
        out: list[str] = []
        size = self._write(out, first, "#", self.book.pointer(root), bool(self._names), 0)
        names = list(self._names.items())
        for index, (branch, name) in enumerate(names):
            out.append(f"{',' if index else ''}{string_text(name)}:")
            size = self._write(out, branch, f"#/$defs/{name}", None, False, size, defining=True)
        if names:
            out.append("}}")
        return "".join(out)

    # --- which schemas there are --------------------------------------------------------------------------------------

    def _branch(self, state: State) -> Branch:
        known = self._branches.get(state)
        if known is None:
            known = self._branches[state] = self._new({} if self.book.is_nothing(state) else self.solved[state])
        return known

    def _new(self, shapes: Shapes) -> Branch:
        if all(kind in shapes and every(kind, shapes[kind][0]) for kind in TYPES):
            return self._once("true", Branch())
        found: list[tuple[str, Shape]] = []
        values: list[Any] = []
        at: Mapping[str, str] = {}
        for kind, alternatives in shapes.items():
            for shape in alternatives:
                if isinstance(shape, Enum) and not (kind == "boolean" and every(kind, shape)):
                    if not values:
                        found.append(("enum", shape))
                        at = shape.at
                    values.extend(shape.values)
                else:
                    found.append((kind, shape))
        merged = enum_of(values, at)
        single = [self._single(kind, merged if kind == "enum" and merged else shape) for kind, shape in found]
        if len(single) == 1:
            return single[0]
        return Branch(choices=tuple(single)) if single else self._once("false", Branch(never=True))

    def _once(self, key: str, branch: Branch) -> Branch:
        return self._branches.setdefault(key, branch)

    def _single(self, kind: str, shape: Shape) -> Branch:
        key = (kind, shape.keys) if isinstance(shape, Enum) else id(shape)
        return self._branches.setdefault(key, Branch(shapes=((kind, shape),)))

    def _inside(self, branch: Branch) -> list[Branch]:
        if branch.choices:
            return list(branch.choices)
        return [self._branch(state) for _, shape in branch.shapes for state in parts(shape)]

    def _name(self, root: Branch) -> None:
        """Name the schemas that are written once: those that are in themselves, and large ones that occur again."""
        seen: set[Branch] = set()
        path: set[Branch] = set()
        named: dict[Branch, None] = {}
        work: list[tuple[Branch, bool]] = [(root, False)]
        while work:
            branch, done = work.pop()
            if done:
                path.discard(branch)
            elif branch in path or (branch in seen and self._large(branch)):
                named[branch] = None
            elif branch not in seen:
                seen.add(branch)
                path.add(branch)
                work.append((branch, True))
                work.extend((inner, False) for inner in reversed(self._inside(branch)))
        self._names.update((branch, f"d{number}") for number, branch in enumerate(named, 1))

    def _large(self, branch: Branch) -> bool:
        if branch.choices:
            return any(map(self._large, branch.choices)) or len(branch.choices) > 2
        return any(
            (isinstance(shape, Enum) and len(shape.values) > SHARED) or (isinstance(shape, Arr | Obj) and _says(shape))
            for _, shape in branch.shapes
        )

    # --- the text -----------------------------------------------------------------------------------------------------

    def _write(
        self,
        out: list[str],
        branch: Branch,
        pointer: str,
        origin: str | None,
        with_defs: bool,
        size: int,
        defining: bool = False,
    ) -> int:
        """Write a schema; `with_defs` leaves it open, behind the beginning of `$defs`."""
        work: list[tuple[Piece, str]] = []
        head = self._pieces(branch, pointer, origin, defining)
        if with_defs:
            assert isinstance(head[-1], Text)
            head[-1] = Text(head[-1].text.removesuffix("}") + ',"$defs":{')
        work.extend((piece, pointer) for piece in reversed(head))
        while work:
            piece, here = work.pop()
            if isinstance(piece, Text):
                out.append(piece.text)
                size += len(piece.text)
                if size > MAX_NORMAL:
                    raise SchemaError(f"its normal form has more than {MAX_NORMAL} characters")
                continue
            inner = f"{here}/{piece.step}"
            source = self.book.pointer(piece.state) if piece.state else None
            work.extend((part, inner) for part in reversed(self._pieces(piece.branch, inner, source)))
        return size

    def _pieces(self, branch: Branch, pointer: str, origin: str | None, defining: bool = False) -> list[Piece]:
        if origin is not None:
            self.origins[pointer] = origin
        if branch in self._names and not defining:
            return [Text('{"$ref":"#/$defs/' + self._names[branch] + '"}')]
        if branch.choices:
            found: list[Piece] = [Text('{"anyOf":[')]
            for index, choice in enumerate(branch.choices):
                found += [Text("," if index else ""), Inside(choice, f"anyOf/{index}")]
            return [*found, Text("]}")]
        if not branch.shapes:
            self.open_keys |= not branch.never
            return [Text("false" if branch.never else "true")]
        ((kind, shape),) = branch.shapes
        self.origins.setdefault(pointer, shape.at.get("", "#"))
        found = []
        for keyword, pieces in self._keywords(kind, shape):
            where = shape.at.get(_WRITTEN.get(keyword, keyword))
            if where is not None:
                self.origins[f"{pointer}/{keyword}"] = where
            found += [Text(("," if found else "{") + string_text(keyword) + ":"), *pieces]
        if not isinstance(shape, Enum):
            for keyword, pieces, where in self._left(shape.left):
                self.origins[f"{pointer}/{keyword}"] = where
                found += [Text(f",{string_text(keyword)}:"), *pieces]
        return [*found, Text("}")]

    def _keywords(self, kind: str, shape: Shape) -> Iterator[tuple[str, list[Piece]]]:
        if isinstance(shape, Enum):
            if kind == "boolean" or shape.values == (None,):
                yield "type", [Text('"boolean"' if kind == "boolean" else '"null"')]
            else:
                yield "enum", [Text(value_text(list(shape.values)))]
        elif isinstance(shape, Num):
            yield "type", [Text('"integer"' if shape.integer else '"number"')]
            if shape.low is not None:
                yield ("exclusiveMinimum" if shape.low_open else "minimum"), [Text(number_text(shape.low))]
            if shape.high is not None:
                yield ("exclusiveMaximum" if shape.high_open else "maximum"), [Text(number_text(shape.high))]
            if shape.step is not None:
                yield "multipleOf", [Text(number_text(shape.step))]
        elif isinstance(shape, Str):
            yield "type", [Text('"string"')]
            yield from _counts("minLength", shape.low, "maxLength", shape.high)
            for pattern in shape.wanted:
                yield "pattern", [Text(string_text(pattern))]
        elif isinstance(shape, Arr):
            yield from self._array(shape)
        else:
            yield from self._object(shape)

    def _array(self, shape: Arr) -> Iterator[tuple[str, list[Piece]]]:
        yield "type", [Text('"array"')]
        full = shape.high is not None and shape.high == len(shape.prefix) > 0
        if shape.prefix:
            yield "prefixItems", self._sequence("prefixItems", shape.prefix)
        if full:
            yield "items", [Text("false")]
        elif shape.items:
            yield "items", [self._part(shape.items, "items")]
        else:
            self.open_keys |= shape.high != 0
        yield from _counts("minItems", shape.low, "maxItems", None if full else shape.high)

    def _object(self, shape: Obj) -> Iterator[tuple[str, list[Piece]]]:
        yield "type", [Text('"object"')]
        if shape.props:
            yield "properties", self._map("properties", shape.props)
        if shape.required:
            yield "required", [Text(value_text(list(shape.required)))]
        if shape.patterns:
            yield "patternProperties", self._map("patternProperties", shape.patterns)
        if shape.additional:
            yield "additionalProperties", [self._part(shape.additional, "additionalProperties")]
        if shape.names:
            yield "propertyNames", [self._part(shape.names, "propertyNames")]
        yield from _counts("minProperties", shape.low, "maxProperties", shape.high)
        if not self._branch(shape.additional).never or shape.patterns:
            self.open_keys = True

    def _part(self, state: State, step: str) -> Inside:
        return Inside(self._branch(state), step, state)

    def _sequence(self, keyword: str, states: Iterable[State]) -> list[Piece]:
        found: list[Piece] = []
        for index, state in enumerate(states):
            found += [Text("," if index else "["), self._part(state, f"{keyword}/{index}")]
        return [*found, Text("]")]

    def _map(self, keyword: str, states: Mapping[str, State]) -> list[Piece]:
        found: list[Piece] = []
        for name, state in states.items():
            found.append(Text(("," if found else "{") + string_text(name) + ":"))
            found.append(self._part(state, f"{keyword}/{escaped(name)}"))
        return [*found, Text("}")]

    def _left(self, left: tuple[Left, ...]) -> Iterator[tuple[str, list[Piece], str]]:
        """What is left over: in place, or in an `allOf` where a keyword is there several times."""
        again: list[Left] = []
        seen: set[str] = set()
        for part in left:
            if part.keyword == "allOf" or part.keyword in seen:
                again.append(part)
                continue
            seen.add(part.keyword)
            for keyword, pieces in self._left_keywords(part, ""):
                yield keyword, pieces, part.pointer
        found: list[Piece] = []
        for index, part in enumerate(again):
            step = f"allOf/{index}"
            found.append(Text("," if found else "["))
            if part.keyword == "allOf":
                assert part.shape is not None
                found.append(Inside(Branch(shapes=((_kind(part.shape), part.shape),)), step))
                continue
            for number, (keyword, pieces) in enumerate(self._left_keywords(part, f"{step}/")):
                found += [Text(("," if number else "{") + string_text(keyword) + ":"), *pieces]
            found.append(Text("}"))
        if found:
            yield "allOf", [*found, Text("]")], again[0].pointer

    def _left_keywords(self, part: Left, before: str) -> Iterator[tuple[str, list[Piece]]]:
        if part.keyword == "uniqueItems":
            yield "uniqueItems", [Text("true")]
        elif part.keyword == "not":
            assert part.shape is not None
            yield "not", [Inside(Branch(shapes=((_kind(part.shape), part.shape),)), f"{before}not")]
        elif part.keyword == "propertyNames":
            yield "propertyNames", [Inside(self._branch(part.state), f"{before}propertyNames", part.state)]
        else:
            yield "contains", [Inside(self._branch(part.state), f"{before}contains", part.state)]
            if part.least != 1:
                yield "minContains", [Text(str(part.least))]
            if part.most is not None:
                yield "maxContains", [Text(str(part.most))]


_WRITTEN = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _counts(least: str, low: int, most: str, high: int | None) -> Iterator[tuple[str, list[Piece]]]:
    if low:
        yield least, [Text(str(low))]
    if high is not None:
        yield most, [Text(str(high))]


def _says(shape: Shape) -> bool:
    return bool(shape.prefix or shape.items) if isinstance(shape, Arr) else isinstance(shape, Obj) and bool(shape.props)


def _kind(shape: Shape) -> str:
    return "enum" if isinstance(shape, Enum) else kind_of(shape)
