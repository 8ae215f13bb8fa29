"""/v1/responses: what is asked becomes a chat, the answer becomes items, and a stream says the same in events."""

import json

import openai
import pytest
from fake_scheduler import LENGTH, STOP, Gate, model, saying
from http_harness import MODEL, InProcess, Served, error_of
from test_http_streams import aborted_within_a_second, endless, post, read_until
from tiny_tokenizer import CHATML, byte_level, ids_of

from rtk.schedule.messages import Finish, NewRequest
from rtk.serve.http.response_output import ResponseOutput
from rtk.serve.protocol import Delta
from rtk.serve.thinking import Thinking
from rtk.serve.tools import hermes
from rtk.serve.tools.machine import Tool
from rtk.serve.tools.reader import Reader

TOKENIZER = byte_level(b"</think>")
A, B, C = ids_of(TOKENIZER, "a", "b", "c")
END = ids_of(TOKENIZER, "</think>")[0]
THINKS = byte_level(b"</think>", template=CHATML + "{% if add_generation_prompt %}<think>{% endif %}")


def answering(script, **given):
    return InProcess(script, tokenizer=TOKENIZER, **given)


def thinking(script):
    http = InProcess(script, tokenizer=THINKS)
    http.manager._thinking = Thinking(THINKS, "</think>")
    return http


def respond(http, **body):
    return http.post("/v1/responses", {"input": "hi", **body})


def stream(http, **body):
    """The events of a stream, each with its name checked against what is in it."""
    response = respond(http, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return parsed(response.text)


def parsed(text):
    events = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def prompt(http):
    return THINKS.read(http.fake.prompts()[-1])


# --- what is asked ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"input": "hi"}, "user: hi"),
        ({"input": "hi", "instructions": "Be brief."}, "system: Be brief. | user: hi"),
        ({"input": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]}, "system: x | user: y"),
        (
            {
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {
                        "type": "message",
                        "id": "msg_1",
                        "status": "completed",
                        "role": "assistant",
                        "content": [
                            {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                            {"type": "output_text", "text": "c"},
                        ],
                    },
                ]
            },
            "user: a | assistant: b\nc",
        ),
        (
            {
                "input": [
                    {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed",
                     "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"role": "assistant", "content": "b"},
                    {"role": "user", "content": "c"},
                ]
            },
            "assistant (hm): b | user: c",
        ),
    ],
)  # fmt: skip
def test_input_becomes_a_chat(body, text):
    template = (
        "{% for m in messages %}{{ ' | ' if loop.index > 1 }}{{ m.role }}"
        "{{ ' (' + m.reasoning_content + ')' if m.reasoning_content }}: {{ m.content }}{% endfor %}"
    )
    with InProcess(saying(A), tokenizer=byte_level(template=template)) as http:
        answer = respond(http, **body)
        assert answer.status_code == 200, answer.text
        assert "x-rtk-ignored-fields" not in answer.headers
        assert prompt(http) == text


def test_fields_reach_the_request():
    with answering(saying(A)) as http:
        body = {"max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 7, "stop": "x"}
        answer = respond(http, **body, cache_salt="s", rid="mine", model=MODEL, user="u").json()
        (new,) = http.fake.of(NewRequest)
    assert (new.params.max_new_tokens, new.params.temperature, new.params.top_p) == (5, 0.5, 0.9)
    assert (new.params.top_k, new.params.seed, new.params.stop) == (4, 7, ("x",))
    assert (new.namespace.salt, new.name) == ("s", "mine")
    echoed = ("id", "max_output_tokens", "temperature", "top_p", "user", "model")
    assert [answer[name] for name in echoed] == ["mine", 5, 0.5, 0.9, "u", MODEL]


def test_what_the_model_has_for_requests_that_say_nothing_is_told():
    with answering(saying(A), default_sampling={"temperature": 0.3}) as http:
        answer = respond(http).json()
    assert (answer["temperature"], answer["top_p"]) == (0.3, 1)


def test_what_has_no_effect_is_named():
    with answering(saying(A)) as http:
        body = {"store": True, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "max_tokens": 3}
        orphan = [{"type": "reasoning", "content": None, "x": 1}, {"role": "user", "content": "hi", "y": 2}]
        answer = respond(http, input=orphan, **body)
    named = "store,metadata,max_tokens,input%5B0%5D.x,input%5B1%5D.y,input%5B0%5D,include%5B0%5D"
    assert answer.headers["x-rtk-ignored-fields"] == named
    assert (answer.json()["store"], answer.json()["metadata"]) == (False, {})


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": None}, "input", "input is missing: send a text, or a list of messages"),
        ({"input": 5}, "input", "input = 5: must be a string, or a list of messages"),
        ({"input": []}, "input", "input is empty: a prompt has at least one token"),
        ({"input": ["x"]}, "input[0]", """input[0] = 'x': must be an object with "role" and "content\""""),
        ({"input": [{"role": "tool"}]}, "input[0].role",
         "input[0].role = 'tool': must be one of system, developer, user, assistant"),
        ({"input": [{"role": "user"}]}, "input[0].content",
         "input[0].content = None: must be a string, or a list of text parts"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type",
         "\"input[0].content[0]: 'input_image'\" is not supported yet; leave it out"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type",
         "\"input[0]: 'item_reference'\" is not supported yet; leave it out"),
        ({"input": [{"type": 5}]}, "input[0].type", "input[0].type = 5: must be a string"),
        ({"input": [{"type": False}]}, "input[0].type", "input[0].type = False: must be a string"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content",
         "input[0].content = 'x': must be a list of text parts"),
        ({"input": "\ud800"}, "input", "input: unpaired surrogate U+D800 at character 0"),
        ({"instructions": "\ud800"}, "instructions", "instructions: unpaired surrogate U+D800 at character 0"),
        ({"instructions": ["x"]}, "instructions", "instructions = ['x']: must be a string"),
        ({"user": "\ud800"}, "user", "user: unpaired surrogate U+D800 at character 0"),
        ({"max_output_tokens": 0}, "max_output_tokens",
         "max_output_tokens = 0: must be an integer from 1 to 2147483647, or null"),
        ({"temperature": -1}, "temperature", "temperature = -1: must be a number from 0 (greedy) to 1000"),
        ({"previous_response_id": "resp_1"}, "previous_response_id",
         '"previous_response_id" is not supported yet; nothing is stored here: send the whole conversation as input'),
        ({"n": 2}, "n", '"n" is not supported yet; send several requests'),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type",
         "\"tools[0]: 'web_search'\" is not supported yet; leave it out"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name",
         "tools[0].name = 'a b': must be 1 to 128 of letters, digits and _ . : / -"),
        ({"tools": {}}, "tools", "tools = {}: must be a list"),
        ({"tools": [{"type": "function", "name": "now"}]}, "tools",
         "tools: this model's chat template does not read tools, so the model would not see them; leave tools out, and "
         "describe them in a message"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name",
         "tool_choice.name = 'x': must be the name of one of tools, such as none"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [1]}}, "tool_choice.mode",
         "tool_choice.mode = 'x': must be auto or required"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice: there are no tools to call; send some in tools"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "5", "call_id": "c"}]}, "input[0].arguments",
         "input[0].arguments = 5: must be a JSON object, as a string"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id",
         "input[0].call_id = None: must be the id of the call that it answers"),
        ({"background": True}, "background", '"background" is not supported yet; leave it out'),
        ({"truncation": "auto"}, "truncation", '"truncation" is not supported yet; leave it out'),
        ({"reasoning": {"effort": "low"}}, "reasoning", '"reasoning" is not supported yet; leave it out'),
        ({"text": {"verbosity": "low"}}, "text.verbosity", '"text.verbosity" is not supported yet; leave it out'),
        ({"text": {"format": "x"}}, "text.format",
         'text.format = \'x\': must be an object such as {"type": "json_object"}'),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema",
         "text.format.schema is missing: send a JSON Schema"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "x"}, "text.format",
         "regex and text.format: an answer can have one form; send one of them"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]",
         '"include[0]: message.output_text.logprobs" is not supported yet; leave it out'),
        ({"include": [1]}, "include[0]", "include[0] = 1: must be a string"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_refused_by_name(body, param, message, streamed):
    with answering(saying(A)) as http:
        error = error_of(respond(http, stream=streamed, **body))
    assert (error["param"], error["message"]) == (param, message)


def test_what_the_template_refuses_is_called_what_the_client_calls_it():
    with InProcess(None, tokenizer=byte_level(template="{{ raise_exception('no') }}")) as http:
        error = error_of(respond(http))
    assert (error["param"], error["message"]) == ("input", "input: the model's chat template refuses them: no")


# --- the answer -------------------------------------------------------------------------------------------------


def test_an_answer():
    with answering(saying(A, B, finish=STOP)) as http:
        answer = respond(http, instructions="x").json()
    identity, created, (message,) = answer.pop("id"), answer.pop("created_at"), answer.pop("output")
    assert identity.startswith("resp_")
    assert isinstance(created, int)
    assert message.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    assert answer == {
        "object": "response", "model": MODEL, "status": "completed", "error": None, "incomplete_details": None,
        "instructions": "x", "max_output_tokens": None, "temperature": 1, "top_p": 1,
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None},
        "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "previous_response_id": None,
        "truncation": "disabled", "store": False, "background": False, "metadata": {}, "user": None,
        "usage": {
            "input_tokens": 32, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 34,
        },
    }  # fmt: skip


def test_an_answer_that_is_cut_says_why():
    with answering(saying(A)) as http:
        answer = respond(http).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"


def test_an_answer_that_is_aborted_says_so():
    with answering(lambda new: iter([(A,), Finish(reason="abort")])) as http:
        answer = respond(http).json()
        *_, last = stream(http)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "aborted"})
    assert (last["type"], last["response"]["incomplete_details"]) == ("response.incomplete", {"reason": "aborted"})


def test_an_empty_answer_is_a_message_too():
    with answering(saying(finish=STOP)) as http:
        (message,) = respond(http).json()["output"]
    assert (message["type"], message["content"][0]["text"]) == ("message", "")


def test_what_is_thought_is_an_item_of_its_own():
    with thinking(saying(A, B, END, C, finish=STOP)) as http:
        answer = respond(http).json()
    thought, message = answer["output"]
    assert thought.pop("id").startswith("rs_")
    content = [{"type": "reasoning_text", "text": "ab"}]
    assert thought == {"type": "reasoning", "status": "completed", "summary": [], "content": content}
    assert message["content"][0]["text"] == "c"
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


def test_thinking_that_is_cut_leaves_no_message():
    with thinking(saying(A, B)) as http:
        (thought,) = respond(http).json()["output"]
    assert (thought["type"], thought["status"]) == ("reasoning", "incomplete")


# --- streams ----------------------------------------------------------------------------------------------------


def test_the_events_of_a_message_in_their_order():
    with answering(saying(A, B, finish=STOP)) as http:
        events = stream(http)
    created, progress, added, part_added, one, two, done, part_done, item_done, completed = events
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    for event in (created, progress):
        state = [event["response"][name] for name in ("status", "output", "usage")]
        assert state == ["in_progress", [], None]
    item = added["item"]
    assert item == {"id": item["id"], "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    for event in (part_added, one, two, done, part_done):
        assert place.items() <= event.items()
    assert (one["delta"], two["delta"], done["text"]) == ("a", "b", "ab")
    assert (part_added["part"]["text"], part_done["part"]["text"]) == ("", "ab")
    assert completed["response"]["output"] == [item_done["item"]]


def test_the_events_of_a_thought_and_a_message():
    with thinking(saying(A, END, C, finish=STOP)) as http:
        events = stream(http)
    kinds = [event["type"].removeprefix("response.") for event in events]
    opened, closed = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    assert kinds == [
        "created", "in_progress",
        *opened, "reasoning_text.delta", "reasoning_text.done", *closed,
        *opened, "output_text.delta", "output_text.done", *closed,
        "completed",
    ]  # fmt: skip
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 6 + [1] * 6


@pytest.mark.parametrize("bundle", [1, 2, 5])
def test_a_stream_ends_with_what_the_answer_would_be_without(bundle):
    def blank(answer):
        return {**answer, "id": "", "output": [{**item, "id": ""} for item in answer["output"]]}

    with thinking(saying(A, B, END, C, C, bundle=bundle, finish=LENGTH)) as http:
        whole = respond(http).json()
        *events, last = stream(http)
    assert last["type"] == "response.incomplete"
    assert blank(last["response"]) == blank({**whole, "created_at": last["response"]["created_at"]})
    for kind, index in (("reasoning_text", 0), ("output_text", 1)):
        said = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
        assert said == whole["output"][index]["content"][0]["text"]


def test_a_stop_string_is_in_no_event():
    with answering(model(TOKENIZER, [A, B, C])) as http:
        events = stream(http, stop="bc", temperature=0)
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["a"]
    assert events[-1]["response"]["status"] == "completed"


def test_an_error_inside_a_stream_is_its_last_event():
    failing = saying(A, finish=Finish(reason="error", problem="non-finite logits"))
    with answering(failing) as http:
        *_, delta, last = stream(http)
        assert error_of(respond(http), 500)["code"] == "generation_failed"
    assert (delta["type"], last["type"], last["response"]["status"]) == (
        "response.output_text.delta", "response.failed", "failed",
    )  # fmt: skip
    error = {"message": "non-finite logits", "type": "server_error", "param": None, "code": "generation_failed"}
    assert last["response"]["error"] == error
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_bug_inside_a_stream_is_told_without_its_inside(monkeypatch, caplog):
    def broken(self):
        raise LookupError("secret_name")

    with answering(saying(A, B)) as http:
        monkeypatch.setattr("rtk.serve.http.response_output._Item.closed", lambda self, status: broken(self))
        *_, last = stream(http)
    assert last["response"]["error"]["message"] == "the server failed on this request"
    assert "secret_name" in caplog.text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves(streamed, caplog):
    def waiting(new):
        yield Gate()

    with Served(endless if streamed else waiting, tokenizer=TOKENIZER) as http:
        with http.connection("/v1/responses", {"input": "hi", "stream": streamed}) as sock:
            if streamed:
                read_until(sock, b"output_text.delta")
            else:
                http.fake.wait_for(lambda f: f.running)
        aborted_within_a_second(http)
    assert not caplog.records


def test_what_is_not_stored_is_not_there():
    with answering(saying(A)) as http:
        identity = respond(http, store=True).json()["id"]
        assert error_of(http.get(f"/v1/responses/{identity}"), 404)["code"] == "unknown_path"


# --- tools ------------------------------------------------------------------------------------------------------

TOOLED = byte_level(
    template="{# <tool_call> #}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.a }}){% endfor %}"
    "{{ ' to ' + m.name if m.name }}|{% endfor %}{% for tool in tools or [] %}{{ tool.function.name }},{% endfor %}"
)
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALLS = (
    'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
)


def calling(text=CALLS, finish=STOP, bundle=1):
    pieces = [bytes([byte]) for byte in text.encode()]
    return InProcess(saying(*ids_of(TOOLED, *pieces), finish=finish, bundle=bundle), tokenizer=TOOLED)


def test_calls_are_items():
    with calling() as http:
        answer = respond(http, tools=[ADD]).json()
        assert TOOLED.read(http.fake.prompts()[-1]) == "user: hi|add,"
    message, one, two = answer["output"]
    assert (answer["status"], message["content"][0]["text"]) == ("completed", "I add.")
    assert one.pop("id").startswith("fc_")
    assert one.pop("call_id") != two["call_id"]
    assert one == {"type": "function_call", "status": "completed", "name": "add", "arguments": '{"a": 1}'}
    assert two["arguments"] == '{"a": 2}'
    assert (answer["tools"], answer["tool_choice"]) == ([ADD], "auto")


@pytest.mark.parametrize("bundle", [1, 3, 1000])
def test_calls_in_a_stream(bundle):
    with calling(bundle=bundle) as http:
        events = stream(http, tools=[ADD])
    output = events[-1]["response"]["output"]
    for index, item in enumerate(output):
        mine = [event for event in events if event.get("output_index") == index]
        assert mine[0]["type"] == "response.output_item.added"
        assert mine[-1] == {**mine[-1], "type": "response.output_item.done", "item": item}
        if item["type"] == "function_call":
            said = [event["delta"] for event in mine if event["type"] == "response.function_call_arguments.delta"]
            (done,) = [event for event in mine if event["type"] == "response.function_call_arguments.done"]
            assert "".join(said) == done["arguments"] == item["arguments"]
            assert done["name"] == "add"
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]


def test_a_call_that_is_cut_is_incomplete():
    with calling('<tool_call>\n{"name": "add", "arguments": {"a"', finish=LENGTH) as http:
        answer = respond(http, tools=[ADD]).json()
    (call,) = answer["output"]
    assert (call["status"], call["arguments"], answer["status"]) == ("incomplete", '{"a"', "incomplete")


def test_calls_and_what_came_of_them_are_said_again():
    with calling() as http:
        output = respond(http, tools=[ADD]).json()["output"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "5"} for call in output[1:]]
        answer = respond(http, input=[{"role": "user", "content": "hi"}, *output, *results], tools=[ADD])
        said = TOOLED.read(http.fake.prompts()[-1])
    assert said == "user: hi|assistant: I add.add(1)add(2)|tool: 5 to add|tool: 5 to add|add,"
    assert "x-rtk-ignored-fields" not in answer.headers


def test_without_tools_nobody_looks_for_calls():
    with calling() as http:
        for body in ({}, {"tools": []}, {"tools": [ADD], "tool_choice": "none"}):
            (message,) = respond(http, **body).json()["output"]
            assert message["content"][0]["text"] == CALLS


def test_openai_client_calls_tools():
    pieces = [bytes([byte]) for byte in CALLS.encode()]
    with (
        Served(saying(*ids_of(TOOLED, *pieces), finish=STOP), tokenizer=TOOLED) as http,
        openai.OpenAI(base_url=http.base + "/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.responses.create(model=MODEL, input="hi", tools=[ADD])
        with client.responses.stream(model=MODEL, input="hi", tools=[ADD]) as events:
            final = events.until_done().get_final_response()
    for output in (answer.output, final.output):
        assert [(item.name, item.arguments) for item in output[1:]] == [("add", '{"a": 1}'), ("add", '{"a": 2}')]


# --- the real client --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    with (
        Served(saying(A, B, C, finish=STOP), tokenizer=TOKENIZER) as http,
        openai.OpenAI(base_url=http.base + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_openai_client(client):
    answer = client.responses.create(
        model=MODEL, input="hi", instructions="Be brief.", max_output_tokens=9, store=False
    )
    assert (answer.output_text, answer.status, answer.error) == ("abc", "completed", None)
    assert (answer.usage.output_tokens, answer.usage.input_tokens_details.cached_tokens) == (3, 2)
    again = [*({"role": "user", "content": "hi"},), *answer.output, {"role": "user", "content": "and?"}]
    assert client.responses.create(model=MODEL, input=again).output_text == "abc"


def test_openai_client_stream(client):
    events = list(client.responses.create(model=MODEL, input="hi", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "abc"
    assert type(events[0]).__name__ == "ResponseCreatedEvent"
    assert events[-1].response.output_text == "abc"


def test_openai_client_stream_helper(client):
    with client.responses.stream(model=MODEL, input="hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots == ["a", "ab", "abc"]
    assert final.output_text == "abc"


def test_openai_client_hears_of_errors(client):
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as refused:
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert refused.value.code == "not_supported"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.responses.create(model="other", input="hi", stream=True)


def test_a_plain_client_reads_the_same():
    with Served(saying(A, B, finish=STOP), tokenizer=TOKENIZER) as http:
        events = parsed(post(http, "/v1/responses", {"input": "hi", "stream": True}).text)
    assert events[-1]["type"] == "response.completed"


def items_of(parts):
    """The items of an answer that comes in these parts: their types and what they say."""
    output = ResponseOutput(Reader(hermes.FORMAT, [Tool("add", {})]))
    for i, part in enumerate(parts, 1):
        more = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": i, "token_ids": (i,)}
        finish = STOP if i == len(parts) else None
        for _ in output.add(Delta(index=0, rid="r", text=part, content=part, finish=finish, **more)):
            pass
    return [(item["type"], item.get("arguments") or item["content"][0]["text"]) for item in output.items()]


def test_items_are_in_the_order_of_the_text_however_it_is_cut():
    text = 'Hi<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>then<tool_call>{"name":"add"}</tool_call>bye'
    one, two = ("function_call", '{"a":1}'), ("function_call", "{}")
    whole = [("message", "Hi"), one, ("message", "then"), two, ("message", "bye")]
    assert all(items_of([text[:at], text[at:]]) == whole for at in range(len(text)))
    assert items_of([*text]) == whole
