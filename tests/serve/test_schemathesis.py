"""schemathesis over the OpenAPI document: whatever it makes of it, no 5xx, no hang, and answers as they are described.

What the document allows may still be refused: no schema says that a prompt fits, or that two fields go together. What
it does not allow is refused.
"""

from collections import Counter, defaultdict

import pytest
import schemathesis
from fake_scheduler import WAIT_S, model, refusal
from http_harness import Served
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tiny_tokenizer import byte_level, ids_of

from rtk.serve.http.fields import Kind, Scope, field_of
from rtk.serve.http.openapi import _BODIES, document

TOKENIZER = byte_level()
MODEL = model(TOKENIZER, ids_of(TOKENIZER, "a", "b", "c"))
CONTEXT = 128
CONFIG = schemathesis.Config.from_dict({"generation": {"deterministic": True, "max-examples": 8, "database": "none"}})
EVERY = 8
"""Of the thousand cases for each long list of fields one in so many is sent."""
FEW = 60


def shortened():
    """The document; fields that ask for nothing, or have no effect, are left in one body only."""
    made = document("1.2.3")
    for scope in set(_BODIES) - {Scope.COMPLETIONS}:
        properties = made["components"]["schemas"][_BODIES[scope]]["properties"]
        for name in list(properties):
            if field_of(name, scope).kind is not Kind.READ:
                del properties[name]
    return made


schema = schemathesis.openapi.from_dict(shortened(), config=CONFIG)


def script(new):
    """The model, for what fits."""
    if len(new.tokens) // 4 + (new.params.max_new_tokens or 0) > CONTEXT:
        yield refusal(new, code="context_length_exceeded", problem="too long")
    else:
        yield from MODEL(new)


@pytest.fixture(scope="module")
def seen():
    """The statuses by operation."""
    seen = defaultdict(Counter)
    yield seen
    silent = [label for label, statuses in seen.items() if not statuses[200] and label != "GET /v1/models/{model}"]
    assert not silent, f"nothing that was sent was answered: {silent}"


@pytest.fixture(scope="module")
def http():
    with Served(script, tokenizer=TOKENIZER) as http:
        yield http


@schema.parametrize()
@settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
def test_answers_are_as_described(http, seen, case):
    statuses = seen[case.operation.label]
    statuses["made"] += 1
    if statuses["made"] > FEW and statuses["made"] % EVERY:
        return
    answer = case.call_and_validate(base_url=http.base, timeout=WAIT_S, excluded_checks=[positive_data_acceptance])
    statuses[answer.status_code] += 1
