"""What each request field may hold, as JSON Schema with description and default: the data of the OpenAPI document.

One entry for each name of `rtk.serve.http.fields` that is read; where a name means something else in one place, another
entry for that place. Ranges are those of the validators.
"""

from collections.abc import Mapping
from typing import Any

from rtk.grammar.forms import MAX_WHITESPACE
from rtk.schedule import params
from rtk.serve import asking, handling
from rtk.serve.http.chat import ROLES
from rtk.serve.http.fields import Field, Kind, Scope
from rtk.serve.http.tools import NAME

Schema = dict[str, Any]

_NONE: Any = object()


def _schema(text: str, default: Any = _NONE, **rules: Any) -> Schema:
    given = {} if default is _NONE else {"default": default}
    return {**rules, **given, "description": text}


def _integer(text: str, low: int, high: int, default: Any = _NONE) -> Schema:
    return _schema(text, default, type="integer", minimum=low, maximum=high)


def _number(text: str, low: float, high: float, default: Any = _NONE) -> Schema:
    return _schema(text, default, type="number", minimum=low, maximum=high)


def _above_0(text: str, high: float, default: Any = _NONE) -> Schema:
    return _schema(text, default, type="number", exclusiveMinimum=0, maximum=high)


def _boolean(text: str, default: bool = False) -> Schema:
    return _schema(text, default, type="boolean")


def _string(text: str, **rules: Any) -> Schema:
    return _schema(text, type="string", **rules)


def _object(text: str, default: Any = _NONE, **rules: Any) -> Schema:
    return _schema(text, default, type="object", **rules)


def _list(text: str, items: Schema, default: Any = _NONE, **rules: Any) -> Schema:
    return _schema(text, default, type="array", items=items, **rules)


def _one_of(text: str, *schemas: Schema) -> Schema:
    return _schema(text, anyOf=list(schemas))


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_IDS: Schema = {"type": "array", "items": _ref("TokenId")}
_BATCH: Schema = {"type": "array", "items": _IDS}
_NAME: Schema = {"minLength": 1, "maxLength": handling.MAX_NAME}
_SALT: Schema = {"minLength": 1, "maxLength": handling.MAX_SALT}

_COUNT = params.MAX_COUNT
_TOP = params.MAX_TOP_LOGPROBS
_PENALTY = params.MAX_PENALTY

_JSON_SCHEMA = _one_of("A JSON text that is valid under this JSON Schema.", {"type": "object"}, _TEXT)
_REGEX = _string("A regular expression that matches the whole answer.")
_GRAMMAR = _string("A grammar in EBNF that the answer is of.")
_CHOICE = _list("Texts, one of which is the answer.", _TEXT, minItems=1)

SCHEMAS: Mapping[str, Schema] = {
    # prompts
    "prompt": _one_of("A text, token ids, or a batch of either.", _TEXT, _IDS, _TEXTS, _BATCH),
    "messages": _list("The chat, for the model's chat template.", _ref("Message")),
    "chat_template_kwargs": _object("Variables for the model's chat template.", {}),
    "text": _string("The prompt as text."),
    "input_ids": _schema("The prompt as token ids.", **_IDS),
    "input": _one_of("A text, or the items of a conversation.", _TEXT, {"type": "array", "items": _ref("InputItem")}),
    "instructions": _string("A system message in front of the conversation."),
    "tokens": _schema("Token ids.", **_IDS),
    "add_special_tokens": _schema(
        "Put tokens such as BOS around the prompt; by default around texts, and not around chats.", type="boolean"
    ),
    "add_generation_prompt": _boolean("End the chat where the assistant begins to speak.", default=True),
    "continue_final_message": _boolean("Go on with the last message instead of beginning a new one."),
    "return_token_strs": _boolean("Add each token as the vocabulary writes it."),
    # handling
    "model": _string("The served model; another name is a 404."),
    "user": _string("No effect."),
    "stream": _boolean("Answer with server-sent events."),
    "stream_options": _object(
        "Token counts in a stream; only with stream.",
        {},
        properties={
            "include_usage": _boolean("One more chunk with the usage."),
            "continuous_usage_stats": _boolean("Every chunk has the usage so far."),
        },
    ),
    "rid": _string("The id of the request, unique among those in flight; by default a random one.", **_NAME),
    "cache_salt": _string("Only requests with the same salt share what is cached.", **_SALT),
    "extra_key": _string("The same, beside the salt.", **_SALT),
    "priority": _integer(
        "For policies that read it; higher is more important.", -handling.MAX_PRIORITY, handling.MAX_PRIORITY, 0
    ),
    "routing_key": _string("For policies that read it: equal keys like to run together.", **_NAME),
    "deadline_ms": _above_0("Milliseconds after which the request ends with an error.", handling.MAX_DEADLINE_MS),
    "tenant": _string("Whose things are meant; for administrators. By default the sender's own.", **_NAME),
    "namespaces": _schema(
        'Whether to look at other namespaces too; "all" is for administrators.', "own", enum=["own", "all"]
    ),
    "name": _string("What the pin is called.", **_NAME),
    "ttl_s": _above_0("Seconds that the pin lasts; by default until it is taken off.", asking.MAX_TTL_S),
    "sampling_params": _object("The sampling parameters.", {}, **_ref("SamplingParams")),
    "return_ids": _boolean("Add the token ids of the answer."),
    # length
    "max_tokens": _integer("Length of the answer; by default as much as fits; 0 only with echo.", 0, _COUNT),
    "max_completion_tokens": _integer("The same under a newer name; with both, they must agree.", 0, _COUNT),
    "max_output_tokens": _integer("Length of the answer, thoughts included; by default as much as fits.", 1, _COUNT),
    "max_new_tokens": _integer("Length of the answer; 0 computes the prompt only.", 0, _COUNT),
    "min_tokens": _integer("No stop token or string ends the text before.", 0, _COUNT, 0),
    "min_new_tokens": _integer("No stop token or string ends the text before.", 0, _COUNT, 0),
    # sampling
    "temperature": _number("0 is greedy; by default the model's own, else 1.", 0, params.MAX_TEMPERATURE),
    "top_p": _number("Keep the fewest tokens that reach this probability; by default the model's own, else 1.", 0, 1),
    "top_k": _integer("Keep this many tokens; -1 and 0 keep all; by default the model's own, else -1.", -1, _COUNT),
    "min_p": _number("Keep tokens at least this probable, as a share of the most probable one.", 0, 1),
    "repetition_penalty": _above_0(
        "Divides the logits of tokens that are there already; 1 changes nothing.", params.MAX_REPETITION_PENALTY
    ),
    "presence_penalty": _number("Taken off the logits of tokens in the output.", -_PENALTY, _PENALTY, 0),
    "frequency_penalty": _number("The same for each time that they are there.", -_PENALTY, _PENALTY, 0),
    "logit_bias": _object(
        "Added to the logits of token ids, which are the keys.",
        {},
        additionalProperties={"type": "number", "minimum": -params.MAX_BIAS, "maximum": params.MAX_BIAS},
        maxProperties=params.MAX_BIASES,
    ),
    "seed": _integer("The same seed gives the same text; by default drawn.", -params.MAX_SEED, params.MAX_SEED),
    "stop": _one_of(
        "Strings that end the text, and are cut off.",
        {"type": "string", "minLength": 1, "maxLength": params.MAX_STOP_CHARACTERS},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": params.MAX_STOP_CHARACTERS},
            "maxItems": params.MAX_STOP_STRINGS,
        },
    ),
    "stop_token_ids": _schema("Tokens that end the text.", **_IDS, maxItems=params.MAX_STOP_TOKENS),
    "ignore_eos": _boolean("The model's own end tokens do not end the text."),
    "include_stop_str_in_output": _boolean("The stop string that ended the text stays in it."),
    "no_stop_trim": _boolean("The same under SGLang's name."),
    "skip_special_tokens": _boolean("Special tokens have no text.", default=True),
    # answers
    "n": _integer("Answers to each prompt.", 1, params.MAX_ANSWERS, 1),
    "best_of": _schema("The value of n: all answers that are sampled are returned.", type="integer", minimum=1),
    "echo": _boolean("The answer begins with the prompt."),
    "logprobs": _one_of(
        "Log-probabilities of each token, and of so many of the most probable.",
        {"type": "integer", "minimum": 0, "maximum": _TOP},
        {"const": False},
    ),
    "top_logprobs": _integer("So many of the most probable tokens beside each; only with logprobs.", 0, _TOP, 0),
    "prompt_logprobs": _integer("The same of the prompt's tokens.", 0, _TOP),
    "return_logprob": _boolean("Tell log-probabilities of tokens."),
    "top_logprobs_num": _integer("So many of the most probable tokens beside each.", 0, _TOP, 0),
    "logprob_start_len": _schema(
        "The first token of the prompt whose log-probability is told, at most its length; -1: none.",
        -1,
        type="integer",
        minimum=-1,
    ),
    "return_text_in_logprobs": _boolean("Tokens beside log-probabilities have their text."),
    # tools
    "tools": _list("Functions that the model may call.", _ref("Tool")),
    "tool_choice": _one_of(
        "Whether the model may, must or must not call, or what.",
        {"type": "string", "enum": ["none", "auto", "required"]},
        {"type": "object"},
    ),
    "functions": _list("The same in an older form.", {"type": "object"}, []),
    "function_call": _one_of("The same in an older form.", {"enum": ["none", "auto"]}, {"type": "object"}),
    "parallel_tool_calls": _boolean("Whether the model may call several functions at once.", default=True),
    "separate_reasoning": _boolean("Thoughts stand in reasoning_content, not in the text.", default=True),
    "reasoning_effort": _string("How much the model is to think."),
    "include": _list("What else the answer is to have.", _TEXT, []),
    # form
    "response_format": _object(
        "What the answer must look like, in OpenAI's form.",
        properties={
            "type": {"enum": ["text", "json_object", "json_schema", "structural_tag", "regex", "ebnf", "choice"]},
        },
        required=["type"],
    ),
    "json_schema": _JSON_SCHEMA,
    "guided_json": _JSON_SCHEMA,
    "json_object": _boolean("Any JSON object."),
    "regex": _REGEX,
    "guided_regex": _REGEX,
    "ebnf": _GRAMMAR,
    "guided_grammar": _GRAMMAR,
    "choice": _CHOICE,
    "guided_choice": _CHOICE,
    "structural_tag": _one_of("Free text with tags.", {"type": "object"}, _TEXT),
    "structured_outputs": _object(
        "The same in vLLM's form: one of json, json_object, regex, choice, grammar, structural_tag."
    ),
    "grammar_whitespace": _integer(
        "Characters of white space between two tokens of a JSON text, at most; by default grammar.whitespace.",
        0,
        MAX_WHITESPACE,
    ),
    "grammar_verify": _schema("Check the finished answer once more; by default grammar.verify.", type="boolean"),
}
"""By name; what stands for the same everywhere."""

_HERE: Mapping[tuple[str, Scope], Schema] = {
    ("prompt", Scope.TOKENIZE): _string("The prompt as text."),
    ("text", Scope.GENERATE): _one_of("The prompt as text, or a batch.", _TEXT, _TEXTS),
    ("input_ids", Scope.GENERATE): _one_of("The prompt as token ids, or a batch.", _IDS, _BATCH),
    ("rid", Scope.GENERATE): _one_of(
        "The id of the request; in a batch also one for each prompt.",
        {"type": "string", **_NAME},
        {"type": "array", "items": {"type": "string", **_NAME}},
    ),
    ("rid", Scope.ABORT): _string("The id of the request, or of the batch.", minLength=1),
    ("text", Scope.RESPONSES): _object(
        "What the answer must look like.",
        properties={
            "format": _schema("As response_format, with the schema in the object itself.", type=["object", "null"])
        },
    ),
    ("tools", Scope.RESPONSES): _list("Functions that the model may call.", _ref("FlatTool")),
    ("logprobs", Scope.CHAT): _schema("Tell log-probabilities of tokens.", type="boolean"),
}
"""What means something else in one place."""

REQUIRED: Mapping[Scope, tuple[str, ...]] = {
    Scope.COMPLETIONS: ("prompt",),
    Scope.CHAT: ("messages",),
    Scope.RESPONSES: ("input",),
    Scope.ABORT: ("rid",),
    Scope.PIN: ("name",),
    Scope.UNPIN: ("name",),
    Scope.DETOKENIZE: ("tokens",),
}
"""Fields that must be there."""

ONE_OF: Mapping[Scope, tuple[str, ...]] = {
    Scope.GENERATE: ("text", "input_ids"),
    Scope.EXPLAIN: ("text", "input_ids", "messages"),
    Scope.PIN: ("text", "input_ids", "messages"),
    Scope.TOKENIZE: ("prompt", "messages"),
}
"""Fields of which one must be there, and not several."""

_FUNCTION: Mapping[str, Schema] = {
    "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "description": {"type": ["string", "null"]},
    "parameters": {"type": ["object", "null"], "description": "A JSON Schema of the arguments."},
    "strict": {"type": ["boolean", "null"], "description": "Whether arguments are held to it."},
}

PARTS: Mapping[str, Schema] = {
    "TokenId": _integer("A token id, below the size of the vocabulary.", 0, _COUNT),
    "Message": _object(
        "A message of a chat.",
        properties={
            "role": {"enum": list(ROLES)},
            "content": _one_of("The text, or its parts.", _TEXT, {"type": "array", "items": _ref("TextPart")}),
            "name": {"type": ["string", "null"]},
            "reasoning_content": {"type": ["string", "null"], "description": "What was thought before."},
        },
        required=["role", "content"],
    ),
    "TextPart": _object(
        "A part of a message.", properties={"type": {"const": "text"}, "text": _TEXT}, required=["type", "text"]
    ),
    "InputItem": _one_of(
        "An item of a conversation.",
        *map(_ref, ("InputMessage", "InputReasoning", "InputCall", "InputCallOutput")),
    ),
    "InputMessage": _object(
        "A message.",
        properties={
            "type": {"enum": ["message", None]},
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": _one_of("The text, or its parts.", _TEXT, {"type": "array", "items": _ref("ItemPart")}),
        },
        required=["role", "content"],
    ),
    "InputReasoning": _object(
        "What was thought before the assistant's item that follows.",
        properties={
            "type": {"const": "reasoning"},
            "content": {"type": ["array", "null"], "items": _ref("ReasoningPart")},
        },
        required=["type"],
    ),
    "InputCall": _object(
        "A call of a function.",
        properties={
            "type": {"const": "function_call"},
            "call_id": _TEXT,
            "name": _TEXT,
            "arguments": {"type": ["string", "object"], "description": "A JSON object, as a string."},
        },
        required=["type", "call_id", "name", "arguments"],
    ),
    "InputCallOutput": _object(
        "What came of a call.",
        properties={
            "type": {"const": "function_call_output"},
            "call_id": _TEXT,
            "output": _one_of("The text, or its parts.", _TEXT, {"type": "array", "items": _ref("ItemPart")}),
        },
        required=["type", "call_id", "output"],
    ),
    "ReasoningPart": _object(
        "A part of what was thought.",
        properties={"type": {"const": "reasoning_text"}, "text": _TEXT},
        required=["type", "text"],
    ),
    "ItemPart": _object(
        "A part of an item.",
        properties={"type": {"enum": ["input_text", "output_text"]}, "text": _TEXT},
        required=["type", "text"],
    ),
    "Tool": _object(
        "A function that the model may call.",
        properties={"type": {"const": "function", "default": "function"}, "function": _ref("Function")},
        required=["function"],
    ),
    "Function": _object("What it is called, what it does, and its arguments.", properties=_FUNCTION, required=["name"]),
    "FlatTool": _object(
        "A function that the model may call.",
        properties={"type": {"const": "function"}, **_FUNCTION},
        required=["type", "name"],
    ),
}
"""What fields are made of."""


def schema_of(field: Field, scope: Scope) -> Schema:
    """What a field may hold where it stands, null included. Raises `KeyError` where nobody has said it."""
    if field.kind is Kind.LATER:
        return {
            "enum": [*field.neutral, None],
            "description": "Not supported yet: refused by name where it asks for something.",
        }
    if field.kind is Kind.IGNORED:
        return {"description": "Without effect, and named in the answer's x-rtk-ignored-fields."}
    schema = _HERE.get((field.name, scope)) or SCHEMAS[field.name]
    return schema if field.name in REQUIRED.get(scope, ()) else _or_null(schema)


def _or_null(schema: Schema) -> Schema:
    """Null counts as absent."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "$ref" in schema:
        return {key: value for key, value in schema.items() if key not in ("type", "$ref")} | {
            "anyOf": [{"$ref": schema["$ref"]}, {"type": "null"}]
        }
    return {**schema, "type": [schema["type"], "null"]}
