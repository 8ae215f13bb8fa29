"""Whether a finished text is what a schema asks for: `jsonschema`, over exact numbers, and with formats of our own."""

import datetime
import ipaddress
import json
import re
from fractions import Fraction
from urllib.parse import urlsplit

import jsonschema
from wide_schemas import PATTERNS, SCHEMES

DRAFTS = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
SPACE = r"[\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"


def _of_python(pattern):
    """A pattern of JSON Schema as Python reads it."""
    pattern = re.sub(r"\$(?=$|[|)])", r"\\Z", pattern).replace(r"\s", SPACE)
    return f"(?a:{pattern})"


READ = {pattern: _of_python(pattern) for pattern in PATTERNS} | {
    ".": r"[^\n\r\u2028\u2029]",
    "^.{0,2}$": r"^[^\n\r\u2028\u2029]{0,2}\Z",
    "^(?=.*[0-9])(?=.*[a-c])[0-9a-c]{2,4}$": r"^(?=.*[0-9])(?=.*[a-c])[0-9a-c]{2,4}\Z",
}


def readable(schema):
    """A schema with its patterns as Python reads them."""
    if isinstance(schema, list):
        return [readable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, one in schema.items():
        if key == "pattern" and isinstance(one, str):
            found[key] = READ[one]
        elif key == "patternProperties":
            found[key] = {READ[name]: readable(part) for name, part in one.items()}
        else:
            found[key] = one if key in ("enum", "const") else readable(one)
    return found


# --- formats ----------------------------------------------------------------------------------------------------------

ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"


def _date(text):
    return bool(re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text)) and bool(datetime.date.fromisoformat(text))


def _time(text):
    found = re.fullmatch(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[zZ]|[+-]([0-9]{2}):([0-9]{2}))", text)
    hour, minute, second, *zone = (int(part or 0) for part in found.groups()) if found else (99,)
    return hour < 24 and minute < 60 and second < 60 and zone[0] < 24 and zone[1] < 60


def _date_time(text):
    return text[10:11] in "tT" and _date(text[:10]) and _time(text[11:])


def _duration(text):
    day = r"(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
    clock = r"T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)"
    return re.fullmatch(f"P(?:{day}(?:{clock})?|{clock}|[0-9]+W)", text) is not None


def _hostname(text):
    labels = text.split(".")
    whole = all(re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", one) and len(one) < 64 for one in labels)
    return len(text) < 254 and whole


def _email(text):
    name, _, host = text.rpartition("@")
    return len(name) < 65 and re.fullmatch(rf"{ATOM}(\.{ATOM})*", name) is not None and _hostname(host)


def _uri_reference(text):
    if not re.fullmatch(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*", text) or text.count("#") > 1:
        return False
    parts = urlsplit(text)
    return not set("[]") & set(text) and bool(
        re.fullmatch(
            "[0-9]*", (parts.netloc.rpartition(":") if ":" in parts.netloc.rpartition("@")[2] else ("", "", ""))[2]
        )
    )


def _uri(text):
    return _uri_reference(text) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is not None


def _reference(text):
    first = re.split("[/?#]", text, maxsplit=1)[0]
    return _uri_reference(text) and (":" not in first or _uri(text))


def _pointer(text):
    return not text or (text[0] == "/" and re.search("~(?![01])", text) is None)


def _relative_pointer(text):
    found = re.match("0|[1-9][0-9]*", text)
    return found is not None and (text[found.end() :] == "#" or _pointer(text[found.end() :]))


def _ip(kind):
    def check(text):
        return "%" not in text and bool(kind(text))

    return check


def _hex(text):
    return re.fullmatch("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text) is not None


CHECKS = {
    "date": _date,
    "time": _time,
    "date-time": _date_time,
    "duration": _duration,
    "email": _email,
    "hostname": _hostname,
    "ipv4": _ip(ipaddress.IPv4Address),
    "ipv6": _ip(ipaddress.IPv6Address),
    "uuid": _hex,
    "uri": _uri,
    "uri-reference": _reference,
    "json-pointer": _pointer,
    "relative-json-pointer": _relative_pointer,
}
FORMATS = jsonschema.FormatChecker(formats=())
for _name, _check in CHECKS.items():
    FORMATS.checks(_name, raises=ValueError)(lambda value, c=_check: not isinstance(value, str) or c(value))


# --- documents --------------------------------------------------------------------------------------------------------


def _once(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _no_constant(name):
    raise ValueError(name)


def _number(text):
    found = Fraction(text)
    return int(found) if found.denominator == 1 else found


def parsed(text):
    """A JSON document with exact numbers. Raises `ValueError`."""
    document = json.loads(text, object_pairs_hook=_once, parse_float=_number, parse_constant=_no_constant)
    json.dumps(document, ensure_ascii=False, default=str).encode()
    return document


def validator(schema, draft):
    """Judges documents that `parsed` has made."""
    if isinstance(schema, dict) and "$schema" in schema:
        assert SCHEMES[draft] == schema["$schema"]
    return DRAFTS[draft](parsed(json.dumps(readable(schema))), format_checker=FORMATS)
