"""What each route answers, as JSON Schema: the other half of the OpenAPI document's data."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


def _object(text: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Schema:
    """An object with keys that are always there, and others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "description": text, "properties": properties, "required": list(required)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_FLAG: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}
_IDS = _list(_COUNT)
_TRIPLE: Schema = {
    "type": "array",
    "prefixItems": [{"type": ["number", "null"]}, {"type": "integer"}, {"type": ["string", "null"]}],
    "description": "A log-probability, a token id, and its text where that is asked for.",
}
_REASON: Schema = {"type": ["string", "null"], "description": "Why the text ended; null while it goes on."}
_OR_ERROR = {"anyOf": [_list(_ref("Pin")), _ref("Error")]}

_GRAMMAR = {"rtk": _object("What became of the form.", {"grammar": _ANY_OBJECT})}

_HEAD: Mapping[str, Any] = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "object": _TEXT}
_SLOTS = dict.fromkeys(("free", "evictable", "protected", "held", "pool", "namespaces", "pinned"), _COUNT)

ANSWERS: Mapping[str, Schema] = {
    "Error": _object(
        "An error, in OpenAI's form; `code` is stable.",
        {
            "error": _object(
                "What is wrong.",
                {
                    "message": _TEXT,
                    "type": {"enum": ["invalid_request_error", "server_error"]},
                    "param": _or_null("string"),
                    "code": _TEXT,
                },
            )
        },
    ),
    "Usage": _object(
        "Token counts.",
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object("Of the prompt.", {"cached_tokens": _COUNT}),
        },
    ),
    "Completion": _object(
        "Texts, or a chunk of them.",
        {**_HEAD, "choices": _list(_ref("CompletionChoice"))},
        {"usage": {"anyOf": [_ref("Usage"), {"type": "null"}]}},
    ),
    "CompletionChoice": _object(
        "One text.",
        {
            "index": _COUNT,
            "text": _TEXT,
            "logprobs": {"anyOf": [_ref("CompletionLogprobs"), {"type": "null"}]},
            "finish_reason": _REASON,
        },
        {"prompt_logprobs": _list(_or_null("object")), **_GRAMMAR},
    ),
    "CompletionLogprobs": _object(
        "Of tokens that the text has, in order; of the prompt's first one there is none.",
        {
            "tokens": _list(_TEXT),
            "token_logprobs": _list(_or_null("number")),
            "top_logprobs": _list(_or_null("object")),
            "text_offset": _list(_COUNT),
        },
    ),
    "ChatLogprobs": _object(
        "Of the tokens that were generated, in order.",
        {
            "content": _list(
                {
                    "allOf": [_ref("TokenLogprob")],
                    "properties": {"top_logprobs": _list(_ref("TokenLogprob"))},
                    "required": ["top_logprobs"],
                }
            ),
            "refusal": {"type": "null"},
        },
    ),
    "TokenLogprob": _object(
        "Of one token; those with a part of a character are put together by their bytes.",
        {"token": _TEXT, "logprob": {"type": "number"}, "bytes": {"type": ["array", "null"], "items": _COUNT}},
    ),
    "ChatCompletion": _object(
        "Messages.",
        {**_HEAD, "choices": _list(_ref("ChatChoice")), "usage": _ref("Usage")},
        {"prompt_logprobs": _list(_or_null("object"))},
    ),
    "ChatChoice": _object(
        "One message.",
        {
            "index": _COUNT,
            "message": _object(
                "What the assistant says.",
                {"role": {"const": "assistant"}, "content": _or_null("string")},
                {
                    "refusal": {"type": "null"},
                    "reasoning_content": _or_null("string"),
                    "tool_calls": _list(_ANY_OBJECT),
                },
            ),
            "logprobs": {"anyOf": [_ref("ChatLogprobs"), {"type": "null"}]},
            "finish_reason": _REASON,
        },
        _GRAMMAR,
    ),
    "ChatCompletionChunk": _object(
        "What is new of messages.",
        {**_HEAD, "choices": _list(_ref("ChatChunkChoice"))},
        {"usage": {"anyOf": [_ref("Usage"), {"type": "null"}]}},
    ),
    "ChatChunkChoice": _object(
        "What is new of one message.",
        {
            "index": _COUNT,
            "delta": _object(
                "The next part.",
                {},
                {
                    "role": _TEXT,
                    "content": _or_null("string"),
                    "reasoning_content": _TEXT,
                    "tool_calls": _list(_ANY_OBJECT),
                },
            ),
            "logprobs": {"anyOf": [_ref("ChatLogprobs"), {"type": "null"}]},
            "finish_reason": _REASON,
        },
        _GRAMMAR,
    ),
    "Response": _object(
        "A response; nothing is stored.",
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "created_at": _COUNT,
            "model": _TEXT,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
            "error": _or_null("object"),
            "incomplete_details": _or_null("object"),
            "output": _list(_ref("OutputItem")),
            "usage": {"anyOf": [_ref("ResponseUsage"), {"type": "null"}]},
            "instructions": _or_null("string"),
            "max_output_tokens": _or_null("integer"),
            "temperature": _NUMBER,
            "top_p": _NUMBER,
            "text": _ANY_OBJECT,
            "tools": _list(_ANY_OBJECT),
            "store": {"const": False},
        },
        _GRAMMAR,
    ),
    "OutputItem": _object(
        "A message, or what was thought before it.",
        {
            "id": _TEXT,
            "type": {"enum": ["message", "reasoning", "function_call"]},
            "status": {"enum": ["in_progress", "completed", "incomplete"]},
        },
        {
            "role": {"const": "assistant"},
            "content": _list(_object("A part.", {"type": _TEXT, "text": _TEXT})),
            "summary": _list(_ANY_OBJECT),
        },
    ),
    "ResponseUsage": _object(
        "Token counts.",
        {
            "input_tokens": _COUNT,
            "input_tokens_details": _object("Of the input.", {"cached_tokens": _COUNT}),
            "output_tokens": _COUNT,
            "output_tokens_details": _object("Of the output.", {"reasoning_tokens": _COUNT}),
            "total_tokens": _COUNT,
        },
    ),
    "ResponseEvent": _object("One event.", {"type": _TEXT, "sequence_number": _COUNT}),
    "Generated": {"anyOf": [_ref("GeneratedText"), _list(_ref("GeneratedText"))], "description": "One, or a batch."},
    "GeneratedText": _object(
        "One text.",
        {"text": _TEXT, "meta_info": _ref("MetaInfo")},
        {"output_ids": _IDS, "index": _COUNT, **_GRAMMAR},
    ),
    "MetaInfo": _object(
        "About one text.",
        {
            "id": _TEXT,
            "finish_reason": _or_null("object"),
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "cached_tokens": _COUNT,
        },
        {
            f"{side}_{kind}_logprobs": _list(items)
            for kind, items in (("token", _TRIPLE), ("top", {"type": ["array", "null"], "items": _TRIPLE}))
            for side in ("input", "output")
        },
    ),
    "Models": _object("The served model, as a list.", {"object": {"const": "list"}, "data": _list(_ref("Model"))}),
    "Model": _object(
        "The served model.",
        {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT, "max_model_len": _COUNT},
    ),
    "Tokenized": _object(
        "What a prompt becomes.",
        {
            "count": _COUNT,
            "max_model_len": _COUNT,
            "tokens": _IDS,
            "token_strs": {"type": ["array", "null"], "items": _or_null("string")},
        },
    ),
    "Detokenized": _object("The text of token ids.", {"prompt": _TEXT}),
    "Health": _object("How the server is.", {"status": {"enum": ["ok", "degraded"]}}, {"instead": _ANY_OBJECT}),
    "Ready": _object("That it is.", {"status": {"const": "ready"}}),
    "Metrics": {"type": "string", "description": "Prometheus' text format."},
    "ServerInfo": _object(
        "What the server is, and what it has done.",
        {
            "version": _TEXT,
            "config": _ANY_OBJECT,
            "model": _object(
                "The served model.",
                {
                    "served_name": _TEXT,
                    "vocab_size": _COUNT,
                    "context_length": _COUNT,
                    "attention": _TEXT,
                    "page_size": _COUNT,
                    "default_sampling": _ANY_OBJECT,
                },
            ),
            "in_flight": _COUNT,
            "stats": {"type": "object", "additionalProperties": _NUMBER},
            "grammar": _ANY_OBJECT,
            "plugin_faults": _ANY_OBJECT,
            "observers": _ANY_OBJECT,
        },
    ),
    "Aborted": _object("Whether there was one.", {"rid": _TEXT, "aborted": _FLAG}),
    "RequestExplanation": _object(
        "Why a request waited, and what its time went into.",
        {
            "sentences": _list(_TEXT),
            "rid": _TEXT,
            "state": {"enum": ["waiting", "running", "finished"]},
            "age_s": _NUMBER,
        },
    ),
    "Flushed": _object("What was freed.", {"freed_tokens": _COUNT}),
    "CacheReport": _object("Slots of the KV pool by state.", {**_SLOTS, "pin_budget": _COUNT, "pins": _OR_ERROR}),
    "CacheExplanation": _object(
        "Why a prompt hits as much as it does.",
        {
            "prompt_tokens": _COUNT,
            "cached_tokens": _COUNT,
            "matched_tokens": _COUNT,
            "namespace": _ANY_OBJECT,
            "ends": {"enum": ["prompt", "differs", "evicted", "new"]},
            "reason": _TEXT,
        },
        {"elsewhere": _list(_ANY_OBJECT), "searched": _COUNT},
    ),
    "Pin": _object(
        "A pinned prompt.",
        {"name": _TEXT, "tokens": _COUNT, "cache_salt": _or_null("string"), "expires_in_s": _or_null("number")},
    ),
    "Document": {"type": "object", "description": "An OpenAPI document."},
}
"""By name."""
