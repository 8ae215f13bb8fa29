"""What is wrong with a grammar, and where."""

from rtk.errors import RequestError

QUOTED = 40
"""Characters of a name that an error quotes."""


def quoted(name: str) -> str:
    """`name`, or how it begins, in quotes."""
    return repr(name if len(name) <= QUOTED else name[:QUOTED] + "…")


class EbnfError(RequestError):
    """A grammar that is malformed, outside the dialect, or that no text can match."""

    def __init__(self, problem: str, line: int, column: int):
        super().__init__(f"the grammar is refused at line {line}, column {column}: {problem}", code="invalid_grammar")
        self.problem = problem
        self.line = line
        self.column = column
