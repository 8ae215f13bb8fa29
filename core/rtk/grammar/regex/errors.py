"""What is wrong with a regular expression, and where."""

from rtk.errors import RequestError

QUOTED = 60
"""Characters of an expression that an error quotes."""


def excerpt(text: str) -> str:
    """`text`, or how it begins, in quotes."""
    return repr(text if len(text) <= QUOTED else text[:QUOTED] + "…")


class RegexError(RequestError):
    """A regular expression that is malformed, outside the subset, or that no text can match."""

    def __init__(self, problem: str, pattern: str, position: int):
        super().__init__(
            f"the regex {excerpt(pattern)} is refused at character {position + 1}: {problem}", code="invalid_grammar"
        )
        self.problem = problem
        self.position = position
        """Of the character that is at fault, from 0."""


PROBLEM = "regular expressions that are too large together to be worked out exactly"


class TooLargeError(RequestError):
    """An expression, or what is made of several, is more than is worked with."""

    def __init__(self, problem: str):
        super().__init__(problem, code="invalid_grammar")
