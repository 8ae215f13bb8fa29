"""Why a client's schema is refused."""

from rtk.errors import RequestError


class SchemaError(RequestError):
    """A JSON Schema that rtk does not take: what is wrong, with which keyword, and where in the client's schema."""

    def __init__(self, problem: str, pointer: str = "#", keyword: str | None = None):
        super().__init__(f"JSON Schema, at {pointer}: {problem}", code="invalid_grammar")
        self.problem = problem
        self.pointer = pointer
        """JSON pointer, as a URI fragment without escapes: `#/properties/a/minimum`."""
        self.keyword = keyword
