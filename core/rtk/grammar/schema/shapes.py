"""What a schema says, as alternatives for each type of value: the shapes that schemas are taken apart into.

A part of a shape is a state: a set of literals that all hold. A literal is a schema of the client's, or one that was
made, and whether it holds or its opposite does. So parts are merged without a look into them, and are finitely many.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rtk.grammar.schema.values import Number, identity, type_of

COMPARISONS = 16
"""Of two shapes: how many are as much work as to make one."""

Literal = tuple[int, bool]
State = frozenset[Literal]

ANYTHING: State = frozenset()

At = Mapping[str, str]
"""Where the client wrote what: pointers by keywords of the normal form; by the empty one that of the schema itself."""


def _nowhere() -> At:
    return {}


@dataclass(frozen=True, slots=True)
class Left:
    """What a shape says and has no field for: it stays in place as a keyword, for backends to judge."""

    keyword: str
    pointer: str = field(compare=False)
    shape: "Shape | None" = None
    """Of `not` and `allOf`."""
    state: State = ANYTHING
    """Of `contains` and `propertyNames`."""
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Enum:
    """One of these values, all of the type."""

    values: tuple[Any, ...]
    keys: frozenset[Hashable] = frozenset()
    at: At = field(default_factory=_nowhere, compare=False)


@dataclass(frozen=True, slots=True)
class Num:
    """A number."""

    integer: bool = False
    low: Number | None = None
    low_open: bool = False
    high: Number | None = None
    high_open: bool = False
    step: Number | None = None
    left: tuple[Left, ...] = ()
    at: At = field(default_factory=_nowhere, compare=False)


@dataclass(frozen=True, slots=True)
class Str:
    """A string."""

    low: int = 0
    high: int | None = None
    wanted: frozenset[str] = frozenset()
    """Canonical patterns that it matches."""
    unwanted: frozenset[str] = frozenset()
    """Canonical patterns that it does not match."""
    excluded: frozenset[str] = frozenset()
    left: tuple[Left, ...] = ()
    at: At = field(default_factory=_nowhere, compare=False)


@dataclass(frozen=True, slots=True)
class Arr:
    """An array."""

    prefix: tuple[State, ...] = ()
    items: State = ANYTHING
    low: int = 0
    high: int | None = None
    left: tuple[Left, ...] = ()
    at: At = field(default_factory=_nowhere, compare=False)

    def item(self, index: int) -> State:
        """What the item there is."""
        return self.prefix[index] if index < len(self.prefix) else self.items


@dataclass(frozen=True, slots=True)
class Obj:
    """An object. A property that matches patterns has their states in its own."""

    props: Mapping[str, State] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    additional: State = ANYTHING
    patterns: Mapping[str, State] = field(default_factory=dict)
    names: State = ANYTHING
    low: int = 0
    high: int | None = None
    left: tuple[Left, ...] = ()
    at: At = field(default_factory=_nowhere, compare=False)


Shape = Enum | Num | Str | Arr | Obj

Shapes = Mapping[str, tuple[Shape, ...]]
"""By type, in the order of the client's: one of them, for a value of that type; a type that is missing has no value."""


def enum_of(values: list[Any], at: At) -> Enum | None:
    """These values, each once; None if there are none."""
    found = {identity(value): value for value in reversed(values)}
    return Enum(tuple(reversed(found.values())), frozenset(found), at) if found else None


def anything(at: At) -> dict[str, tuple[Shape, ...]]:
    """Every value there is."""
    null, boolean = enum_of([None], at), enum_of([False, True], at)
    assert null and boolean
    return {
        "null": (null,),
        "boolean": (boolean,),
        "number": (Num(at=at),),
        "string": (Str(at=at),),
        "array": (Arr(at=at),),
        "object": (Obj(at=at),),
    }


_EVERY: Mapping[str, Shape] = {kind: shapes[0] for kind, shapes in anything({}).items()}


def every(kind: str, shape: Shape) -> bool:
    """The shape is every value of its type."""
    if isinstance(shape, Enum):
        default = _EVERY[kind]
        return isinstance(default, Enum) and shape.keys == default.keys
    return shape == _EVERY[kind]


def alternatives(kind: str, shapes: Iterable[Shape], spend: Callable[[int], None]) -> tuple[Shape, ...]:
    """What any of the shapes of a type is: none twice, one of constants at most, one alone that is every value."""
    found: list[Shape] = []
    constants: list[Enum] = []
    for shape in shapes:
        if every(kind, shape):
            return (shape,)
        if isinstance(shape, Enum):
            constants.append(shape)
            if len(constants) > 1:
                continue
        if shape not in found:
            found.append(shape)
        spend(len(found) // COMPARISONS)
    if len(constants) > 1:
        merged = enum_of([value for one in constants for value in one.values], constants[0].at)
        assert merged
        if every(kind, merged):
            return (merged,)
        found[found.index(constants[0])] = merged
    return tuple(found)


def kind_of(shape: Shape) -> str:
    """The type of the values of a shape."""
    if isinstance(shape, Enum):
        return type_of(shape.values[0])
    kinds: dict[type, str] = {Num: "number", Str: "string", Arr: "array", Obj: "object"}
    return kinds[type(shape)]


def parts(shape: Shape) -> list[State]:
    """The states in a shape."""
    found: list[State] = []
    if isinstance(shape, Arr):
        found += [*shape.prefix, shape.items]
    elif isinstance(shape, Obj):
        found += [*shape.props.values(), *shape.patterns.values(), shape.additional, shape.names]
    for left in () if isinstance(shape, Enum) else shape.left:
        found += [left.state] if left.shape is None else parts(left.shape)
    return found
