"""docs/http.md against the code: fields, routes, error codes, keys and examples are all there, and no others."""

import json
import re
import shlex
from pathlib import Path

import pytest
from fake_scheduler import saying
from http_harness import InProcess
from tiny_tokenizer import byte_level, ids_of

from rtk.config.keys import as_text, walk
from rtk.config.models import Config
from rtk.serve.http import chat, openai
from rtk.serve.http.fields import FIELDS, Kind, Scope

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", DOC, flags=re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"
TOKENIZER = byte_level()
WHERE = {scope.name.lower(): scope for scope in Scope} | {"sampling_params": Scope.SAMPLING}


def tables():
    """Every table as its header and its rows, in cells."""
    for block in re.findall(r"(?:^\|.*\n)+", PROSE, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines())
        yield head, rows


def rows_of(*head):
    """The rows of all tables whose header begins like this."""
    found = [row for names, rows in tables() if names[: len(head)] == list(head) for row in rows]
    assert found, head
    return found


def code(text):
    return re.findall(r"`([^`]+)`", text)


def of_kind(kind):
    return {field.name: field for field in FIELDS if field.kind is kind}


def as_dict(pairs):
    pairs = list(pairs)
    assert len(dict(pairs)) == len(pairs), "documented twice"
    return dict(pairs)


# --- fields -----------------------------------------------------------------------------------------------------


def test_fields_that_are_read_and_where():
    rows = rows_of("field", "in")
    documented = as_dict((name, {WHERE[word] for word in row[1].split(", ")}) for row in rows for name in code(row[0]))
    assert documented == {name: set(field.scope) for name, field in of_kind(Kind.READ).items()}


def test_fields_that_are_not_supported_yet_and_what_passes():
    rows = rows_of("not supported yet")
    documented = as_dict((name, [json.loads(value) for value in code(row[1])]) for row in rows for name in code(row[0]))
    neutral = {name: list(field.neutral) for name, field in of_kind(Kind.LATER).items()}
    assert {name: json.dumps(values) for name, values in documented.items()} == {
        name: json.dumps(values) for name, values in neutral.items()
    }


def test_fields_without_effect():
    (row,) = (row for row in rows_of("group") if row[0].startswith("without effect"))
    assert set(code(row[0])) == set(of_kind(Kind.IGNORED))


def test_other_tables_name_no_other_fields():
    assert {name for row in rows_of("field") for name in code(row[0])} <= {field.name for field in FIELDS}


def test_parts_of_messages():
    rows = {name: row for row in rows_of("part of a message") for name in code(row[0])}
    assert set(rows) == {*chat._READ, *chat._LATER}
    assert code(rows["role"][1]) == list(chat.ROLES)


def test_stream_options():
    assert re.findall(r"^- `(\w+)`:", PROSE, re.MULTILINE) == list(openai._StreamOptions.__slots__)


# --- routes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def http():
    facts = {"served_name": "smollm2-135m-instruct", "vocab_size": 49152}
    with InProcess(saying(*ids_of(TOKENIZER, "a")), tokenizer=TOKENIZER, **facts) as http:
        yield http


def routes(app):
    return {(method, route.path.replace(":path}", "}")) for route in app.routes for method in route.methods - {"HEAD"}}


def test_routes(http):
    existing = routes(http.app)
    assert {(row[0], *code(row[1])) for row in rows_of("method", "path")} == existing
    assert set(re.findall(r"^### ([A-Z]+) (/\S+)$", DOC, re.MULTILINE)) == existing
    assert {name for name in code(PROSE) if re.fullmatch(r"/[\w/{}]+", name)} <= {path for _, path in existing}


def test_every_endpoint_has_an_example_and_each_works(http):
    called = set()
    for command in re.findall(r"^```sh\n(.*?)```", DOC, re.MULTILINE | re.DOTALL):
        words = shlex.split(command)
        (path,) = (word.removeprefix(ADDRESS) for word in words if word.startswith(ADDRESS))
        body = words[words.index("-d") + 1] if "-d" in words else None
        method = "POST" if body or "POST" in words else "GET"
        response = http.run(http.request(method, path, content=body))
        assert response.status_code == 200, (command, response.text)
        assert "x-rtk-ignored-fields" not in response.headers
        path = path.replace("smollm2-135m-instruct", "{model}").replace("/requests/tide/", "/requests/{rid}/")
        called.add((method, path))
    assert called == routes(http.app)


# --- the rest ---------------------------------------------------------------------------------------------------


def test_error_codes():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "core" / "rtk").rglob("*.py")]
    raised = {name for source in sources for name in re.findall(r'\bcode(?:: str = |=)"(\w+)"', source)}
    documented = [name for row in rows_of("status", "code") for name in code(row[1])]
    assert sorted(documented) == sorted(raised | {"unknown_path", "method_not_allowed"})


def test_configuration_keys():
    keys = {key.path: as_text(key.default) for key in walk(Config)}
    documented = as_dict((*code(row[0]), *code(row[1])) for row in rows_of("key", "default"))
    assert documented.items() <= keys.items()
    assert {path for path in keys if path.startswith("serve.")} <= documented.keys()
    mentioned = {name for name in code(PROSE) if re.fullmatch(r"(serve|model|cache|schedule)\.\w+", name)}
    assert mentioned - {"model.default_sampling"} <= keys.keys()


def test_links_inside_lead_somewhere():
    headings = re.findall(r"^#+ (.+)$", DOC, re.MULTILINE)
    assert set(re.findall(r"\]\(#([^)]+)\)", DOC)) <= {heading.lower().replace(" ", "-") for heading in headings}
