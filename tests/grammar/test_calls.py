"""Calls of tools as forms: what backends are asked, which schemas are given up, and what is said of that."""

import json

import pytest
from test_forms import EXACT, Judge, chosen, narrow, refusal, serve

from rtk.grammar.forms import AskedForm, Forms
from rtk.plugin.grammar import Judgement, Reason

CLOSED = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}
UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
ODD = {"type": "object", "properties": {"t": UNIQUE}, "required": ["t"], "additionalProperties": False}


def calls(*tools, **more):
    """`tools`: (schema, strict)."""
    tags = [
        {"begin": f"<{i}>", "schema": schema, "end": "</>", "tool": f"t{i}", "strict": strict}
        for i, (schema, strict) in enumerate(tools)
    ]
    return AskedForm(kind="tool_calls", value={"tags": tags, **more}, field="tools")


class Picky(Judge):
    """Refuses what has items that are unique, with the place."""

    def judge(self, spec):
        super().judge(spec)
        tags = json.loads(spec.text)["tags"]
        reasons = [
            Reason("unique", f"#/tags/{i}/schema/properties/t/uniqueItems")
            for i, tag in enumerate(tags)
            if "uniqueItems" in json.dumps(tag)
        ]
        return Judgement.refused(*reasons) if reasons else self.judgement


def test_what_backends_get():
    judge, run = Judge(), {"begin": "[", "between": ", ", "end": "]"}
    serve(Forms({"a": judge}), calls((CLOSED, True), run=run, once=True))
    (spec,) = judge.specs
    assert spec.kind == "structural_tag"
    text = json.loads(spec.text)
    assert (text["run"], text["once"], [tag.keys() for tag in text["tags"]]) == (
        run,
        True,
        [{"begin", "schema", "end"}],
    )


@pytest.mark.parametrize(("judgement", "verdict", "reasons"), [(EXACT, "exact", ()), (narrow("a"), "narrowed", ("a",))])
def test_strict_tools_are_kept(judgement, verdict, reasons):
    form = chosen(calls((CLOSED, True)), xgrammar=judgement)
    assert (form.verdict, form.reasons) == (verdict, reasons)


def test_arguments_are_objects_whether_the_schema_says_so_or_not():
    judge = Judge()
    serve(Forms({"a": judge}), calls(({"additionalProperties": False}, True)))
    assert json.loads(judge.specs[0].text)["tags"][0]["schema"]["type"] == "object"
    error = refusal(calls(({"type": "string"}, True)), a=EXACT)
    assert str(error) == "tools: the parameters of tool 't0': its type is not object"
    form = chosen(calls(({"type": "string"}, False)), a=EXACT)
    assert form.reasons == ("the arguments of tool 't0' may be any object: its type is not object",)


def test_keys_that_are_not_named_are_for_tools_that_are_not_strict():
    form = chosen(calls((CLOSED, True), ({"type": "object"}, False)), a=EXACT)
    assert form.verdict == "loosened"
    assert form.reasons == ("keys that are not named may come twice in the arguments of tool 't1'",)
    schema = {**CLOSED, "properties": {"a": {"type": "array", "items": {"type": "object"}}}}
    error = refusal(calls((CLOSED, True), (schema, True)), a=EXACT)
    assert str(error).endswith(
        "set \"additionalProperties\": false, at #/properties/a/items in the parameters of tool 't1', which is strict"
    )


def test_a_schema_that_nobody_can_keep_is_given_up_and_said_to_be():
    judge = Picky()
    form = serve(Forms({"a": judge}), calls((CLOSED, True), (ODD, False), (ODD, False)))
    unique = "may be any object: unique, at #/properties/t/uniqueItems in the parameters of tool"
    assert form.verdict == "loosened"
    assert form.reasons == (
        f"the arguments of tool 't1' {unique} 't1'",
        f"the arguments of tool 't2' {unique} 't2'",
    )
    assert len(judge.specs) == 2


def test_a_backend_that_keeps_it_is_asked_before_it_is_given_up():
    form = serve(Forms({"xgrammar": Picky(), "zeta": Judge(narrow("b"))}), calls((ODD, False)))
    assert (form.order.backend, form.verdict, form.reasons) == ("zeta", "narrowed", ("b",))


def test_a_strict_one_is_not_given_up():
    backends = {"a": Picky(), "b": Picky()}
    with pytest.raises(Exception, match="no grammar backend can keep these tool calls") as caught:
        serve(Forms(backends), calls((ODD, False), (ODD, True)))
    assert str(caught.value) == (
        "tools: no grammar backend can keep these tool calls: "
        "a, b: unique, at #/properties/t/uniqueItems in the parameters of tool 't1'"
    )
    assert (caught.value.code, caught.value.field) == ("unsupported_grammar", "tools")


def test_where_the_whole_is_too_much_all_that_are_not_strict_are_given_up():
    class Small(Judge):
        def judge(self, spec):
            super().judge(spec)
            return EXACT if "properties" not in json.loads(spec.text)["tags"][1]["schema"] else Judgement.refused("big")

    form = serve(Forms({"a": Small()}), calls((CLOSED, True), (CLOSED, False)))
    assert form.reasons == ("the arguments of tool 't1' may be any object: big",)


def test_schemas_that_are_none():
    error = refusal(calls(({"properties": 5}, True)), a=EXACT)
    assert str(error).startswith("tools: the parameters of tool 't0': ")
    form = chosen(calls(({"properties": 5}, False)), a=EXACT)
    (reason,) = form.reasons
    assert reason.startswith("the arguments of tool 't0' may be any object: ")


def test_what_an_answer_is_otherwise():
    judged = narrow(Reason("odd", "#/otherwise/properties/a"))
    form = chosen(calls((CLOSED, True), otherwise={"allOf": [CLOSED]}), a=judged)
    assert form.reasons == ("odd, at #/allOf/0/properties/a in the schema of answers that are no calls",)
    error = refusal(calls((CLOSED, True), otherwise={"type": "object"}), a=EXACT)
    assert str(error).endswith("at # in the schema of answers that are no calls")
