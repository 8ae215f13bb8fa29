"""`<tool_call>{"name": "f", "arguments": {…}}</tool_call>`, of Hermes, Qwen 2.5, Qwen 3 and many others."""

from rtk.serve.tools.layout import Format, Layout
from rtk.serve.tools.machine import Machine, Outcome, Steps

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes(Machine):
    """A call in each pair of marks; a second mark that is missing is missed by nobody."""

    def read(self) -> Steps[None]:
        yield
        marks = [BEGIN]
        while mark := (yield from self.until(*marks)):
            marks = [BEGIN]
            if mark == END:
                continue
            raw = [mark]
            yield from self.space(raw.append)
            outcome = yield from self.body(raw)
            if outcome is Outcome.BROKEN:
                yield from self.until(END, take=self.arguments)
            elif outcome is Outcome.CALL:
                marks.append(END)
            self.text("".join(raw))

    def body(self, raw: list[str]) -> Steps[Outcome]:
        """What is between the marks."""
        if self.char != "{":
            return Outcome.MALFORMED
        return (yield from self.call_object(raw, alone=False))


LAYOUT = Layout(head=f'{BEGIN}\n{{"name": "NAME", "arguments": ', tail=f"}}\n{END}", between="\n", trigger=BEGIN)
FORMAT = Format("hermes", Hermes, LAYOUT)
