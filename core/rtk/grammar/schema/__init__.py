"""JSON Schema in normal form: what a client sent, exactly, in the few shapes that backends have to know.

`normalise` reads a schema of any draft from 4 on and answers one in which references lead only to recursive or shared
parts, every schema is of one type or a choice, and nothing is said twice. What it means is not changed; what cannot be
said in the shapes of the normal form is left in place, for a backend to refuse; what cannot be kept is refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rtk.grammar.schema.book import Book
from rtk.grammar.schema.emit import Emitter
from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.places import Reader
from rtk.grammar.schema.read import read
from rtk.grammar.schema.solve import Solver

__all__ = ["Normal", "SchemaError", "normalise"]


@dataclass(frozen=True, slots=True)
class Normal:
    """A schema in normal form."""

    text: str
    """As `Spec.text` of a `json_schema` has it."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Pointers in the text, and where in the client's schema that was written."""
    open_keys: bool = False
    """Whether objects have keys that are not named: a grammar cannot keep them from being there twice."""
    narrowed: Mapping[str, str] = field(default_factory=dict)
    """Pointers in the client's schema, and what is not generated of what it allows there."""

    def origin(self, pointer: str) -> str:
        """Where the client wrote what is at a pointer of the text, or what that is a part of."""
        while pointer not in self.origins and "/" in pointer:
            pointer = pointer.rpartition("/")[0]
        return self.origins.get(pointer, "#")


def normalise(schema: object) -> Normal:
    """A JSON text of a schema, or what it was parsed to. Raises `SchemaError`, at once or in some milliseconds."""
    book = Book(Reader(read(schema)).read())
    root = book.state("#")
    emitter = Emitter(book, Solver(book).solve(root))
    text = emitter.emit(root)
    return Normal(text, emitter.origins, emitter.open_keys, book.narrowed)
