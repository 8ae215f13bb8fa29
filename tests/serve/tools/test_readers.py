"""What of an answer is content, and what calls of tools, in every format, and however the text is cut."""

import itertools
import json
import random

import pytest
from tiny_tokenizer import byte_level

from rtk.serve.tools import hermes, mistral, objects, pythonic, qwen3_coder
from rtk.serve.tools.choose import NAMES, tool_format
from rtk.serve.tools.machine import Tool
from rtk.serve.tools.reader import Reader

PROPERTIES = {"a": {"type": "integer"}, "s": {"type": "string"}}
TOOLS = (Tool("add", {"type": "object", "properties": PROPERTIES}), Tool("now", {}), Tool("a.b-c", {}))
PYTHONIC, CODER = pythonic.FORMAT, qwen3_coder.FORMAT


def read(form, parts, most=None):
    """The content, and the calls with their arguments, put together as a client would."""
    reader = Reader(form, TOOLS, most)
    content, calls = [], []
    for i, part in enumerate(parts):
        said = reader.push(part, last=i == len(parts) - 1)
        content.append(said.content)
        for call in said.calls:
            assert bool(call.id) == bool(call.name), "both come first, and both once"
            if call.id:
                calls.append((call.name, []))
            assert call.index == len(calls) - 1
            assert call.id or call.arguments, "nothing is said for nothing"
            calls[call.index][1].append(call.arguments)
    assert reader.calls == len(calls)
    return "".join(content), [(name, "".join(arguments)) for name, arguments in calls]


HERMES = [
    ("just text <tool", ("just text <tool", [])),
    ("", ("", [])),
    (" \n", (" \n", [])),
    (
        'Hi.\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "s": "}\\"{"}}\n</tool_call>\n',
        ("Hi.", [("add", '{"a": 1, "s": "}\\"{"}')]),
    ),
    (
        '<tool_call>{"name":"now"}</tool_call>\n<tool_call>{"arguments":{"a": 1},"name":"add"}</tool_call> then\n ',
        ("then\n ", [("now", "{}"), ("add", '{"a": 1}')]),
    ),
    # an unknown tool beside known ones
    (
        'x<tool_call>{"name":"add","arguments":{}}</tool_call><tool_call>{"name":"wipe","arguments":{}}</tool_call>\n'
        '<tool_call>{"name":"now","arguments":null}</tool_call>',
        ('x<tool_call>{"name":"wipe","arguments":{}}</tool_call>', [("add", "{}"), ("now", "{}")]),
    ),
    # what is malformed before the arguments is content
    ("<tool_call>add(1)</tool_call>y", ("<tool_call>add(1)</tool_call>y", [])),
    ('<tool_call>{"name": add}</tool_call>', ('<tool_call>{"name": add}</tool_call>', [])),
    *((text, (text, [])) for text in (
        '<tool_call>{"name": "add", "arguments": 5}', '<tool_call>{"name":"add","arguments":"1"}</tool_call>',
        '<tool_call>{"arguments":{}}</tool_call>', '<tool_call>{"name":"add","arguments":[]}')),
    ('<tool_call>{"name": "add", "arg', ('<tool_call>{"name": "add", "arg', [])),
    ('<tool_call>{1]</tool_call> <tool_call>{"name":"now"}', ("<tool_call>{1]</tool_call>", [("now", "{}")])),
    # what is malformed in them stays theirs
    ('<tool_call>{"name":"add","arguments":{"a":]}}</tool_call>z', ("z", [("add", '{"a":]}}')])),
    ('<tool_call>{"name":"add","arguments":{"a": 1', ("", [("add", '{"a": 1')])),
    # a brace or a mark that is missing
    ('<tool_call>{"name":"add","arguments":{"a":1}\n</tool_call>z', ("z", [("add", '{"a":1}')])),
    ('<tool_call>{"name":"now"}<tool_call>{"name":"now"}', ("", [("now", "{}"), ("now", "{}")])),
    ('a<tool_call>{"name":"now"}\n</tool_c', ("a", [("now", "{}")])),
    ('<tool_call>{"name":"now"} </tool <', ("</tool <", [("now", "{}")])),
    ('<tool_call>{"name":"now"} oh</tool_call>!', ("oh!", [("now", "{}")])),
    # arguments as a text
    ('<tool_call>{"name":"add","arguments":"{\\"a\\": 1}"}</tool_call>', ("", [("add", '{"a": 1}')])),
    ('<tool_call>{"arguments":"{\\"a\\":\\"\\ud800\\"}","name":"add"}</tool_call>'.replace("\\ud", "\\\\ud"),
     ("", [("add", '{"a":"\\ud800"}')])),
    ('<tool_call>{"name":"a.b-c","arguments":{},"id":7,"why":"x"}</tool_call>', ("", [("a.b-c", "{}")])),
]  # fmt: skip
OBJECTS = [
    (
        '[{"name":"add","arguments":{"a":2,"b":2}},{"name":"wipe","arguments":{}},{"name":"now","arguments":{}}]',
        (',{"name":"wipe","arguments":{}}', [("add", '{"a":2,"b":2}'), ("now", "{}")]),
    ),
    (' {"name": "add", "arguments": {"a": 1}} \n', ("", [("add", '{"a": 1}')])),
    ('{"name": "now"}; {"name": "now", "parameters": {}}', ("", [("now", "{}"), ("now", "{}")])),
    # data is data
    ('[{"name":"Bob"}, {"name":"Eve"}]\n', ('[{"name":"Bob"}, {"name":"Eve"}]\n', [])),
    ('{"name":"add","price":3}', ('{"name":"add","price":3}', [])),
    ('\n{"a": [1, {"name": "add"}]} ', ('\n{"a": [1, {"name": "add"}]} ', [])),
    ("[1, 2]", ("[1, 2]", [])),
    ("{", ("{", [])),
    ("[", ("[", [])),
    ('say {"name":"now"}', ('say {"name":"now"}', [])),
    ('[{"name":"now"}, oh]', (", oh]", [("now", "{}")])),
    ('{"name":"now"} then', ("then", [("now", "{}")])),
    ('[{"name":"add","arguments":{"a":]}}]', ("", [("add", '{"a":]}}]')])),
]
MISTRAL = [
    ("plain [TOOL", ("plain [TOOL", [])),
    (
        'a [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]x1[ARGS]{}[TOOL_CALLS]wipe[ARGS]{} z',
        ("a[TOOL_CALLS]wipe[ARGS]{} z", [("add", '{"a": 1}'), ("now", "{}")]),
    ),
    (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name":"now","arguments":{}}]',
        ("", [("add", '{"a": 1}'), ("now", "{}")]),
    ),
    ('[TOOL_CALLS]add{"a": 1}', ("", [("add", '{"a": 1}')])),
    ("[TOOL_CALLS]add[ARGS]7 [TOOL_CALLS]now[ARGS]{}", ("[TOOL_CALLS]add[ARGS]7", [("now", "{}")])),
    ("[TOOL_CALLS]add[OH]{}", ("[TOOL_CALLS]add[OH]{}", [])),
    ('[TOOL_CALLS]add[ARGS]{"a":][TOOL_CALLS]now[ARGS]{}', ("", [("add", '{"a":]'), ("now", "{}")])),
]
LISTS = [
    ("[add(a=1, s='x(\"'), now()]", ("", [("add", '{"a": 1, "s": "x(\\""}'), ("now", "{}")])),
    ("[a.b-c(x=[1, -2.5, {'k': None}], y=true, z=(False,))] ok", (
        "ok", [("a.b-c", '{"x": [1, -2.5, {"k": null}], "y": true, "z": [false]}')])),
    ("[add(a=1), wipe(), now()]", (", wipe()", [("add", '{"a": 1}'), ("now", "{}")])),
    ('[{"name": "now"}]', ("", [("now", "{}")])),
    *((text, (text, [])) for text in (
        "[add(1)]", "[add(a=f(1))]", "[add(a=1", "[add(**x)]", "[add(a={1})]", "[add(a=1, a=2)]", "[x, y]", "[add]",
        "add(a=1)", "[add(a=']", "[add(a=1e999)]", "[add(a=b'x')]", "[add(a=f'x')]", "[]")),
    ("[add(a=1)(b=2)]", ("(b=2)]", [("add", '{"a": 1}')])),
    ("[add(s='\\dé')]", ("", [("add", '{"s": "\\\\dé"}')])),
    ("[add(s='\\ud800')]", ("[add(s='\\ud800')]", [])),
    ("[add(from='x', class=1, _a=[from], _=2)]", ("[add(from='x', class=1, _a=[from], _=2)]", [])),
    (
        "[add(from='x',class=1,\n_a=(1, 2), _={'in': 1}, é=',if=')]",
        ("", [("add", '{"from": "x", "class": 1, "_a": [1, 2], "_": {"in": 1}, "é": ",if="}')]),
    ),
    ("[add(a=" + "(" * 300 + ")" * 300 + ")]", ("[add(a=" + "(" * 300 + ")" * 300 + ")]", [])),
]  # fmt: skip
ELEMENTS = [
    (
        "Hm.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n2\n\"é\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ("Hm.", [("add", '{"a": 1, "s": "2\\n\\"é"}'), ("now", "{}")]),
    ),
    ('<tool_call>{"name":"now"}</tool_call>', ("", [("now", "{}")])),
    ("<tool_call><function=wipe></function></tool_call>", ("<tool_call><function=wipe></function></tool_call>", [])),
    ("<tool_call><function=add><parameter=a>[1</parameter></function>", ("", [("add", '{"a": "[1"}')])),
    ("<tool_call><function=add><parameter=s>ab", ("", [("add", '{"s": "ab')])),
    ("<tool_call><function=add><parameter=a>1</parameter>or<parameter=s>x</parameter></function></tool_call>y", (
        "ory", [("add", '{"a": 1, "s": "x"}')])),
    ("<tool_call><function=add>what<parameter=a>1</parameter></tool_call>", ("what", [("add", '{"a": 1}')])),
    ("<tool_call><function=a", ("<tool_call><function=a", [])),
    ("<tool_call><fun", ("<tool_call><fun", [])),
]  # fmt: skip
CASES = [
    *((hermes.FORMAT, *case) for case in HERMES),
    *((objects.JSON, *case) for case in OBJECTS),
    *((objects.LLAMA3, *case) for case in OBJECTS),
    (objects.LLAMA3, '<|python_tag|>{"name": "now", "parameters": {}}', ("", [("now", "{}")])),
    (objects.LLAMA3, "<|python_tag|>print()", ("<|python_tag|>print()", [])),
    *((mistral.NEW, *case) for case in MISTRAL),
    *((PYTHONIC, *case) for case in LISTS),
    *((CODER, *case) for case in ELEMENTS),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_every_way_to_cut_says_the_same(form, text, expected):
    whole = read(form, [text])
    assert whole == expected
    for at in range(len(text) + 1):
        assert read(form, [text[:at], text[at:]]) == whole, at
    assert read(form, [*text]) == whole
    assert read(form, [*text, ""]) == whole
    dice = random.Random(text)
    for _ in range(20):
        cuts = sorted(dice.choices(range(len(text) + 1), k=5))
        assert read(form, [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]) == whole, cuts


@pytest.mark.parametrize("form", [hermes.FORMAT, objects.JSON, mistral.NEW, PYTHONIC, CODER])
def test_texts_at_random_are_cut_at_random(form):
    dice = random.Random(form.name)
    pieces = [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<function=add>", "<parameter=a>", "</parameter>"),
        *("</function>", '{"name":', '"add"', '"arguments":', "{", "}", "[", "]", "(", ")", "add", "a=", "1", ",", ";"),
        *(" ", "\n", '"', "\\", "'", "x", "é", '{"name": "now", "arguments": {}}', "[now()", "<", "[TOOL", "null", ":"),
    ]
    for _ in range(300):
        text = "".join(dice.choices(pieces, k=dice.randrange(1, 14)))
        whole = read(form, [text])
        assert read(form, [*text]) == whole, text
        at = dice.randrange(len(text) + 1)
        assert read(form, [text[:at], text[at:]]) == whole, (text, at)


def test_calls_beyond_the_most_are_content():
    text = '<tool_call>{"name":"now"}</tool_call> <tool_call>{"name":"now"}</tool_call>'
    assert read(hermes.FORMAT, [text], 1) == ('<tool_call>{"name":"now"}</tool_call>', [("now", "{}")])


def test_arguments_come_as_they_are_written():
    reader = Reader(hermes.FORMAT, TOOLS)
    said = [reader.push(part).calls for part in ('<tool_call>{"name": "add", ', '"arguments": {"a"', ": 1", "}", "}")]
    assert [[(call.name, call.arguments) for call in calls] for calls in said] == [
        *([], [("add", '{"a"')], [("", ": 1")], [("", "}")], [])
    ]


def test_ids():
    ids = {hermes.FORMAT.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(one.startswith("call_") and len(one) == 29 for one in ids)
    assert all(len(one) == 9 and one.isalnum() for one in (mistral.NEW.new_id() for _ in range(100)))


@pytest.mark.parametrize(
    "form", [hermes.FORMAT, objects.JSON, objects.LLAMA3, mistral.NEW, mistral.OLD, PYTHONIC, CODER]
)
def test_what_grammars_write_is_read(form):
    layout = form.layout
    one = layout.head_of("add") + '{"a": 1}' + layout.tail
    other = layout.head_of("now") + "{}" + layout.tail
    text = layout.begin + one + layout.between + other + layout.end
    assert read(form, [text]) == ("", [("add", '{"a": 1}'), ("now", "{}")])
    assert text.startswith(layout.trigger or layout.openers)


TEMPLATES = {
    "{{ tools }} <tool_call>{{ x }}</tool_call>": hermes.FORMAT,
    "{{ tools }} <tool_call><function=x>": CODER,
    "{{ tools }} [TOOL_CALLS] [": mistral.OLD,
    "{{ tools }} [TOOL_CALLS]x[ARGS]": mistral.NEW,
    "{{ tools }} <|python_tag|>": objects.LLAMA3,
    '{{ tools }} {"name": function name, "parameters": dictionary of argument name and its value}': objects.LLAMA3,
    "{{ tools }} [func_name1(params_name1=params_value1)]": PYTHONIC,
    "{{ tools }} <tool_call>{name}<arg_key>": None,
    "{{ tools }} <seed:tool_call><function=x>": None,
    "{{ tools }}": None,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_say_how_calls_are_written(template):
    tokenizer = byte_level(template=template)
    assert tool_format(tokenizer, "auto") is TEMPLATES[template]
    assert tool_format(tokenizer, "none") is None
    assert [tool_format(tokenizer, name).name for name in NAMES] == [*NAMES]


def test_what_the_settings_offer():
    from rtk.config.serving import ServeConfig

    choices = ServeConfig.model_json_schema()["properties"]["tool_parser"]["enum"]
    assert choices == ["auto", "none", *NAMES]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({}, "5", 5),
        ({}, "True", "True"),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", "true"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5.5", "5.5"),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "5", 5),
        ({"oneOf": [{"type": "number"}, {"type": "string"}]}, "5", 5),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["1", 1]}, "1", 1),
        ({"const": "null"}, "null", "null"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "object"}, "5", 5),
        ({"type": "array"}, "[1", "[1"),
        ({"type": 5}, "5", 5),
        ({"anyOf": 5}, "5", 5),
        ({"enum": []}, "5", 5),
    ],
)
def test_values_are_of_the_type_that_the_schema_has(schema, text, value):
    reader = Reader(CODER, [Tool("f", {"properties": {"a": schema}})])
    (call,) = reader.push(f"<tool_call><function=f><parameter=a>{text}</parameter></function></tool_call>").calls
    assert json.loads(call.arguments) == {"a": value}
    assert type(json.loads(call.arguments)["a"]) is type(value)
