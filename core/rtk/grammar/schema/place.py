"""One schema of the client's, as the rest of the package knows it."""

from dataclasses import dataclass, field
from typing import Any

from rtk.grammar.schema.values import escaped


@dataclass(slots=True)
class Place:
    """A schema of the client's. Schemas inside are named by their pointers, patterns are canonical."""

    pointer: str
    keywords: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    """Under which name the client wrote a keyword, where that is another."""
    shown: str = ""
    """Of a schema that the client did not write as one: the pointer of the keyword that stands for it."""

    @property
    def here(self) -> str:
        """The pointer that a client knows."""
        return self.shown or self.pointer

    def at(self, keyword: str) -> str:
        """The pointer of a keyword."""
        return self.shown or f"{self.pointer}/{escaped(self.written.get(keyword, keyword))}"

    def inside(self) -> list[tuple[str, str]]:
        """Keywords and the schemas that they apply to the very same value."""
        found: list[tuple[str, str]] = []
        for keyword in ("$ref", "not", "if", "then", "else"):
            if keyword in self.keywords:
                found.append((keyword, self.keywords[keyword]))
        for keyword in ("allOf", "anyOf", "oneOf"):
            found.extend((keyword, part) for part in self.keywords.get(keyword, ()))
        found.extend(("dependentSchemas", part) for part in self.keywords.get("dependentSchemas", {}).values())
        return found


Places = dict[str, Place | bool]
"""By pointer. The empty one is `true`."""

TRUE = ""
"""The pointer of a schema that allows everything, which the client did not write."""
