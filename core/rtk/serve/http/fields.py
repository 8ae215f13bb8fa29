"""Every request field that rtk knows: those it reads, those it does not have yet, those it can do without.

All others are ignored, and named in the answer's `x-rtk-ignored-fields`: nothing but what is read reaches the engine.
"""

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


OPENAI = Scope.COMPLETIONS | Scope.CHAT
GENERATING = OPENAI | Scope.GENERATE
KEEPING = Scope.EXPLAIN | Scope.PIN
PROMPTED = GENERATING | Scope.SAMPLING | KEEPING
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


def _read(scope: Scope, *names: str) -> Iterable[Field]:
    return (Field(name, scope, Kind.READ) for name in names)


def _later(*names: str, neutral: tuple[Any, ...] = ()) -> Iterable[Field]:
    return (Field(name, PROMPTED, Kind.LATER, neutral) for name in names)


def _ignored(*names: str) -> Iterable[Field]:
    return (Field(name, PROMPTED, Kind.IGNORED) for name in names)


SAMPLING_NAMES = ("temperature", "top_p", "top_k", "seed", "ignore_eos", "stop", "stop_token_ids")
"""Parameters that every endpoint calls what the scheduler calls them."""

FORM_NAMES = (
    *("response_format", "json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("grammar_whitespace", "grammar_verify"),
)
"""What an answer must look like, see `rtk.serve.http.forms`."""

FIELDS: tuple[Field, ...] = (
    *_read(OPENAI, "model", "user", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens"),
    *_read(GENERATING, "stream", "priority", "routing_key", "deadline_ms"),
    *_read(GENERATING | KEEPING, "cache_salt"),
    *_read(GENERATING | Scope.ABORT, "rid"),
    *_read(OPENAI | Scope.SAMPLING, *SAMPLING_NAMES),
    *_read(Scope.COMPLETIONS, "prompt"),
    *_read(Scope.CHAT | KEEPING, "messages", "chat_template_kwargs"),
    *_read(Scope.GENERATE | KEEPING, "text", "input_ids"),
    *_read(Scope.GENERATE, "sampling_params", "return_ids"),
    *_read(Scope.SAMPLING, "max_new_tokens", "min_new_tokens"),
    *_read(GENERATING | Scope.SAMPLING, *FORM_NAMES),
    *_read(Scope.EXPLAIN, "namespaces"),
    *_read(KEEPING | Scope.ABORT, "tenant"),
    *_read(Scope.PIN | Scope.UNPIN, "name"),
    *_read(Scope.PIN, "ttl_s"),
    # choices
    *_later("n", "best_of", neutral=(1,)),
    *_later("use_beam_search", "echo", neutral=(False,)),
    *_later("length_penalty", neutral=(1,)),
    *_later("suffix"),
    # sampling
    *_later("min_p", "presence_penalty", "frequency_penalty", neutral=(0,)),
    *_later("repetition_penalty", "typical_p", neutral=(1,)),
    *_later("logit_bias", neutral=({},)),
    *_later("bad_words", "stop_regex", neutral=([], "")),
    *_later("custom_logit_processor", "custom_params"),
    # log-probabilities and hidden states
    *_later("logprobs", "return_logprob", "return_hidden_states", "return_text_in_logprobs", neutral=(False,)),
    *_later("top_logprobs", "top_logprobs_num", neutral=(0,)),
    *_later("prompt_logprobs"),
    *_later("logprob_start_len", neutral=(-1,)),
    *_later("token_ids_logprob", neutral=([],)),
    # structured output and tools
    *_later("guided_decoding_backend", "guided_whitespace_pattern"),
    *_later("tools", "functions", neutral=([],)),
    *_later("tool_choice", "function_call", neutral=("none", "auto")),
    # text
    *_later("skip_special_tokens", "spaces_between_special_tokens", neutral=(True,)),
    *_later("include_stop_str_in_output", "no_stop_trim", "continue_final_message", neutral=(False,)),
    *_later("add_generation_prompt", neutral=(True,)),
    *_later("chat_template", "documents"),
    *_later("reasoning_effort", "reasoning", "verbosity", "prediction", "web_search_options"),
    # adapters, keys
    *_later("lora", "lora_path", "lora_name", "lora_request", "adapter"),
    *_later("extra_key", "session_params"),
    # other inputs and outputs
    *_later("input_embeds", "prompt_embeds", "image_data", "video_data", "audio_data", "audio"),
    *_later("modalities", neutral=(["text"],)),
    *_ignored("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *_ignored("parallel_tool_calls"),
)

_TABLE = {field.name: field for field in FIELDS}


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
        field = _TABLE.get(name)
        if field is None or not field.scope & scope:
            ignored.unknown(prefix, name, (field.name for field in FIELDS if field.scope & scope))
        elif field.kind is Kind.IGNORED:
            ignored.note(prefix + name)
        elif value is None:
            continue
        elif field.kind is Kind.READ:
            values[name] = value
        elif not any(_same(value, neutral) for neutral in field.neutral):
            raise not_supported(prefix + name)
    return values


def not_supported(what: str, field: str | None = None) -> RequestError:
    """The refusal of what rtk does not have yet; `field` is where it stands, by default `what` itself."""
    return RequestError(f'"{what}" is not supported yet; leave it out', field=field or what, code="not_supported")


def _same(value: Any, neutral: Any) -> bool:
    """Equal, where true is not 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
