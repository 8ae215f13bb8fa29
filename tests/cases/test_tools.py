"""Cases C12 (tools), C38, C39, D17 (tools), D19 and D20, X32 and X36, by what clients get."""

import asyncio
import json
from typing import Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest
from fake_scheduler import STOP, saying
from http_harness import MODEL, InProcess, Served, error_of, events
from serving import Serving, form
from tiny_tokenizer import IM_END, byte_level, ids_of
from tokenizers import AddedToken

from rtk.serve.http.app import create_app
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.vocabulary import vocabulary

TEMPLATE = (
    "{# <tool_call> #}{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments.a }}{% endfor %}{% endfor %}{% for tool in tools or [] %}{{ tool.function.name }},"
    "{% endfor %}|{{ '<think>' if enable_thinking is defined and enable_thinking else '<think></think>' }}"
)
TOKENIZER = byte_level(b"</th", b"ink>", template=TEMPLATE)


def tool(name, strict=None, **properties):
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    if strict:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": "Does it.", "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


INTEGER = {"type": "integer"}
ADD, NOW, EMPTY = tool("add", a=INTEGER, b=INTEGER), tool("now"), tool("empty", strict=True)
SUM = tool("sum", strict=True, kind={"enum": ["x", "y"]}, ok={"type": "boolean"})


def says(*pieces):
    """A model that says this after any prompt, and ends there."""
    ids = [*ids_of(TOKENIZER, *pieces), IM_END]

    def script(history):
        (mark,) = ids_of(TOKENIZER, b"|")
        prompt = TOKENIZER.decode(history).partition("|")[2]
        begun = prompt.startswith("<think></think>")
        start = history.index(mark) + 1 + len("<think></think>" if begun else "<think>")
        return ids[min(len(history) - start, len(ids) - 1)]

    return script


def chars(text):
    return [bytes([byte]) for byte in text.encode()]


@pytest.fixture(scope="module")
def engines():
    """One engine, behind HTTP as each parser has it."""
    one = Serving(TOKENIZER, **{"grammar.compile_workers": 1})

    def get(parser):
        one.app = create_app(one.runtime.manager, HttpSettings(tool_parser=parser))
        return one

    yield get
    one.engine.close()


@pytest.fixture
def hermes(engines):
    return engines("auto")


def chat(serving, script, **body):
    serving.script = script
    return serving.post("/v1/chat/completions", **{"max_tokens": 300, **body})


def put_together(chunks):
    """The message and the finish reason that a client makes of a stream."""
    message, calls, reason = {"content": "", "reasoning_content": ""}, [], None
    for chunk in chunks:
        for choice in chunk["choices"]:
            new = choice["delta"]
            for name in message:
                message[name] += new.get(name) or ""
            for call in new.get("tool_calls", ()):
                if call["index"] == len(calls):
                    assert call["type"] == "function"
                    calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                else:
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    return (
        message["content"] or None,
        message["reasoning_content"] or None,
        [without_id(call) for call in calls],
        reason,
    )


def without_id(call):
    assert len(call["id"]) in (9, 29), "short ones are Mistral's"
    return call["name"], call["arguments"]


def answer(serving, script, **body):
    """Content, thoughts, calls and finish reason, the same as a stream and as a whole."""
    response = chat(serving, script, **body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    message = choice["message"]
    calls = [without_id({"id": call["id"], **call["function"]}) for call in message.get("tool_calls", ())]
    whole = message["content"] or None, message.get("reasoning_content"), calls, choice["finish_reason"]
    streamed = events(chat(serving, script, stream=True, **body))
    assert streamed.pop() == "[DONE]"
    assert put_together(streamed) == whole
    return whole


THREE = '[{"name":"add","arguments":{"a":2,"b":2}},{"name":"wipe","arguments":{}},{"name":"now","arguments":{}}]'


def test_x36_one_unknown_call_of_three_is_content(engines):
    """D19."""
    said = answer(engines("json"), says(*chars(THREE)), tools=[ADD, NOW])
    assert said == (',{"name":"wipe","arguments":{}}', None, [("add", '{"a":2,"b":2}'), ("now", "{}")], "tool_calls")


TWO = (
    'Both.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now"}\n</tool_call>'
)


def test_d20_two_parallel_calls(hermes):
    said = answer(hermes, says(*chars(TWO)), tools=[ADD, NOW])
    assert said == ("Both.", None, [("add", '{"a": 1, "b": 2}'), ("now", "{}")], "tool_calls")


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [
        (30, (TWO[:30], None, [], "length")),
        (52, ("Both.", None, [("add", '{"a":')], "length")),
        (70, ("Both.", None, [("add", '{"a": 1, "b": 2}')], "length")),
    ],
)
def test_a_call_that_is_cut_is_not_called_whole(hermes, max_tokens, expected):
    assert answer(hermes, says(*chars(TWO)), tools=[ADD, NOW], max_tokens=max_tokens) == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("2}", (None, [("add", '{"a": 1, "b": ')], "stop")),
        ("\n</tool_call>\n", (None, [("add", '{"a": 1, "b": 2}')], "tool_calls")),
        ("add", ('\n<tool_call>\n{"name": "', [], "stop")),
    ],
)
def test_a_stop_string_that_cuts_a_call_is_the_reason(hermes, stop, expected):
    content, _, calls, reason = answer(hermes, says(*chars(TWO)), tools=[ADD, NOW], stop=[stop])
    assert (content.removeprefix("Both.") or None, calls, reason) == expected


def test_ids_differ_and_choices_have_readers_of_their_own(hermes):
    text = '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now"}</tool_call>'
    message = chat(hermes, says(*chars(text)), tools=[NOW]).json()["choices"][0]["message"]
    assert message["content"] is None
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_without_tools_or_with_none_nobody_looks_for_calls(hermes):
    text = '<tool_call>{"name": "now"}</tool_call>'
    for body in ({}, {"tools": []}, {"tools": [NOW], "tool_choice": "none"}):
        assert answer(hermes, says(*chars(text)), **body) == (text, None, [], "stop")


# --- calls that are asked for -----------------------------------------------------------------------------------


SUM_CALLS = {
    "auto": '<tool_call>\n{"name": "sum", "arguments": ',
    "mistral": '[TOOL_CALLS][{"name": "sum", "arguments": ',
}
CHATTY = says(*chars("No, I would rather talk."))


def test_required(hermes):
    response = chat(hermes, CHATTY, tools=[ADD, SUM], tool_choice="required", parallel_tool_calls=False)
    assert response.headers["x-rtk-grammar"].split("; ")[1] == "loosened"
    reasons = response.json()["choices"][0]["rtk"]["grammar"]["reasons"]
    assert "keys that are not named may come twice in the arguments of tool 'add'" in reasons
    content, thought, calls, reason = answer(
        hermes, CHATTY, tools=[SUM], tool_choice="required", parallel_tool_calls=False
    )
    assert (content, thought, reason) == (None, None, "tool_calls")
    ((name, arguments),) = calls
    assert name == "sum"
    jsonschema.validate(json.loads(arguments), SUM["function"]["parameters"])


@pytest.mark.parametrize("parser", ["auto", "json", "llama3_json", "mistral", "pythonic", "qwen3_coder"])
@pytest.mark.parametrize("name", ["sum", "empty"])
def test_named_in_every_format(engines, parser, name):
    choice = {"type": "function", "function": {"name": name}}
    serving = engines(parser)
    serving.script = CHATTY
    response = serving.post("/v1/chat/completions", tools=[ADD, SUM, EMPTY], tool_choice=choice, max_tokens=300)
    (choice,) = response.json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_allowed_tools(hermes):
    body = {"mode": "required", "tools": [{"type": "function", "function": {"name": "sum"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": body}
    _, _, calls, _ = answer(hermes, CHATTY, tools=[ADD, SUM], tool_choice=choice, parallel_tool_calls=False)
    assert [name for name, _ in calls] == ["sum"]
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    body["mode"] = "auto"
    body["tools"] = [{"type": "function", "function": {"name": "now"}}]
    assert answer(hermes, says(*chars(text)), tools=[ADD, NOW], tool_choice=choice) == (text, None, [], "stop")


def test_strict_tools_are_kept_wherever_the_model_calls_one(hermes):
    text = 'Well <tool_call>\n{"name": "sum", "arguments": {"kind": "z", "ok": 7}}\n</tool_call> done'
    content, _, calls, reason = answer(hermes, says(*chars(text)), tools=[SUM, ADD])
    ((name, arguments),) = calls
    jsonschema.validate(json.loads(arguments), SUM["function"]["parameters"])
    assert (name, content[:4], reason) == ("sum", "Well", "tool_calls")
    assert answer(hermes, CHATTY, tools=[SUM]) == ("No, I would rather talk.", None, [], "stop")


@pytest.mark.parametrize("parser", ["json", "llama3_json", "pythonic"])
def test_strict_tools_where_calls_are_whole_answers(engines, parser):
    serving = engines(parser)
    assert answer(serving, CHATTY, tools=[SUM]) == ("No, I would rather talk.", None, [], "stop")
    text = (
        '{"name": "sum", "parameters": {"kind": 5}}'
        if parser == "llama3_json"
        else '[{"name": "sum", "arguments": {}}]'
    )
    _, _, calls, _ = answer(serving, says(*chars(text)), tools=[SUM], parallel_tool_calls=False)
    ((_, arguments),) = calls
    jsonschema.validate(json.loads(arguments), SUM["function"]["parameters"])


@pytest.mark.parametrize("parser", ["auto", "mistral"])
def test_a_schema_beside_tools_is_for_answers_that_are_no_calls(engines, parser):
    serving, body = engines(parser), {"tools": [SUM], "response_format": form(WEIGHT), "parallel_tool_calls": False}
    assert answer(serving, says(*chars('{"kg": 1}')), **body) == ('{"kg": 1}', None, [], "stop")
    call = SUM_CALLS[parser] + '{"kind": "y", "ok": true}'
    _, _, calls, _ = answer(serving, says(*chars(call)), **body)
    assert calls == [("sum", '{"kind": "y", "ok": true}')]
    assert answer(serving, CHATTY, tool_choice="required", **body)[2][0][0] == "sum"
    texts = {"type": "array", "items": {"type": "string"}}
    text = json.dumps([call, "[TOOL_CALLS]sum[ARGS]{}"])
    assert answer(serving, says(*chars(text)), **body | {"response_format": form(texts)}) == (text, None, [], "stop")


UNIQUE = {"type": "array", "items": INTEGER, "uniqueItems": True}


def test_c12_a_strict_tool_that_nobody_can_keep_is_refused(hermes):
    many = [tool(f"t{i}", strict=True, a=INTEGER) for i in range(29)]
    many.insert(17, tool("odd", strict=True, tags=UNIQUE))
    error = error_of(chat(hermes, CHATTY, tools=many))
    assert (error["param"], error["code"]) == ("tools", "unsupported_grammar")
    assert "uniqueItems" in error["message"]
    assert "at #/properties/tags/uniqueItems in the parameters of tool 'odd'" in error["message"]
    many[17]["function"]["strict"] = False
    assert answer(hermes, CHATTY, tools=many) == ("No, I would rather talk.", None, [], "stop")
    response = chat(hermes, CHATTY, tools=many)
    assert response.headers["x-rtk-grammar"].split("; ")[1] == "loosened"
    reasons = response.json()["choices"][0]["rtk"]["grammar"]["reasons"]
    (reason,) = (one for one in reasons if "'odd' may be any object" in one)
    assert "uniqueItems" in reason


def test_a_strict_tool_names_all_its_keys(hermes):
    loose = tool("loose", strict=True, a={"type": "object"})
    error = error_of(chat(hermes, CHATTY, tools=[NOW, loose]))
    assert (
        "set \"additionalProperties\": false, at #/properties/a in the parameters of tool 'loose'" in error["message"]
    )
    wrong = tool("wrong", strict=True, a={"type": "integr"})
    error = error_of(chat(hermes, CHATTY, tools=[wrong]))
    assert "the parameters of tool 'wrong'" in error["message"]
    assert "integr" in error["message"]


# --- thinking ---------------------------------------------------------------------------------------------------

WEIGHT = {"type": "object", "properties": {"kg": {"type": "number"}}, "required": ["kg"], "additionalProperties": False}
THOUGHT = [*chars("hmm {not json} "), b"</th", b"ink>", *chars('{"kg":1}')]


@pytest.mark.parametrize(
    ("thinks", "max_tokens", "expected"),
    [
        (True, 60, ('{"kg":1}', "hmm {not json} ", [], "stop")),
        (True, 3, (None, "hmm", [], "length")),
        (False, 60, None),
        (False, 3, None),
    ],
)
def test_x32_thinking_and_a_schema(hermes, thinks, max_tokens, expected):
    """C38."""
    body = {"chat_template_kwargs": {"enable_thinking": thinks}, "response_format": form(WEIGHT)}
    said = answer(hermes, says(*THOUGHT), max_tokens=max_tokens, **body)
    if expected is None:  # constrained from the first token
        assert said[0].startswith("{")
        assert said[1] is None
    else:
        assert said == expected


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "sum"}}])
def test_c39_thinking_and_a_call_that_is_required(hermes, choice):
    content, thought, calls, reason = answer(
        hermes,
        says(*chars("hmm <tool_call> "), b"</th", b"ink>", *chars("So: 5")),
        tools=[SUM],
        tool_choice=choice,
        parallel_tool_calls=False,
        chat_template_kwargs={"enable_thinking": True},
    )
    assert (content, thought, reason) == (None, "hmm <tool_call> ", "tool_calls")
    ((name, arguments),) = calls
    assert name == "sum"
    jsonschema.validate(json.loads(arguments), SUM["function"]["parameters"])


def test_thoughts_that_are_not_to_be_separate(hermes):
    body = {"chat_template_kwargs": {"enable_thinking": True}, "separate_reasoning": False}
    assert answer(hermes, says(*THOUGHT), **body) == ('hmm {not json} </think>{"kg":1}', None, [], "stop")
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    said = answer(hermes, says(*chars(call), b"</th", b"ink>", *chars("\n\n" + call)), tools=[ADD], **body)
    assert said == (call + "</think>\n\n", None, [("add", "{}")], "tool_calls"), "in thoughts nobody calls"


@pytest.mark.parametrize("parser", ["auto", "json", "llama3_json", "mistral", "pythonic"])
def test_required_calls_behind_thoughts_that_are_not_to_be_separate(engines, parser):
    serving, script = engines(parser), says(*chars("{} "), b"</th", b"ink>")
    body = {"chat_template_kwargs": {"enable_thinking": True}, "separate_reasoning": False, "tools": [SUM]}
    content, thought, calls, reason = answer(serving, script, tool_choice="required", parallel_tool_calls=False, **body)
    assert (content, thought, reason) == ("{} </think>", None, "tool_calls")
    assert [name for name, _ in calls] == ["sum"]


def test_calls_behind_a_message_that_is_repeated(engines):
    body = {"messages": [{"role": "assistant", "content": "<think></think>"}], "tools": [NOW], "echo": True}
    script = says(*chars('[{"name": "now", "arguments": {}}]'))
    serving = engines("json")
    said = answer(
        serving,
        lambda history: script([*ids_of(TOKENIZER, "|"), *history]),
        **body,
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert said == ("<think></think>", None, [("now", "{}")], "tool_calls")


# --- what is sent -----------------------------------------------------------------------------------------------


def prompt_of(serving, **body):
    seen = []

    def script(history):
        seen.append(TOKENIZER.decode(history))
        return IM_END

    assert chat(serving, script, **body).status_code == 200
    return seen[0]


def test_templates_get_tools_and_calls(hermes):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5}'}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seven"}]},
    ]
    assert prompt_of(hermes, messages=messages, tools=[ADD, NOW]) == "u5sevenadd,now,|<think></think>"


BAD_TOOLS = [
    ({"tools": {}}, "tools"),
    ({"tools": ["x"]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [NOW, NOW]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
    ({"tools": [tool(f"t{i}") for i in range(129)]}, "tools"),
    ({"tools": [NOW], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [NOW], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": [NOW], "grammar_whitespace": -1}, "grammar_whitespace"),
    ({"tools": [NOW], "regex": "a"}, "regex"),
    ({"tools": [NOW], "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [NOW], "response_format": form({"type": "object"})}, "tools"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"tools": [tool("f", x={"enum": ["\ud800"]})]}, "tools[0].function.parameters.properties.x.enum[0]"),
    ({"tools": [tool("f", **{"\ud800": {}})]}, "tools[0].function.parameters.required[0]"),
]


@pytest.mark.parametrize(("body", "place"), BAD_TOOLS, ids=[str(i) for i in range(len(BAD_TOOLS))])
def test_tools_that_cannot_be_used(hermes, body, place):
    error = error_of(hermes.post("/v1/chat/completions", **body))
    assert error["param"] == place
    assert "rtk." not in error["message"]


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ({"id": "x", "function": {"name": "f", "arguments": "[1]"}}, ".function.arguments"),
        ({"id": "x", "function": {"name": "f", "arguments": "{"}}, ".function.arguments"),
        ({"id": "x", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}, ".function.arguments.a"),
        ({"id": "x", "function": {"name": "f", "arguments": "\ud800"}}, ".function.arguments"),
        ({"id": "x", "function": {"name": "f", "arguments": '{"a": NaN}'}}, ".function.arguments"),
        ({"id": "x", "function": {"name": 5, "arguments": "{}"}}, ".function.name"),
        ({"function": {"name": "f", "arguments": "{}"}}, ".id"),
        ({"id": "x", "type": "custom", "function": {}}, ".type"),
        ({"id": "x"}, ""),
    ],
)
def test_d17_calls_that_cannot_be_used(hermes, call, place):
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    assert error_of(hermes.post("/v1/chat/completions", **body))["param"] == "messages[0].tool_calls[0]" + place


@pytest.mark.parametrize("depth", [200, 400, 440, 465])
@pytest.mark.parametrize("body", [{}, {"tool_choice": "required"}])
def test_tools_that_are_nested_deeply_are_a_client_s_error_at_most(hermes, depth, body):
    schema = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
    function = {"name": "f", "strict": True, "parameters": schema}
    for fields in (
        {"tools": [{"type": "function", "function": function}], **body},
        {"messages": [{"role": "assistant", "tool_calls": [call]}]},
    ):
        assert hermes.post("/v1/chat/completions", max_tokens=3, **fields).status_code in (200, 400)


def test_who_else_may_not_call(hermes):
    call = {"id": "x", "function": {"name": "f", "arguments": "{}"}}
    for message, place in (
        ({"role": "user", "content": "x", "tool_calls": [call]}, "tool_calls"),
        ({"role": "assistant", "content": "x", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "content": "x", "tool_calls": 0}, "tool_calls"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"role": "function", "name": "f", "content": "x"}, "role"),
    ):
        assert error_of(hermes.post("/v1/chat/completions", messages=[message]))["param"] == f"messages[0].{place}"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ messages[0].content }}", "this model's chat template does not read tools"),
        ("{{ messages[0].content }}{{ tools | length }}", "the chat template does not say how it writes calls"),
    ],
)
def test_a_model_that_is_not_told_of_tools(template, problem):
    with InProcess(saying(IM_END), tokenizer=byte_level(template=template)) as http:
        error = error_of(http.chat(tools=[NOW]))
        assert (error["code"], error["param"]) == ("tools_not_supported", "tools")
        assert problem in error["message"]
        assert http.chat(tools=[NOW], tool_choice="none").status_code == 200


def test_a_server_that_reads_no_calls():
    with InProcess(saying(IM_END), tokenizer=TOKENIZER, settings={"tool_parser": "none"}) as http:
        error = error_of(http.chat(tools=[NOW]))
        assert "this server reads no calls (serve.tool_parser, one of hermes, " in error["message"]


# --- special tokens ---------------------------------------------------------------------------------------------


def with_special(*tokens):
    known = byte_level(template="{{ (tools or []) | length }}[TOOL_CALLS][ARGS]{{ messages[0].content }}|")
    known._backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    return Tokenizer(known._backend, {"bos_token": "<bos>", "eos_token": "<|im_end|>"}, known.tool_template)


MISTRAL = with_special("[TOOL_CALLS]", "[ARGS]", "[OTHER]")


def test_marks_that_are_special_tokens_are_read_and_others_are_not():
    mark, between, other = (MISTRAL._backend.token_to_id(text) for text in ("[TOOL_CALLS]", "[ARGS]", "[OTHER]"))
    ids = [*ids_of(MISTRAL, "a"), other, mark, *ids_of(MISTRAL, *"now"), between, *ids_of(MISTRAL, *"{}"), IM_END]
    with InProcess(saying(*ids, finish=STOP), tokenizer=MISTRAL) as http:
        choice = http.chat(tools=[NOW]).json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert (choice["message"]["content"], call["function"]) == ("a", {"name": "now", "arguments": "{}"})
        assert (len(call["id"]), choice["finish_reason"]) == (9, "tool_calls")
        assert http.chat().json()["choices"][0]["message"]["content"] == "a[TOOL_CALLS]now[ARGS]{}"
        stops = http.chat(tools=[NOW], stop=["[ARGS]"]).json()["choices"][0]
        assert (stops["message"]["content"], stops["message"].get("tool_calls")) == ("a[TOOL_CALLS]now", None)


def test_grammars_write_marks_as_the_tokens_that_they_are():
    known = vocabulary(MISTRAL, MISTRAL.size, {IM_END})
    ids = [MISTRAL._backend.token_to_id(text) for text in ("[TOOL_CALLS]", "[ARGS]", "[OTHER]", "<|im_end|>")]
    assert [known.tokens[one] for one in ids] == [b"[TOOL_CALLS]", b"[ARGS]", b"", b""]


# --- OpenAI's client --------------------------------------------------------------------------------------------


def test_openais_client_puts_a_stream_of_calls_together():
    text = (
        'Ok <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call><tool_call>{"name": "now"}</tool_call>'
    )
    with Served(saying(*ids_of(TOKENIZER, *chars(text)), IM_END, finish=STOP), tokenizer=TOKENIZER) as served:
        client = openai.OpenAI(base_url=f"{served.base}/v1", api_key="none", max_retries=0)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": [ADD, NOW]}
        with client.chat.completions.stream(**body) as stream:
            kinds = [event.type for event in stream]
            choice = stream.get_final_completion().choices[0]
        whole = client.chat.completions.create(**body).choices[0]
        for one in (choice, whole):
            calls = [(call.function.name, call.function.arguments) for call in one.message.tool_calls]
            assert calls == [("add", '{"a": 1, "b": 2}'), ("now", "{}")]
            assert (one.message.content, one.finish_reason) == ("Ok", "tool_calls")
        assert kinds.count("tool_calls.function.arguments.done") == 2
        said = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call.model_dump() for call in whole.message.tool_calls],
        }
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in whole.message.tool_calls]
        body["messages"] += [said, *results]
        assert client.chat.completions.create(**body).choices[0].finish_reason == "tool_calls"
        client.close()


class Sum(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    kind: Literal["x", "y"]
    ok: bool


def test_openais_client_parses_what_a_strict_tool_is_called_with(hermes):
    async def ask():
        transport = httpx.ASGITransport(app=hermes.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            client = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
            return await client.chat.completions.parse(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                tools=[openai.pydantic_function_tool(Sum)],
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=200,
            )

    hermes.script = CHATTY
    answer = asyncio.run_coroutine_threadsafe(ask(), hermes.engine._loop).result(60)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Sum)
