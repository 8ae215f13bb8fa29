"""Calls as JSON objects, with which an answer begins: `json`, and `llama3_json` of Llama 3.1 and later."""

from rtk.serve.tools.layout import Format, Layout
from rtk.serve.tools.machine import Machine, Outcome, Steps

TAG = "<|python_tag|>"


class Objects(Machine):
    """Objects with `;` between them, or an array of some; an answer that begins otherwise has no calls."""

    tag = ""
    """May come before the first."""

    def read(self) -> Steps[None]:
        yield
        raw: list[str] = []
        yield from self.space(raw.append)
        if self.tag and self.char == self.tag[0] and (yield from self.literal(self.tag, raw.append)):
            yield from self.space(raw.append)
        outcome = Outcome.MALFORMED
        if self.char == "[":
            outcome = yield from self.array(raw)
        elif self.char == "{":
            outcome = yield from self.call_objects(raw, ";", "")
        self.text("".join(raw))
        yield from self.rest(self.arguments if outcome is Outcome.BROKEN else self.text)

    def array(self, raw: list[str]) -> Steps[Outcome]:
        """An array of calls."""
        raw.append("[")
        yield
        yield from self.space(raw.append)
        return (yield from self.call_objects(raw, ",", "]"))


class Llama3(Objects):
    """The same, behind a tag or not."""

    tag = TAG


JSON = Format(
    "json",
    Objects,
    Layout(head='{"name": "NAME", "arguments": ', tail="}", begin="[", between=", ", end="]", openers=("{", "[")),
)
LLAMA3 = Format(
    "llama3_json",
    Llama3,
    Layout(head='{"name": "NAME", "parameters": ', tail="}", between="; ", openers=("{", "[", TAG)),
)
