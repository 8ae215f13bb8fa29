"""From what a client asks for to a backend: what is read, who is chosen, and what a refusal says."""

import asyncio
import json

import pytest

from rtk.errors import RequestError
from rtk.grammar.forms import COUNTERS, AskedForm, Forms, asked_form
from rtk.plugin.grammar import SPEC_KINDS, Judgement, Reason

EXACT, REFUSED = Judgement.exact(), Judgement.refused("no")


class Judge:
    """A backend that has made up its mind."""

    spec_kinds = frozenset(SPEC_KINDS)
    library = ""

    def __init__(self, judgement=EXACT):
        self.judgement = judgement
        self.specs = []

    def judge(self, spec):
        self.specs.append(spec)
        if isinstance(self.judgement, BaseException):
            raise self.judgement
        return self.judgement


def asked(value=("a",), kind="choice", **more):
    return AskedForm(kind=kind, value=list(value) if kind == "choice" else value, **more)


def chosen(form=None, **backends):
    return serve(Forms({name: Judge(judgement) for name, judgement in backends.items()}), form or asked())


def serve(forms, form):
    return asyncio.run(forms.serve(form))


def refusal(form=None, **backends):
    with pytest.raises(RequestError) as caught:
        chosen(form, **backends)
    return caught.value


def narrow(*reasons):
    return Judgement.narrowed(*reasons)


@pytest.mark.parametrize(
    ("backends", "name"),
    [
        ({"zeta": EXACT, "outlines": EXACT, "llguidance": EXACT, "xgrammar": EXACT}, "xgrammar"),
        ({"zeta": EXACT, "outlines": EXACT, "llguidance": EXACT, "xgrammar": narrow("a")}, "llguidance"),
        ({"zeta": EXACT, "alpha": EXACT, "xgrammar": REFUSED}, "alpha"),
        ({"zeta": EXACT, "xgrammar": narrow("a")}, "zeta"),
        ({"outlines": narrow("a"), "llguidance": narrow("a", "b"), "xgrammar": narrow("a", "b")}, "outlines"),
        ({"outlines": narrow("a"), "llguidance": narrow("a"), "xgrammar": REFUSED}, "llguidance"),
        ({"xgrammar": RuntimeError("broken"), "outlines": narrow("a")}, "outlines"),
    ],
)
def test_the_first_that_is_exact_else_the_one_with_the_fewest_reasons(backends, name):
    form = chosen(**backends)
    assert form.order.backend == name
    assert (form.verdict, bool(form.reasons)) == (backends[name].verdict, backends[name] != EXACT)


def test_a_refusal_has_what_each_says_and_those_that_say_the_same_together():
    error = refusal(asked(field="f"), xgrammar=REFUSED, outlines=REFUSED, llguidance=RuntimeError("a\nb"))
    assert (error.field, error.code, error.status) == ("f", "unsupported_grammar", 400)
    assert str(error) == (
        "f: no grammar backend can keep this choice: xgrammar, outlines: no; "
        "llguidance: it cannot judge this: RuntimeError: a b"
    )


def test_reasons_name_the_place_in_what_the_client_sent():
    schema = {
        "$defs": {"n": {"type": "integer"}},
        "type": "object",
        "allOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}}],
    }
    reason = Reason("some", "#/properties/a/type")
    form = chosen(asked(schema, "json_schema"), xgrammar=narrow(reason, reason, Reason("all")))
    assert form.reasons == ("some, at #/$defs/n/type", "all")
    many = Judgement.refused(*(Reason(f"r{i}") for i in range(20)))
    assert str(refusal(asked(schema, "json_schema"), xgrammar=many)).endswith(", r7, and 12 more")


def tag(schema):
    return {"triggers": ["<"], "tags": [{"begin": "<a>", "schema": {"enum": [1]}, "end": "</a>"}, {
        "begin": "<b>", "schema": schema, "end": "</b>"}]}  # fmt: skip


def test_reasons_about_a_tag_name_it():
    schema = {"allOf": [{"type": "array", "items": {"type": "null"}}]}
    judged = narrow(Reason("some", "#/tags/1/schema/items"), Reason("odd", "#/tags/0/end"), Reason("all", "#/triggers"))
    form = chosen(asked(tag(schema), "structural_tag"), xgrammar=judged)
    assert form.reasons == ("some, at #/allOf/0/items in the schema of tag 1", "odd, in tag 0", "all")


def test_a_tag_names_all_keys_of_its_objects():
    error = refusal(asked(tag({"type": "object"}), "structural_tag"), xgrammar=EXACT)
    assert (error.code, "additionalProperties" in str(error), "tag 1" in str(error)) == ("invalid_grammar", True, True)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("choice", ["b", "a", "b"], '["b","a"]'),
        ("regex", "^a|b$", None),
        ("ebnf", 'other ::= "x"\nroot ::= "a"', 'root ::= "a"'),
        ("json_schema", {"title": "t", "const": 1}, '{"enum":[1]}'),
        ("json_schema", '{"const": 1}', '{"enum":[1]}'),
        ("json_object", True, '{"type":"object"}'),
    ],
)
def test_backends_see_the_normal_form(kind, value, text):
    judge = Judge()
    form = serve(Forms({"toy": judge}, whitespace=3), asked(value, kind))
    (spec,) = judge.specs
    assert (form.order.kind, form.order.text, form.order.whitespace) == (spec.kind, spec.text, spec.whitespace)
    assert spec.whitespace == (3 if kind.startswith("json") else 8)
    assert form.order.unique_keys == (kind == "json_object")
    if text is not None:
        assert spec.text.strip() == text


def test_what_was_chosen_is_kept_and_what_is_large_is_not():
    judge = Judge()
    forms = Forms({"toy": judge})
    for whitespace in (None, None, 2):
        serve(forms, asked({"enum": [1]}, "json_schema", whitespace=whitespace))
    assert [spec.whitespace for spec in judge.specs] == [8, 2]
    for _ in range(2):
        serve(forms, asked(["x" * 70_000]))
    assert len(judge.specs) == 4
    assert forms.stats() == dict(zip(COUNTERS, (5, 0, 0, 0), strict=True))


class Wavering(Judge):
    """Tells `readable` times what it understands."""

    def __init__(self, readable):
        super().__init__()
        self.readable = readable

    @property
    def spec_kinds(self):
        self.readable -= 1
        if self.readable < 0:
            raise SystemExit("no kinds")
        return frozenset(SPEC_KINDS)


def test_what_a_backend_understands_is_read_once_whatever_it_says_later():
    forms = Forms({"toy": Wavering(1)})
    assert [serve(forms, asked([text])).verdict for text in "ab"] == ["exact", "exact"]
    forms = Forms({"toy": Wavering(0)})
    with pytest.raises(RequestError, match="toy: it cannot tell what it knows: SystemExit: no kinds") as caught:
        serve(forms, asked())
    assert (caught.value.code, caught.value.status) == ("unsupported_grammar", 400)


def test_a_kind_that_a_backend_does_not_know_is_not_put_to_it():
    judge = Judge()
    judge.spec_kinds = frozenset({"regex"})
    forms = Forms({"toy": judge})
    with pytest.raises(RequestError, match="toy: it knows no choice"):
        serve(forms, asked())
    assert (judge.specs, forms.stats()["forms_refused"]) == ([], 1)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("json_schema", [], "must be a JSON Schema"),
        ("json_schema", {"a": float("nan")}, "no JSON"),
        ("json_schema", {1, 2}, "must be a JSON Schema"),
        ("structural_tag", [], "must be an object"),
        ("regex", "", "must be a text, and not empty"),
        ("choice", {"a"}, "no JSON"),
        ("choice", "a", "must be an array of texts"),
    ],
)
def test_what_is_no_form(kind, value, problem):
    error = refusal(AskedForm(kind=kind, value=value), xgrammar=EXACT)
    assert problem in str(error)
    assert (error.field, error.status) == (kind, 400)


def test_a_deep_schema_is_refused_and_nothing_worse():
    deep = {}
    for _ in range(100_000):
        deep = {"items": deep}
    assert "json_schema: " in str(refusal(asked(deep, "json_schema"), xgrammar=EXACT))
    assert "nested" in str(refusal(asked('{"items":' * 100_000, "json_schema"), xgrammar=EXACT))
    while deep:
        deep = deep.pop("items")  # not left to the collector, which goes down recursively


def test_parameters_of_an_engine():
    schema = {"type": "null"}
    form, others = asked_form({"json_schema": schema, "regex": None, "json_object": False, "top_k": 1})
    assert (form.kind, form.value, others) == ("json_schema", schema, {"top_k": 1})
    assert asked_form({"top_k": 1, "grammar_whitespace": 3}) == (None, {"top_k": 1})
    for params in ({"regex": "a", "choice": ["a"]}, {"regex": "a", "grammar_whitespace": -1}, {"grammar_verify": 1}):
        with pytest.raises(RequestError):
            asked_form(params)


def test_a_parameter_that_is_none_is_told_those_that_ask_for_a_form():
    with pytest.raises(RequestError, match=r"^unknown parameter 'regx'; there are temperature, .*, regex, .*_verify$"):
        asked_form({"regx": "a"})


@pytest.mark.parametrize("value", [1, "false", {}])
def test_any_object_is_asked_for_by_true_and_nothing_else(value):
    form, _ = asked_form({"json_object": value})
    error = refusal(form, a=EXACT)
    assert (str(error), error.field) == (f"json_object = {value!r}: must be true or false", "json_object")


def test_an_open_object_in_a_tag_says_what_to_do():
    tag = {"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}
    value = {"type": "structural_tag", "triggers": ["<f"], "structures": [tag]}
    said = "structural_tag: structural tags: tag 0: an object may have keys that are not named, and a key twice; set "
    assert str(refusal(asked(value, "structural_tag"), a=EXACT)) == said + '"additionalProperties": false'


def test_verdicts_of_a_narrowed_normal_form():
    narrowed = next(
        form
        for name in ("email", "hostname", "duration", "uri")
        if (form := chosen(asked({"type": "string", "format": name}, "json_schema"), xgrammar=EXACT)).reasons
    )
    assert narrowed.verdict == "narrowed"
    assert narrowed.reasons[0].endswith("at #/format")
    assert json.loads(narrowed.order.text)["type"] == "string"
