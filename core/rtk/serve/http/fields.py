"""Every request field that rtk knows: those it reads, those it does not have yet, those it can do without.

All others are ignored, and named in the answer's `x-rtk-ignored-fields`: nothing but what is read reaches the engine.
"""

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import quote

from rtk.errors import RequestError

IGNORED_HEADER = "x-rtk-ignored-fields"
_NAMED_AT_MOST = 16
_NAME_AT_MOST = 64


class Scope(enum.Flag):
    """Where a field may stand."""

    COMPLETIONS = enum.auto()
    CHAT = enum.auto()
    GENERATE = enum.auto()
    SAMPLING = enum.auto()
    """Inside `sampling_params` of `/generate`."""
    ABORT = enum.auto()
    EXPLAIN = enum.auto()
    PIN = enum.auto()
    UNPIN = enum.auto()
    RESPONSES = enum.auto()
    TOKENIZE = enum.auto()
    DETOKENIZE = enum.auto()


OPENAI = Scope.COMPLETIONS | Scope.CHAT
GENERATING = OPENAI | Scope.RESPONSES | Scope.GENERATE
KEEPING = Scope.EXPLAIN | Scope.PIN
TOKENS = Scope.TOKENIZE | Scope.DETOKENIZE
PROMPTED = GENERATING | Scope.SAMPLING | KEEPING | Scope.TOKENIZE
"""Wherever a prompt goes: what generating refuses is refused with the same prompt elsewhere."""


class Kind(enum.Enum):
    """What becomes of a field."""

    READ = enum.auto()
    LATER = enum.auto()
    """Refused, unless its value would change nothing."""
    IGNORED = enum.auto()
    """Says nothing about the answer."""


@dataclass(frozen=True, slots=True)
class Field:
    """One row of the table."""

    name: str
    scope: Scope
    kind: Kind
    neutral: tuple[Any, ...] = ()
    """For `LATER`: values, beside null, that ask for nothing."""
    instead: str = "leave it out"
    """For `LATER`: what a client can do."""


def _name(field: Field) -> str:
    return field.name


def _read(scope: Scope, *names: str) -> Iterable[Field]:
    return (Field(name, scope, Kind.READ) for name in names)


def _later(
    *names: str, neutral: tuple[Any, ...] = (), instead: str = "leave it out", scope: Scope = PROMPTED
) -> Iterable[Field]:
    return (Field(name, scope, Kind.LATER, neutral, instead) for name in names)


_NOT_STORED = "nothing is stored here: send the whole conversation as input"
_NO_BEAMS = "there is no beam search; n samples several answers"


def _ignored(*names: str) -> Iterable[Field]:
    return (Field(name, PROMPTED, Kind.IGNORED) for name in names)


SAMPLING_NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
)
"""Parameters that every endpoint calls what the scheduler calls them."""

FORM_NAMES = (
    *("response_format", "json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("grammar_whitespace", "grammar_verify"),
)
"""What an answer must look like, see `rtk.serve.http.forms`."""

FIELDS: tuple[Field, ...] = (
    *_read(OPENAI | Scope.RESPONSES | TOKENS, "model"),
    *_read(OPENAI | Scope.RESPONSES, "user"),
    *_read(OPENAI, "stream_options", "max_tokens", "max_completion_tokens", "min_tokens"),
    *_read(GENERATING, "stream", "priority", "routing_key", "deadline_ms"),
    *_read(GENERATING | KEEPING, "cache_salt", "extra_key"),
    *_read(GENERATING | Scope.ABORT, "rid"),
    *_read(OPENAI | Scope.RESPONSES | Scope.SAMPLING, *SAMPLING_NAMES),
    *_read(OPENAI | Scope.SAMPLING, "n", "best_of", "no_stop_trim"),
    *_read(OPENAI, "logprobs", "prompt_logprobs", "echo"),
    *_read(Scope.COMPLETIONS | Scope.TOKENIZE, "prompt"),
    *_read(Scope.CHAT, "top_logprobs"),
    *_read(Scope.CHAT | KEEPING | Scope.TOKENIZE, "messages", "add_generation_prompt", "continue_final_message"),
    *_read(Scope.CHAT | Scope.RESPONSES | KEEPING | Scope.TOKENIZE, "chat_template_kwargs"),
    *_read(Scope.CHAT | Scope.RESPONSES | KEEPING | Scope.TOKENIZE, "tools"),
    *_read(Scope.CHAT | Scope.RESPONSES, "tool_choice", "parallel_tool_calls"),
    *_read(Scope.CHAT, "separate_reasoning"),
    *_read(Scope.GENERATE | KEEPING | Scope.RESPONSES, "text"),
    *_read(Scope.GENERATE | KEEPING, "input_ids"),
    *_read(Scope.GENERATE, "sampling_params", "return_ids"),
    *_read(Scope.GENERATE, "return_logprob", "top_logprobs_num", "logprob_start_len", "return_text_in_logprobs"),
    *_read(Scope.SAMPLING, "max_new_tokens", "min_new_tokens"),
    *_read(GENERATING | Scope.SAMPLING, *FORM_NAMES),
    *_read(Scope.EXPLAIN, "namespaces"),
    *_read(KEEPING | Scope.ABORT, "tenant"),
    *_read(Scope.PIN | Scope.UNPIN, "name"),
    *_read(Scope.PIN, "ttl_s"),
    *_read(Scope.RESPONSES, "input", "instructions", "max_output_tokens", "include"),
    *_read(Scope.TOKENIZE, "add_special_tokens", "return_token_strs"),
    *_read(Scope.DETOKENIZE, "tokens"),
    # choices
    *_later("use_beam_search", neutral=(False,), instead=_NO_BEAMS),
    *_later("num_beams", neutral=(1,), instead=_NO_BEAMS),
    *_later("length_penalty", neutral=(1,), instead=_NO_BEAMS),
    *_later("suffix", instead="put it into the prompt, with the marks that the model knows for it"),
    # sampling
    *_later("typical_p", neutral=(1,), instead="min_p and top_p cut what is not probable"),
    *_later("no_repeat_ngram_size", neutral=(0,), instead="there are repetition, presence and frequency penalties"),
    *_later("bad_words", neutral=([], ""), instead="logit_bias keeps single tokens out"),
    *_later("allowed_token_ids", instead="logit_bias prefers tokens, and choice or regex keep texts to a form"),
    *_later("stop_regex", neutral=([], ""), instead="stop and stop_token_ids end a text"),
    *_later("custom_logit_processor", "logits_processors", "custom_params"),
    # log-probabilities and hidden states
    *_later("return_hidden_states", neutral=(False,)),
    *_later("token_ids_logprob", neutral=([],), instead="top_logprobs_num tells the most probable tokens"),
    # structured output and tools
    *_later("guided_decoding_backend", "guided_whitespace_pattern"),
    *_later("functions", neutral=([],), instead="send tools"),
    *_later("function_call", neutral=("none", "auto"), instead="send tool_choice"),
    # text
    *_later("spaces_between_special_tokens", neutral=(True,)),
    *_later("truncate_prompt_tokens", instead="shorten the prompt yourself"),
    *_later("chat_template", instead="write the whole prompt and send it to /v1/completions"),
    *_later("documents"),
    *_later("reasoning_effort", "reasoning", "verbosity", "prediction", "web_search_options"),
    # adapters, keys
    *_later("lora", "lora_path", "lora_name", "lora_request", "adapter", instead="adapters do not exist yet"),
    *_later("session_params", instead="send the whole prompt; what was computed of it is found in the prefix cache"),
    # other inputs and outputs
    *_later("input_embeds", "prompt_embeds", instead="prompts are texts, token ids or messages"),
    *_later("image_data", "video_data", "audio_data", "audio", instead="prompts and answers are texts"),
    *_later("modalities", neutral=(["text"],), instead="answers are texts"),
    # OpenAI's responses: nothing is stored, and nothing runs without its client
    *_later("previous_response_id", "conversation", instead=_NOT_STORED, scope=Scope.RESPONSES),
    *_later("prompt", instead="send input and instructions", scope=Scope.RESPONSES),
    *_later("max_tool_calls", scope=Scope.RESPONSES),
    *_later("n", neutral=(1,), instead="send several requests", scope=Scope.RESPONSES),
    *_later("top_logprobs", neutral=(0,), instead="/v1/chat/completions has them", scope=Scope.RESPONSES),
    *_later("background", neutral=(False,), scope=Scope.RESPONSES),
    *_later("truncation", neutral=("disabled",), scope=Scope.RESPONSES),
    *_ignored("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
)


def field_of(name: str, scope: Scope) -> Field | None:
    """What becomes of a field where it stands; None: it is none of those that are known there."""
    return next((field for field in _TABLE.get(name, ()) if field.scope & scope), None)


_TABLE = {name: tuple(group) for name, group in groupby(sorted(FIELDS, key=_name), _name)}
"""A name may mean one thing in one place, and another elsewhere; of two rows for one place the first counts."""


class Ignored:
    """The fields of one request that have no effect, for the answer's header."""

    def __init__(self, *, strict: bool) -> None:
        """`strict` refuses fields that are unknown."""
        self._strict = strict
        self._names: list[str] = []

    def unknown(self, prefix: str, name: str, known: Iterable[str]) -> None:
        """Note a field that is none of those that are `known` where it stands."""
        if self._strict:
            name = name[:_NAME_AT_MOST]
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise RequestError(f'unknown field "{prefix}{name}"{hint}', field=prefix + name, code="unknown_field")
        self.note(prefix + name)

    def note(self, name: str) -> None:
        """Note a field that has no effect."""
        self._names.append(name)

    @property
    def headers(self) -> dict[str, str]:
        """The header: percent-encoded names, separated by commas, of bounded length."""
        if not self._names:
            return {}
        names = [quote(name[:_NAME_AT_MOST], errors="replace") for name in self._names[:_NAMED_AT_MOST]]
        return {IGNORED_HEADER: ",".join(names + ["..."] * (len(self._names) > _NAMED_AT_MOST))}


def read_fields(body: Mapping[str, Any], scope: Scope, ignored: Ignored, *, prefix: str = "") -> dict[str, Any]:
    """The fields of `body` that are read in `scope`, without those that are null.

    Raises `RequestError` for one that rtk does not have yet and that would change something.
    """
    values = {}
    for name, value in body.items():
        field = field_of(name, scope)
        if field is None:
            ignored.unknown(prefix, name, (field.name for field in FIELDS if field.scope & scope))
        elif field.kind is Kind.IGNORED:
            ignored.note(prefix + name)
        elif value is None:
            continue
        elif field.kind is Kind.READ:
            values[name] = value
        elif not any(_same(value, neutral) for neutral in field.neutral):
            raise not_supported(prefix + name, instead=field.instead)
    return values


def not_supported(what: str, field: str | None = None, *, instead: str = "leave it out") -> RequestError:
    """The refusal of what rtk does not have yet; `field` is where it stands, by default `what` itself."""
    return RequestError(f'"{what}" is not supported yet; {instead}', field=field or what, code="not_supported")


def _same(value: Any, neutral: Any) -> bool:
    """Equal, where true is not 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
