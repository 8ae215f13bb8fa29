"""What a schema of the client's says, or its opposite, with the schemas that apply to the same value worked in."""

from collections.abc import Hashable, Iterable

from rtk.grammar.schema.book import Book, Clash
from rtk.grammar.schema.meet import meet
from rtk.grammar.schema.own import has, lacks, not_own, own, with_dependencies, without_dependencies
from rtk.grammar.schema.place import Place
from rtk.grammar.schema.shapes import ANYTHING, Literal, Obj, Shape, Shapes, State, anything, kind_of
from rtk.grammar.schema.values import TYPES, identity, last_step


class Builder:
    """Takes states apart into shapes. Their own parts are states, not taken apart."""

    def __init__(self, book: Book):
        self.book = book
        self.why: dict[State, Clash] = {}
        """Of states that nothing is in."""
        self._known: dict[tuple[str, bool], Shapes] = {}
        self._clash: dict[tuple[str, bool], Clash] = {}

    def shapes(self, state: State) -> Shapes:
        """What is in the state."""
        book = self.book
        parts: list[Shapes] = []
        book.spend(len(state))
        pointer = "#"
        for number, holds in book.literals(state):
            what = book.sources[number].what
            pointer = book.sources[number].pointer
            if isinstance(what, Place):
                if (number, not holds) in state:
                    book.clash("it and its opposite are asked for", pointer, "not")
                    parts.append({})
                parts.append(self._of(what.pointer, holds))
            elif isinstance(what, bool):
                book.clash("false allows no value", pointer, last_step(pointer))
                parts.append({})
            else:
                parts.append({kind_of(what): (what,)})
        found = meet(book, *parts) if parts else anything({})
        if not found:
            first = book.clashes[0] if book.clashes else Clash("no value is as it says", pointer, "")
            self.why[state] = first
        return found

    def _of(self, pointer: str, holds: bool) -> Shapes:
        known = self._known.get((pointer, holds))
        if known is None:
            place = self.book.places[pointer]
            if isinstance(place, bool):
                if place != holds:
                    self.book.clash("false allows no value", pointer, last_step(pointer))
                known = anything({"": pointer}) if place == holds else {}
            else:
                self.book.spend()
                known = self._positive(place) if holds else self._negative(place)
            self._known[pointer, holds] = known
            if not known and self.book.clashes:
                self._clash[pointer, holds] = self.book.clashes[-1]
        elif (pointer, holds) in self._clash:
            self.book.clashes.append(self._clash[pointer, holds])
        return known

    def _positive(self, place: Place) -> Shapes:
        book, words = self.book, place.keywords
        found = own(book, place)
        if "$ref" in words:
            found = meet(book, found, self._of(words["$ref"], True))
        for part in words.get("allOf", ()):
            found = meet(book, found, self._of(part, True))
        found = with_dependencies(book, place, found)
        for name, part in words.get("dependentSchemas", {}).items():
            found = meet(book, found, self._dependent(place, name, part))
        if "not" in words:
            found = meet(book, found, self._of(words["not"], False))
        if "if" in words and ("then" in words or "else" in words):
            found = meet(book, found, self._conditional(words, True))
        if "anyOf" in words:
            found = meet(book, found, book.join(*(self._of(part, True) for part in words["anyOf"])))
        if "oneOf" in words:
            found = book.join(*(meet(book, found, part) for part in self._one_of(words["oneOf"], found)))
        return found

    def _negative(self, place: Place) -> Shapes:
        book, words = self.book, place.keywords
        parts = [not_own(book, place), *without_dependencies(book, place)]
        if "$ref" in words:
            parts.append(self._of(words["$ref"], False))
        parts.extend(self._of(part, False) for part in words.get("allOf", ()))
        for name, part in words.get("dependentSchemas", {}).items():
            at = {"": place.here}
            opposite = self._of(part, False)
            with_it = meet(book, {"object": (has(name, ANYTHING, at),)}, opposite)
            parts.append(with_it)
        if "not" in words:
            parts.append(self._of(words["not"], True))
        if "if" in words and ("then" in words or "else" in words):
            parts.append(self._conditional(words, False))
        if "anyOf" in words:
            parts.append(meet(book, *(self._of(part, False) for part in words["anyOf"])))
        if "oneOf" in words:
            branches = words["oneOf"]
            parts.append(meet(book, *(self._of(part, False) for part in branches)))
            parts.extend(
                meet(book, self._of(a, True), self._of(b, True)) for i, a in enumerate(branches) for b in branches[:i]
            )
        return book.join(*parts)

    def _dependent(self, place: Place, name: str, part: str) -> Shapes:
        at = {"": place.here}
        absent = {**anything(at), "object": (lacks(self.book, name, place.at("dependentSchemas"), at),)}
        present = meet(self.book, {"object": (has(name, ANYTHING, at),)}, self._of(part, True))
        return self.book.join(absent, present)

    def _conditional(self, words: dict[str, str], holds: bool) -> Shapes:
        """If, then and else; or their opposite, which is that of `then` and of `else`."""
        found: list[Shapes] = []
        for keyword, condition in (("then", True), ("else", False)):
            case = self._of(words["if"], condition)
            if keyword in words:
                found.append(meet(self.book, case, self._of(words[keyword], holds)))
            elif holds:
                found.append(case)
        return self.book.join(*found)

    def _one_of(self, branches: list[str], among: Shapes) -> list[Shapes]:
        """The branches without what others allow as well."""
        book = self.book
        parts = [meet(book, among, self._of(part, True)) for part in branches]
        overlap: dict[int, list[int]] = {i: [] for i in range(len(parts))}
        for i, a in enumerate(parts):
            for j in range(i):
                if self._overlap(a, parts[j]):
                    overlap[i].append(j)
                    overlap[j].append(i)
        return [meet(book, part, *(self._of(branches[j], False) for j in overlap[i])) for i, part in enumerate(parts)]

    def _overlap(self, a: Shapes, b: Shapes) -> bool:
        """Whether there may be a value that both allow."""
        kept = len(self.book.clashes)
        both = meet(self.book, a, b)
        del self.book.clashes[kept:]
        return not all(self._never(shape) for shapes in both.values() for shape in shapes)

    def _never(self, shape: Shape) -> bool:
        """A look at the properties an object must have: types and constants of theirs that do not go together."""
        if not isinstance(shape, Obj):
            return False
        for name in shape.required:
            kinds, keys = self._sketch(self.book.literals(shape.props[name]))
            if not kinds or (keys is not None and not keys):
                return True
        return False

    def _sketch(self, literals: Iterable[Literal]) -> tuple[set[str], set[Hashable] | None]:
        """The types and the constants that are left at most, without a look at any part; None: not only constants."""
        kinds: set[str] = set(TYPES)
        keys: set[Hashable] | None = None
        todo = [literal for literal in literals if literal[1]]
        places = [what for number, _ in todo if isinstance(what := self.book.sources[number].what, Place)]
        while places:
            words = places.pop().keywords
            if "type" in words:
                kinds &= {"number" if name == "integer" else name for name in words["type"]}
            for keyword in ("enum", "constant"):
                if keyword in words:
                    found = set(map(identity, words[keyword]))
                    keys = found if keys is None else keys & found
            parts = [words["$ref"]] if "$ref" in words else []
            inner = (self.book.places[part] for part in (*parts, *words.get("allOf", ())))
            places.extend(place for place in inner if isinstance(place, Place))
        return kinds, keys
