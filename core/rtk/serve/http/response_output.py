"""What /v1/responses answers: items, and the events in which they come."""

import uuid
from collections.abc import Iterator
from typing import Any

from rtk.schedule.messages import Finish
from rtk.serve.protocol import Delta
from rtk.serve.tools.reader import CallPart, Reader, Said, as_content

Named = tuple[str, dict[str, Any]]
"""An event: what it is called, and what it says."""

_PARTS = {"reasoning": ("rs_", "reasoning_text"), "message": ("msg_", "output_text"), "function_call": ("fc_", "")}
"""Of each type of item: the prefix of its id, and the type of its one part; calls have none."""


class _Item:
    """One item of the output; it has one part, of text."""

    def __init__(self, kind: str, index: int) -> None:
        prefix, self._part_type = _PARTS[kind]
        self.kind = kind
        self._index = index
        self._id = prefix + uuid.uuid4().hex
        self._status = "in_progress"
        self._texts: list[str] = []

    def opened(self) -> Iterator[Named]:
        yield "response.output_item.added", {"output_index": self._index, "item": self._described([])}
        yield "response.content_part.added", {**self._place, "part": self._part}

    def said(self, text: str) -> Iterator[Named]:
        self._texts.append(text)
        yield f"response.{self._part_type}.delta", {**self._place, "delta": text, **self._logprobs}

    def closed(self, status: str) -> Iterator[Named]:
        self._status = status
        yield f"response.{self._part_type}.done", {**self._place, "text": "".join(self._texts), **self._logprobs}
        yield "response.content_part.done", {**self._place, "part": self._part}
        yield "response.output_item.done", {"output_index": self._index, "item": self.described()}

    def break_off(self) -> None:
        if self._status == "in_progress":
            self._status = "incomplete"

    def described(self) -> dict[str, Any]:
        """The item as it is by now."""
        return self._described([self._part])

    @property
    def _part(self) -> dict[str, Any]:
        notes: dict[str, Any] = {} if self.kind == "reasoning" else {"annotations": [], "logprobs": []}
        return {"type": self._part_type, "text": "".join(self._texts), **notes}

    @property
    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}

    @property
    def _place(self) -> dict[str, Any]:
        return {**self._where, "content_index": 0}

    @property
    def _logprobs(self) -> dict[str, Any]:
        return {} if self.kind == "reasoning" else {"logprobs": []}

    def _described(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        who: dict[str, Any] = {"summary": []} if self.kind == "reasoning" else {"role": "assistant"}
        return {"id": self._id, "type": self.kind, "status": self._status, **who, "content": content}


class _CallItem(_Item):
    """A call of a function."""

    def __init__(self, call: CallPart, index: int) -> None:
        super().__init__("function_call", index)
        self._call = call

    def opened(self) -> Iterator[Named]:
        yield "response.output_item.added", {"output_index": self._index, "item": self.described()}

    def said(self, text: str) -> Iterator[Named]:
        self._texts.append(text)
        yield "response.function_call_arguments.delta", {**self._where, "delta": text}

    def closed(self, status: str) -> Iterator[Named]:
        self._status = status
        whole = {"name": self._call.name, "arguments": "".join(self._texts)}
        yield "response.function_call_arguments.done", {**self._where, **whole}
        yield "response.output_item.done", {"output_index": self._index, "item": self.described()}

    def described(self) -> dict[str, Any]:
        called = {"call_id": self._call.id, "name": self._call.name, "arguments": "".join(self._texts)}
        return {"id": self._id, "type": self.kind, "status": self._status, **called}


class ResponseOutput:
    """The output of one response, as it comes."""

    def __init__(self, reader: Reader | None = None) -> None:
        """`reader`: what finds calls of tools in the answer."""
        self._reader = reader
        self._items: list[_Item] = []
        self._last: Delta | None = None
        self._reasoning_tokens = 0

    def add(self, delta: Delta) -> Iterator[Named]:
        """Take in what is new, and say it."""
        self._last = delta
        if delta.thought:
            self._reasoning_tokens = delta.completion_tokens
            yield from self._say("reasoning", delta.thought)
        for part in self._read(delta).parts:
            if isinstance(part, str):
                yield from self._say("message", part)
                continue
            if part.id:
                yield from self._open(_CallItem(part, len(self._items)))
            if part.arguments:
                yield from self._items[-1].said(part.arguments)
        if delta.finish is not None:
            if not self._items:
                yield from self._open(_Item("message", 0))
            yield from self._items[-1].closed("completed" if delta.finish.reason == "stop" else "incomplete")

    def _read(self, delta: Delta) -> Said:
        if self._reader is None:
            return as_content(delta.content)
        return self._reader.push(delta.content, last=delta.finish is not None)

    def _say(self, kind: str, text: str) -> Iterator[Named]:
        if not self._items or self._items[-1].kind != kind:
            yield from self._open(_Item(kind, len(self._items)))
        yield from self._items[-1].said(text)

    def _open(self, item: _Item) -> Iterator[Named]:
        """The next item; the one before is whole."""
        if self._items:
            yield from self._items[-1].closed("completed")
        self._items.append(item)
        yield from item.opened()

    def break_off(self) -> None:
        """Nothing follows, and nobody hears of it here."""
        for item in self._items:
            item.break_off()

    @property
    def finish(self) -> Finish | None:
        """How it ended, if it has."""
        return None if self._last is None else self._last.finish

    @property
    def verified(self) -> bool | None:
        """The result of the check of the finished text, see `Delta`."""
        return None if self._last is None else self._last.verified

    def items(self) -> list[dict[str, Any]]:
        """What is there by now."""
        return [item.described() for item in self._items]

    def usage(self) -> dict[str, Any] | None:
        """Token counts."""
        if (last := self._last) is None:
            return None
        return {
            "input_tokens": last.prompt_tokens,
            "input_tokens_details": {"cached_tokens": last.cached_tokens},
            "output_tokens": last.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": last.prompt_tokens + last.completion_tokens,
        }
