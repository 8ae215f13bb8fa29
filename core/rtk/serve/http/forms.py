"""The fields that say what an answer must look like: OpenAI's, and those that users of SGLang and vLLM know."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from rtk.errors import RequestError
from rtk.grammar.forms import KINDS, AskedForm, ServedForm, check_options, two_forms
from rtk.serve.http.body import must_be, typed
from rtk.serve.http.fields import FORM_NAMES, Ignored, not_supported

HEADER = "x-rtk-grammar"

_ALONE = {name: name for name in KINDS} | {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
}
"""Fields that are a form of a kind."""
_OUTPUTS = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}
"""The same inside `structured_outputs`."""
_FORMATS = {"regex": "pattern", "ebnf": "grammar", "grammar": "grammar", "choice": "choices"}
"""Types of `response_format` that OpenAI's does not have, and the key of what they say."""
_TYPES = ("text", "json_object", "json_schema", "regex", "ebnf", "choice", "structural_tag")


def read_form(
    values: Mapping[str, Any], ignored: Ignored, *, prefix: str = "", also: Iterable[AskedForm] = ()
) -> AskedForm | None:
    """What the fields in `values` ask for; `prefix` says where they stand. Raises `RequestError`, for two forms too.

    `also`: what other fields ask for.
    """
    found = [form for name in FORM_NAMES if name in values for form in _forms(name, values[name], ignored, prefix)]
    found += also
    whitespace, verify = check_options(values, prefix)
    if not found:
        return None
    if len(found) > 1:
        raise two_forms(*(form.field for form in found))
    (form,) = found
    return dataclasses.replace(form, whitespace=form.whitespace if whitespace is None else whitespace, verify=verify)


def read_either(
    values: Mapping[str, Any], inner: Mapping[str, Any], ignored: Ignored, *, prefix: str
) -> AskedForm | None:
    """The same of two places, the second called `prefix`: a form in one may have its options in the other."""
    one, other = read_form(values, ignored), read_form(inner, ignored, prefix=prefix)
    if one is not None and other is not None:
        raise two_forms(one.field, other.field)
    form = one or other
    if form is None:
        return None
    whitespace, verify = check_options(inner if form is one else values)
    return dataclasses.replace(
        form,
        whitespace=whitespace if form.whitespace is None else form.whitespace,
        verify=verify if form.verify is None else form.verify,
    )


def read_flat_format(value: Any, place: str, ignored: Ignored) -> list[AskedForm]:
    """`response_format` as /v1/responses has it: name and schema stand in the object itself."""
    if isinstance(value, dict) and value.get("type") == "json_schema":
        return [_named_schema({key: value[key] for key in value if key != "type"}, place, ignored)]
    return list(_format(value, place, ignored))


def _forms(name: str, value: Any, ignored: Ignored, prefix: str) -> Iterator[AskedForm]:
    """The forms that one field asks for: usually one."""
    if name == "response_format":
        yield from _format(value, prefix + name, ignored)
    elif name == "structured_outputs":
        yield from _outputs(typed({name: value}, name, dict, {}, prefix=prefix), prefix + name)
    elif name == "json_object":
        if typed({name: value}, name, bool, False, prefix=prefix):
            yield AskedForm(kind=name, value=True, field=prefix + name)
    elif name in _ALONE:
        yield AskedForm(kind=_ALONE[name], value=value, field=prefix + name)


def _format(value: Any, place: str, ignored: Ignored) -> Iterator[AskedForm]:
    """`response_format`."""
    if not isinstance(value, dict):
        raise must_be('an object such as {"type": "json_object"}', place, value)
    kind = value.get("type")
    if kind == "structural_tag":
        yield AskedForm(kind=kind, value=value, field=place)
        return
    known = {"type"}
    if kind == "json_schema":
        known.add(kind)
        named = _there(value, kind, place, 'an object with "name" and "schema"')
        yield _named_schema(named, f"{place}.{kind}", ignored)
    elif kind == "json_object":
        known.add("schema")
        if value.get("schema") is None:
            yield AskedForm(kind=kind, value=True, field=place)
        else:
            yield AskedForm(kind="json_schema", value=value["schema"], field=f"{place}.schema")
    elif isinstance(kind, str) and kind in _FORMATS:
        known.add(key := _FORMATS[kind])
        given = _there(value, key, place, "a list of texts" if key == "choices" else "a text")
        yield AskedForm(kind="ebnf" if key == "grammar" else kind, value=given, field=f"{place}.{key}")
    elif kind != "text":
        raise must_be(f"one of {', '.join(_TYPES)}", f"{place}.type", kind)
    _unknown(value, known, place, ignored)


def _named_schema(value: Any, place: str, ignored: Ignored) -> AskedForm:
    """OpenAI's `json_schema`: a schema with a name. Every schema is kept strictly, whatever `strict` says."""
    if not isinstance(value, dict):
        raise must_be('an object with "name" and "schema"', place, value)
    schema = _there(value, "schema", place, "a JSON Schema")
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        typed(value, name, kind, None, prefix=f"{place}.")
    _unknown(value, {"name", "description", "strict", "schema"}, place, ignored)
    return AskedForm(kind="json_schema", value=schema, field=f"{place}.schema")


def _there(value: Mapping[str, Any], key: str, place: str, what: str) -> Any:
    """What stands under a key that must be there."""
    if value.get(key) is None:
        raise RequestError(f"{place}.{key} is missing: send {what}", field=f"{place}.{key}")
    return value[key]


def _unknown(value: Mapping[str, Any], known: Set[str], place: str, ignored: Ignored) -> None:
    """Note the keys that are none of the known ones."""
    for name in value:
        if name not in known:
            ignored.unknown(f"{place}.", name, sorted(known))


def _outputs(value: Mapping[str, Any], place: str) -> Iterator[AskedForm]:
    """vLLM's `structured_outputs`."""
    whitespace = 0 if typed(value, "disable_any_whitespace", bool, False, prefix=f"{place}.") else None
    for name, given in value.items():
        field = f"{place}.{name}"
        if given is None or name == "disable_any_whitespace":
            continue
        if name not in _OUTPUTS:
            if given is not False:
                raise not_supported(field)
        elif name != "json_object" or typed(value, name, bool, False, prefix=f"{place}."):
            yield AskedForm(kind=_OUTPUTS[name], value=given, field=field, whitespace=whitespace)


def headers(form: ServedForm | None) -> dict[str, str]:
    """Who sees to the form of an answer, and how far."""
    return {} if form is None else {HEADER: f"{form.order.backend}; {form.verdict}"}


def described(form: ServedForm, *, finished: bool, verified: bool | None) -> dict[str, Any]:
    """The same as a part of an answer, with its reasons, and the result of the check where there was to be one."""
    said: dict[str, Any] = {"backend": form.order.backend, "verdict": form.verdict, "reasons": form.reasons}
    if form.verify and finished:
        said["verified"] = verified
    return {"grammar": said}
