"""All states that a schema comes to, each as its shapes, without those that nothing can ever be."""

from collections.abc import Callable
from typing import Any

from rtk.grammar.schema.book import Book, Clash
from rtk.grammar.schema.build import Builder
from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.holds import side
from rtk.grammar.schema.settle import listed, pruned, settle
from rtk.grammar.schema.shapes import ANYTHING, Arr, Enum, Obj, Shape, Shapes, State, parts

MAX_STATES = 20_000


class Solver:
    """See the module."""

    def __init__(self, book: Book):
        self._book = book
        self._builder = Builder(book)
        self._found: dict[State, Shapes] = {}
        self._possible: set[State] = set()
        self._made: dict[int, tuple[Shape, Shape | None, list[Clash]]] = {}
        """What shapes were settled or pruned to, by the id of each, which is kept alive: what is shared stays so."""

    def solve(self, root: State) -> dict[State, Shapes]:
        """The states that are reached. Raises `SchemaError` where the root has no value."""
        self._shapes_of(ANYTHING)
        self._reach(root)
        self._list()
        self._settle_what_is_possible()
        if root not in self._possible:
            clash = self._why(root)
            raise SchemaError(f"nothing satisfies the schema: {clash.problem}", clash.pointer, clash.keyword or None)
        return {state: self._pruned(state, shapes) for state, shapes in self._found.items()}

    def _shapes_of(self, state: State) -> Shapes:
        """A state's shapes, settled. Known once it was reached."""
        found = self._found.get(state)
        if found is None:
            found = self._found[state] = self._settled(state)
        return found

    def _settled(self, state: State) -> Shapes:
        book = self._book
        book.clashes.clear()
        shapes = self._builder.shapes(state)
        found: list[Shapes] = []
        for kind, alternatives in shapes.items():
            for shape in alternatives:
                settled = self._once(shape, lambda one: settle(book, one, self._texts_of))
                if settled is not None:
                    found.append({kind: (settled,)})
        joined = book.join(*found)
        if not joined and state not in self._builder.why:
            self._builder.why[state] = book.clashes[-1]
        return joined

    def _once(self, shape: Shape, make: Callable[[Shape], Shape | None]) -> Shape | None:
        if id(shape) not in self._made:
            kept = len(self._book.clashes)
            self._made[id(shape)] = (shape, make(shape), self._book.clashes[kept:])
        else:
            self._book.clashes += self._made[id(shape)][2]
        return self._made[id(shape)][1]

    def _texts_of(self, state: State) -> list[Shape]:
        """The strings in a state."""
        kept = list(self._book.clashes)
        shapes = self._builder.shapes(state).get("string", ())
        settled = [settle(self._book, shape, self._texts_of) for shape in shapes]
        self._book.clashes[:] = kept
        return [shape for shape in settled if shape is not None]

    def _reach(self, root: State) -> None:
        work = [root]
        seen = {root}
        while work:
            shapes = self._shapes_of(work.pop())
            inside = [part for alternatives in shapes.values() for shape in alternatives for part in parts(shape)]
            for part in reversed(inside):
                if part not in seen:
                    seen.add(part)
                    work.append(part)
            if len(seen) > MAX_STATES:
                raise SchemaError(f"more than {MAX_STATES} schemas once its parts are put together")

    def _list(self) -> None:
        """Arrays of few constants one by one, where something is left over otherwise."""
        for state, shapes in self._found.items():
            for shape in shapes.get("array", ()):
                if isinstance(shape, Arr) and shape.left:
                    self._list_arrays(state, shapes)
                    break

    def _list_arrays(self, state: State, shapes: Shapes) -> None:
        book = self._book
        book.clashes.clear()
        arrays = [listed(book, shape, self._values) if isinstance(shape, Arr) else shape for shape in shapes["array"]]
        rest: Shapes = {kind: alternatives for kind, alternatives in shapes.items() if kind != "array"}
        self._found[state] = book.join(rest, *({"array": (shape,)} for shape in arrays if shape is not None))
        if not self._found[state]:
            self._builder.why[state] = book.clashes[-1]

    def _values(self, state: State) -> list[Any] | None:
        """All values in a state, if these are just constants."""
        found: list[Any] = []
        for alternatives in self._found[state].values() if state in self._found else ((None,),):
            for shape in alternatives:
                if not isinstance(shape, Enum):
                    return None
                found.extend(shape.values)
        return found

    # --- what there can be --------------------------------------------------------------------------------------------

    def _settle_what_is_possible(self) -> None:
        """The states that have a value: those of which a shape has all that it needs, until there are no more."""
        waiting: dict[State, list[State]] = {}
        work = list(self._found)
        while work:
            state = work.pop()
            if state in self._possible:
                continue
            lacking = [self._lacking(shape) for shapes in self._found[state].values() for shape in shapes]
            if [] in lacking:
                self._possible.add(state)
                work.extend(waiting.pop(state, ()))
            else:
                for need in dict.fromkeys(need for needs in lacking for need in needs):
                    waiting.setdefault(need, []).append(state)

    def _lacking(self, shape: Shape) -> list[State]:
        """States that have no value so far, one of which a value of this shape needs; none: it has values."""
        for need in self._needs(shape):
            if need not in self._possible:
                return [need]
        if isinstance(shape, Obj) and shape.low and not self._free(shape):
            optional = [state for name, state in shape.props.items() if name not in shape.required]
            if len(shape.required) + sum(state in self._possible for state in optional) < shape.low:
                others = (*optional, *shape.patterns.values(), shape.additional)
                return [state for state in others if state not in self._possible]
        return []

    def _free(self, shape: Obj) -> bool:
        """There are names for any number of properties."""
        return any(state in self._possible for state in (*shape.patterns.values(), shape.additional))

    def _needs(self, shape: Shape) -> list[State]:
        if isinstance(shape, Arr):
            needs = list(shape.prefix[: shape.low]) + [shape.items] * (shape.low > len(shape.prefix))
            return needs + [left.state for left in shape.left if left.keyword == "contains" and left.least]
        if isinstance(shape, Obj):
            return [shape.props.get(name, ANYTHING) for name in shape.required]
        return []

    def _why(self, root: State) -> Clash:
        """Why nothing is in a state: what is wrong with the first part that would have to be there."""
        state, seen = root, set()
        name = ""
        at = "#"
        while state not in seen:
            seen.add(state)
            if state in self._builder.why and not self._found[state]:
                return self._builder.why[state]
            shape = next(shape for alternatives in self._found[state].values() for shape in alternatives)
            lacking = self._lacking(shape)[0]
            if isinstance(shape, Obj):
                name = next((name for name in shape.required if shape.props.get(name) == lacking), "")
            at = self._book.pointer(lacking) or at
            state = lacking
        what = f"the property {name!r} has to have" if name else "it has to have"
        return Clash(f"{what} one like itself in it, without end", at, "required" if name else "minItems")

    def _pruned(self, state: State, shapes: Shapes) -> Shapes:
        if state not in self._possible:
            return {}
        found: list[Shapes] = []
        for kind, alternatives in shapes.items():
            for shape in alternatives:
                if not self._lacking(shape):
                    kept = self._once(shape, lambda one: pruned(self._book, one, self._possible.__contains__))
                    if kept is not None:
                        found.append({kind: (kept,)})
        joined = self._book.join(*found)
        return {kind: recombined(self._book, alternatives) for kind, alternatives in joined.items()}


MAX_RECOMBINED = 24
"""Alternatives among which those are looked for that say the same but for one property."""


def recombined(book: Book, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """`without the property, or with it and so` said as: if it is there, it is so."""
    found = list(shapes)
    again = len(found) <= MAX_RECOMBINED
    while again:
        again = False
        for i, a in enumerate(found):
            for j, b in enumerate(found):
                if i != j and isinstance(a, Obj) and isinstance(b, Obj):
                    one = _optional(book, a, b)
                    if one is not None:
                        found[min(i, j)] = one
                        del found[max(i, j)]
                        again = True
                        break
            if again:
                break
    return tuple(found)


def _optional(book: Book, a: Obj, b: Obj) -> Obj | None:
    """What `a`, which lacks a property, and `b`, which has it, are together, if that is one shape."""
    extra = [name for name in b.required if name not in a.required]
    if len(extra) != 1 or len(a.required) + 1 != len(b.required):
        return None
    (name,) = extra
    if not book.is_nothing(side(book, a, name)):
        return None
    same = (a.additional, a.patterns, a.names, a.left) == (b.additional, b.patterns, b.names, b.left)
    if not same or a.low or b.low or a.high is not None or b.high is not None:
        return None
    rest = {key: state for key, state in b.props.items() if key != name}
    if rest != {key: state for key, state in a.props.items() if key != name}:
        return None
    return Obj(b.props, a.required, b.additional, b.patterns, b.names, 0, None, b.left, {**b.at, **a.at})
