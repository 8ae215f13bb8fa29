"""`[TOOL_CALLS]`, then `[{"name": "f", "arguments": {…}}]`, or of newer models `f[ARGS]{…}`."""

from rtk.serve.tools.layout import Format, Layout, short_id
from rtk.serve.tools.machine import Machine, Outcome, Steps

MARK, ARGUMENTS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral(Machine):
    """Calls of both kinds behind each mark."""

    def read(self) -> Steps[None]:
        yield
        mark = yield from self.until(MARK)
        while mark:
            raw = [mark]
            yield from self.space(raw.append)
            outcome = yield from self._calls(raw)
            self.text("".join(raw))
            take = self.arguments if outcome is Outcome.BROKEN else self.text
            mark = yield from self.until(MARK, take=take)

    def _calls(self, raw: list[str]) -> Steps[Outcome]:
        if self.char == "{":
            return (yield from self.call_objects(raw, ";", ""))
        if self.char == "[":
            raw.append("[")
            yield
            yield from self.space(raw.append)
            return (yield from self.call_objects(raw, ",", "]"))
        name = yield from self.name(raw.append)
        if not (yield from self._before_arguments(raw)) or self.char != "{":
            return Outcome.MALFORMED
        if not self.may_call(name):
            return Outcome.OTHER if (yield from self.value(raw.append)) else Outcome.MALFORMED
        raw.clear()
        self.call(name)
        self.open = not (yield from self.value(self.arguments))
        return Outcome.BROKEN if self.open else Outcome.CALL

    def _before_arguments(self, raw: list[str]) -> Steps[bool]:
        """An id, which is the model's own and of no use, and a mark; older models have neither."""
        while self.char == "[":
            at = len(raw)
            raw.append("[")
            yield
            if (yield from self.literal(ID[1:] if self.char == ID[1] else ARGUMENTS[1:], raw.append)):
                if "".join(raw[at:]) == ID:
                    yield from self.name(raw.append)
            else:
                return False
        yield from self.space(raw.append)
        return True


NEW = Format("mistral", Mistral, Layout(head=f"{MARK}NAME{ARGUMENTS}", trigger=MARK), short_id)
OLD = Format(
    "mistral",
    Mistral,
    Layout(head='{"name": "NAME", "arguments": ', tail="}", begin=f"{MARK}[", between=", ", end="]", trigger=MARK),
    short_id,
)
