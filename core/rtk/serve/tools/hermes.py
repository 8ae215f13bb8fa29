"""`<tool_call>{"name": "f", "arguments": {…}}</tool_call>`, of Hermes, Qwen 2.5, Qwen 3 and many others."""

from rtk.serve.tools.layout import Format, Layout
from rtk.serve.tools.machine import Machine, Outcome, Steps

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes(Machine):
    """A call in each pair of marks; a second mark that is missing is missed by nobody."""

    def read(self) -> Steps[None]:
        yield
        mark = yield from self.until(BEGIN)
        while mark:
            raw = [mark]
            yield from self.space(raw.append)
            outcome = yield from self.body(raw)
            self.text("".join(raw))
            if outcome is Outcome.BROKEN:
                yield from self.until(END, take=self.arguments)
            mark = yield from self._closed() if outcome is Outcome.CALL else self.until(BEGIN)

    def _closed(self) -> Steps[str]:
        """What follows a call, up to the next. The second mark is no content, nor is what an answer ends with of it."""
        yield from self.space(lambda char: None)
        begun: list[str] = []
        if (yield from self.literal(END, begun.append)) or not self.char:
            return (yield from self.until(BEGIN))
        mark = yield from self.until(BEGIN, END, held="".join(begun))
        return mark if mark != END else (yield from self.until(BEGIN))

    def body(self, raw: list[str]) -> Steps[Outcome]:
        """What is between the marks."""
        if self.char != "{":
            return Outcome.MALFORMED
        return (yield from self.call_object(raw, alone=False))


LAYOUT = Layout(head=f'{BEGIN}\n{{"name": "NAME", "arguments": ', tail=f"}}\n{END}", between="\n", trigger=BEGIN)
FORMAT = Format("hermes", Hermes, LAYOUT)
