"""A second opinion on a finished text: of `jsonschema` and Python's `re`, on what the client sent.

Both can be kept busy for ever by a schema, so they run in a process that is killed where it takes too long.
"""

import json
import logging
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process starts in half the time without
    from rtk.grammar.forms import AskedForm

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-c", "from rtk.grammar.verify import main; main()")


def verified(asked: "AskedForm", text: str, limit_s: float) -> bool | None:
    """Whether `text` has the form that was asked for; None where that cannot be told. Blocks."""
    if asked.kind in ("ebnf", "structural_tag", "tool_calls"):
        return None
    path = os.pathsep.join(filter(None, sys.path))  # it must find what this process found
    question = json.dumps([asked.kind, asked.value, text]).encode()
    try:
        done = subprocess.run(
            COMMAND, input=question, capture_output=True, timeout=limit_s, env=os.environ | {"PYTHONPATH": path}
        )
        result: bool | None = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        log.warning("a finished text could not be verified: %s", type(error).__name__)
        return None
    return result


def main() -> None:
    """Answers one question of `verified`, which comes by standard input."""
    kind, value, text = json.loads(sys.stdin.buffer.read())
    sys.stdout.write(json.dumps(check(kind, value, text)))


def check(kind: str, value: Any, text: str) -> bool | None:
    """Whether `text` has a form; None where that cannot be told."""
    match kind:
        case "choice":
            return text in value
        case "regex":
            return re.fullmatch(value, text) is not None
        case "json_object":
            value = {"type": "object"}
        case "json_schema" if isinstance(value, str):
            value = json.loads(value)
    return _is_valid(value, text)


def _is_valid(schema: Any, text: str) -> bool:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except ValueError:
        return False
    return bool(validator_for(schema, Draft202012Validator)(schema, registry=Registry()).is_valid(value))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object with a key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
