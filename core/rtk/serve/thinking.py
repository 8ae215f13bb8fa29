"""Models that think before they answer: how the end of their thinking is written, and which text is which."""

from collections.abc import Sequence
from dataclasses import dataclass

from rtk.cache.key import TOKEN_BYTES, unpack
from rtk.serve.marks import THOUGHTS
from rtk.serve.protocol import Chat, GenerateRequest
from rtk.serve.text import overlap
from rtk.serve.tokenizer import Tokenizer

NAMES = {
    "deepseek-r1": "</think>",
    "qwen3": "</think>",
    "mistral": "[/THINK]",
    "seed-oss": "</seed:think>",
    "kimi": "◁/think▷",
}
"""What the thinking of some families ends with."""
SWITCH = "enable_thinking"
"""The variable of chat templates that has a model think, or not."""
_LOOKED_AT = 64
"""Tokens at the end of a prompt that are read."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model writes that it thinks: between `begin`, where it writes that at all, and `end`."""

    tokenizer: Tokenizer
    end: str

    @property
    def begin(self) -> str:
        """`<think>` for `</think>`, `[THINK]` for `[/THINK]`; empty where the end is none of this kind."""
        return self.end.replace("/", "", 1) if self.end[1:2] == "/" else ""

    def is_open(self, request: GenerateRequest, tokens: bytes) -> bool:
        """Whether the answer to a prompt, packed, begins with thinking.

        Where the prompt ends with a mark, that decides. Where a chat goes on with its last message, the last mark in
        that one does. Else a chat does whose template can switch thinking on and off and was not told to switch it off:
        such a model begins its thinking itself.
        """
        said = self._read(unpack(tokens[-_LOOKED_AT * TOKEN_BYTES :]))
        if said.endswith(self.end):
            return False
        if self.begin and said.endswith(self.begin):
            return True
        if not isinstance(request.prompt, Chat):
            return False
        if request.prompt.continues:
            text = str(request.prompt.messages[-1].get("content"))
            return bool(self.begin) and text.rfind(self.begin) > text.rfind(self.end)
        return bool(request.prompt.options.get(SWITCH, self.tokenizer.template_knows(SWITCH)))

    def _read(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.read(tokens).rstrip()


def thinking(tokenizer: Tokenizer, marker: str) -> Thinking | None:
    """What a model does whose thinking ends with `marker`, or the one of a family in `NAMES`; "none": it never thinks.

    "auto": with the first end of `THOUGHTS` that is a token.
    """
    if marker == "auto":
        return next((Thinking(tokenizer, end) for _, end in THOUGHTS if tokenizer.writes(end)), None)
    return None if marker == "none" else Thinking(tokenizer, NAMES.get(marker, marker))


class Splitter:
    """Tells thoughts from the answer, as the text comes; what could be the beginning of a mark is held back."""

    def __init__(self, thinking: Thinking | None, *, sure: bool = True) -> None:
        """None: it is all answer. Not `sure`: it is, unless it begins with the mark that thoughts begin with."""
        self._begin = thinking.begin if thinking else ""
        self._end = thinking.end if thinking else ""
        self._sure = sure
        self._thinks = thinking is not None and (sure or bool(self._begin))
        self._held = ""
        self._bare = False
        """Nothing of the answer was said yet, behind a thought."""
        self.aside = ""
        """Of what `push` gave last: all that is no answer, as it was written."""

    def push(self, text: str, *, last: bool = False) -> tuple[str, str]:
        """The thoughts and the answer in the next part of a text, the `last` one or not."""
        written = self._held + text
        thought, answer = self._split(text, last)
        self.aside = written[: len(written) - len(self._held) - len(answer)]
        return thought, answer

    def _split(self, text: str, last: bool) -> tuple[str, str]:
        if not self._thinks:
            return "", self._answer(text)
        text, self._held = self._held + text, ""
        if self._begin:
            if not last and self._begin.startswith(text.lstrip()):
                self._held = text
                return "", ""
            opens = text.lstrip().startswith(self._begin)
            if not (opens or self._sure):
                self._thinks = False
                return "", self._answer(text)
            text, self._begin = text.lstrip().removeprefix(self._begin) if opens else text, ""
        thought, mark, answer = text.partition(self._end)
        if mark:
            self._thinks, self._bare = False, True
            return thought, self._answer(answer)
        at = len(text) if last else overlap(text, self._end)
        self._held = text[at:]
        return text[:at], ""

    def _answer(self, text: str) -> str:
        if self._bare:  # models put an empty line there
            text = text.lstrip("\n")
            self._bare = not text
        return text
