"""A model's tokenizer: text to ids and back, chats to text. Reads `tokenizer.json` and `tokenizer_config.json`.

Needs neither transformers nor torch: importing those takes seconds, and both formats are data. As in transformers,
whether BOS goes before a text is up to `tokenizer.json` alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import tokenizers

from rtk.cache.key import TOKEN_BYTES, unpack
from rtk.errors import ModelError, RequestError, one_line
from rtk.model.files import read_object, read_text
from rtk.schedule.params import SamplingParams
from rtk.serve.detokenizer import Open
from rtk.serve.marks import MARKS
from rtk.serve.text import BROKEN, CONTEXT_TOKENS, IncrementalDecoder, StopChecker, StopScanner, TextAssembler

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that chat templates know by name."""


class Tokenizer:
    """Safe to use from several threads. `encode` and `read` let other threads run, however long the text."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        template: str | None = None,
        tool_template: str | None = None,
    ) -> None:
        """`config` is the content of `tokenizer_config.json`, `template` the chat template in Jinja.

        `tool_template`: the one for chats with tools, where that is another.
        """
        config = config or {}
        self._backend = backend
        self._template = template
        self.tool_template = tool_template or template
        """The chat template of chats with tools."""
        self._templates: dict[str, jinja2.Template] = {}
        """Those that were compiled."""
        self.named = {name: text for name in NAMED_TOKENS if (text := _content(config.get(name))) is not None}
        """Text of each named special token."""
        backend.no_truncation()
        backend.no_padding()
        backend.add_special_tokens([t for t in self.named.values() if backend.token_to_id(t) is not None])
        added = backend.get_added_tokens_decoder()
        self.silent = frozenset(i for i, token in added.items() if token.special and token.content not in MARKS)
        """Tokens that have no text: special ones, but for those that mark calls and thoughts."""
        self.size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        """Ids run from 0 to `size - 1`."""
        self._marks = self._longest_mark()

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """The tokenizer of the checkpoint in `folder`. Raises `ModelError` where it cannot be read."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{folder} has no tokenizer.json, which is what rtk reads; for a checkpoint with another kind of "
                "tokenizer file, write one with transformers: AutoTokenizer.from_pretrained(x).save_pretrained(x)"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(f"{path} cannot be read: {one_line(error)}") from error
        if not backend.get_vocab_size(with_added_tokens=True):
            raise ModelError(f"{path} cannot be used: it has no tokens")
        config = read_object(folder / "tokenizer_config.json")
        return cls(backend, config, *_find_templates(folder, config))

    # --- text and ids -------------------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Text must be encodable, see `rtk.schedule.params.check_text`. O(n log n)."""
        # The batch call releases the interpreter lock, the single one does not.
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the tokens, silent ones skipped."""
        spoken = [token for token in ids if token not in self.silent]
        text: str = self._backend.decode(spoken, skip_special_tokens=False)
        return text

    def text_of(self, token_id: int) -> str:
        """One token as a person reads it: special ones by name, a part of a character as U+FFFD, spaces kept.

        Decoded behind itself, since some decoders take a space off the beginning.
        """
        once, twice = (self._backend.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        text: str = twice[len(once) :]
        return text

    def read(self, ids: Sequence[int]) -> str:
        """Text of the tokens, special ones by name."""
        # The batch call releases the interpreter lock, the single one does not.
        (text,) = self._backend.decode_batch([ids], skip_special_tokens=False)
        return str(text)

    def writes(self, text: str) -> bool:
        """Whether there is a token of just this text, which is not silent."""
        token = self._backend.token_to_id(text)
        return token is not None and token not in self.silent

    def token_id(self, name: str) -> int | None:
        """Id of a named special token, such as "bos_token"."""
        text = self.named.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def piece(self, token_id: int) -> str | None:
        """One token as the vocabulary writes it."""
        piece: str | None = self._backend.id_to_token(token_id)
        return piece

    @property
    def decoders(self) -> list[dict[str, Any]]:
        """What makes text of pieces, one after the other, as `tokenizer.json` describes it."""
        decoder = self._backend.decoder
        described: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
        inner: list[dict[str, Any]] = described.get("decoders", [described] if described else [])
        return inner

    # --- new tokens ---------------------------------------------------------------------------------------------

    def decoder(self, prompt: bytes, *, special: bool = False) -> IncrementalDecoder:
        """A decoder for tokens that follow the packed `prompt`. O(1). `special`: special tokens have text."""
        context = unpack(prompt[-CONTEXT_TOKENS * TOKEN_BYTES :])
        if special:
            return IncrementalDecoder(self.read, context, marks=self._marks)
        return IncrementalDecoder(self.decode, context, silent=self.silent, marks=self._marks)

    def assembler(self, request: Open) -> TextAssembler:
        """What turns the output tokens of `request` into its text."""
        scanner = StopScanner(request.stop, request.min_new_tokens, keep=request.include_stop)
        return TextAssembler(self.decoder(request.context, special=request.special), scanner)

    def match_stop(self, params: SamplingParams, prompt: bytes) -> Callable[[int], str | None]:
        """The scheduler's stop string check: fed each output token, answers the stop string that it completes."""
        decoder = self.decoder(prompt, special=not params.skip_special_tokens)
        return StopChecker(decoder, StopScanner(params.stop, params.min_new_tokens)).push

    def _longest_mark(self) -> int:
        """How many U+FFFD the beginning of one character decodes to: one, or with byte fallback one a byte."""
        pieces = [self._backend.token_to_id(f"<0x{byte:02X}>") for byte in b"\xf0\x9f\x98"]
        ids = [piece for piece in pieces if piece is not None]
        return max(1, self.decode(ids).count(BROKEN)) if ids else 1

    # --- chats --------------------------------------------------------------------------------------------------

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self._template is not None

    def template_knows(self, variable: str) -> bool:
        """Whether the chat template has a variable of this name."""
        return self._template is not None and variable in self._template

    @property
    def knows_tools(self) -> bool:
        """Whether there is a chat template that reads tools."""
        return self.tool_template is not None and "tools" in self.tool_template

    def chat(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **options: Any
    ) -> str:
        """Messages as the text that the model's chat template makes of them, special tokens included.

        Encode it with `add_special_tokens=False`. `options` are variables of the template, `tools` among them. Raises
        `RequestError` where there is no template, or it refuses.
        """
        template = self.tool_template if options.get("tools") else self._template
        if template is None:
            raise RequestError(
                "this model has no chat template; send the whole prompt to /v1/completions",
                field="messages",
                code="no_chat_template",
            )
        there = {"tools": None, "documents": None}  # as transformers has them, for templates that ask if they are none
        variables = {
            **self.named,
            **there,
            **options,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._compiled(template).render(variables)
        except jinja2.TemplateError as error:
            raise RequestError(
                f"messages: the model's chat template refuses them: {error}", field="messages"
            ) from error
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise RequestError("messages: the model's chat template cannot render them", field="messages") from error

    def _compiled(self, template: str) -> jinja2.Template:
        found = self._templates.get(template)
        if found is not None:
            return found
        try:
            return self._templates.setdefault(template, self._environment.from_string(template))
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(
                f"this model's chat template cannot be used: {error}", field="messages", code="no_chat_template"
            ) from error

    @cached_property
    def _environment(self) -> jinja2.Environment:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, with which templates mark what the assistant wrote. It renders its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter escapes HTML, which prompts are not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _content(token: Any) -> str | None:
    """A special token is written as its text, or as an object that holds it."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _find_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The default chat template, and the one for tools: files of their own, or parts of the configuration, by name."""
    template = config.get("chat_template")
    entries = template if isinstance(template, list) else [{"name": "default", "template": template}]
    named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, Mapping)}
    for name, path in (("default", "chat_template.jinja"), ("tool_use", "additional_chat_templates/tool_use.jinja")):
        if (folder / path).is_file():
            named[name] = read_text(folder / path)
    default, tool_use = (named.get(name) for name in ("default", "tool_use"))
    return default if isinstance(default, str) else None, tool_use if isinstance(tool_use, str) else None
