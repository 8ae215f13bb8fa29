"""Schemas of the kind that programs ask for, with a document each, and those that are hard to compile."""

import json
from typing import Any

Schema = dict[str, Any]


def record(properties: Schema) -> Schema:
    """An object of just these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TEXT, WHOLE, NUMBER = {"type": "string", "maxLength": 40}, {"type": "integer"}, {"type": "number"}
ITEM = record({"description": TEXT, "quantity": WHOLE, "unit_price": NUMBER})
LONG_KEYS = [
    "customer_identification_number",
    "preferred_contact_language",
    "registration_completed_successfully",
    "newsletter_subscription_active",
    "outstanding_balance_in_cents",
    "number_of_failed_payments",
    "last_delivery_was_complete",
    "account_suspension_pending",
    "loyalty_programme_membership_level",
    "requires_manual_verification",
]
YES, LEVEL = {"type": "boolean"}, {"enum": ["basic", "silver", "gold"]}
LONG_VALUES = [
    {"type": "integer", "minimum": 0, "maximum": 999999},
    {"enum": ["english", "french", "german"]},
    YES,
    YES,
    {"type": "integer", "minimum": 0, "maximum": 99999},
    {"type": "integer", "minimum": 0, "maximum": 99},
    YES,
    YES,
    LEVEL,
    YES,
]

REAL: dict[str, tuple[Schema, Any]] = {
    "invoice": (
        record(
            {
                "invoice_number": {"type": "string", "pattern": "^INV-[0-9]{6}$"},
                "customer_name": TEXT,
                "currency": {"enum": ["EUR", "USD", "GBP"]},
                "items": {"type": "array", "items": ITEM, "minItems": 1, "maxItems": 3},
                "total": NUMBER,
                "paid": YES,
            }
        ),
        {
            "invoice_number": "INV-004711",
            "customer_name": "Harbour Books Ltd.",
            "currency": "GBP",
            "items": [{"description": "Printed maps", "quantity": 3, "unit_price": 12.5}],
            "total": 37.5,
            "paid": False,
        },
    ),
    "person": (
        record(
            {
                "first_name": TEXT,
                "last_name": TEXT,
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
                "email": {"type": "string", "format": "email"},
                "address": record({"street": TEXT, "postal_code": TEXT, "city": TEXT}),
            }
        ),
        {
            "first_name": "Ada",
            "last_name": "Müller",
            "age": 36,
            "email": "ada@example.org",
            "address": {"street": "Long Lane 4", "postal_code": "10115", "city": "Berlin"},
        },
    ),
    "tool call": (
        record(
            {
                "name": {"enum": ["search_flights"]},
                "arguments": record(
                    {
                        "origin": {"type": "string", "pattern": "^[A-Z]{3}$"},
                        "destination": {"type": "string", "pattern": "^[A-Z]{3}$"},
                        "passengers": {"type": "integer", "minimum": 1, "maximum": 9},
                        "cabin_class": {"enum": ["economy", "business"]},
                    }
                ),
            }
        ),
        {
            "name": "search_flights",
            "arguments": {"origin": "LHR", "destination": "JFK", "passengers": 2, "cabin_class": "economy"},
        },
    ),
    "weather report": (
        record(
            {
                "location": TEXT,
                "temperature_celsius": {"type": "integer", "minimum": -60, "maximum": 60},
                "humidity_percent": {"type": "integer", "minimum": 0, "maximum": 100},
                "conditions": {"enum": ["sunny", "cloudy", "rain", "snow"]},
                "warnings": {"type": "array", "items": {"enum": ["storm", "frost", "flood"]}, "maxItems": 2},
            }
        ),
        {
            "location": "Reykjavík",
            "temperature_celsius": -3,
            "humidity_percent": 81,
            "conditions": "snow",
            "warnings": ["storm", "frost"],
        },
    ),
    "ten long keys": (
        record(dict(zip(LONG_KEYS, LONG_VALUES, strict=True))),
        dict(zip(LONG_KEYS, [4711, "english", True, False, 250, 0, True, False, "gold", False], strict=True)),
    ),
}
"""By name: a schema, and a document that is valid under it."""


RECORDS: Schema = {
    "type": "array",
    "items": record({"name": {"type": "string"}, "count": WHOLE, "kind": {"enum": ["new", "used"]}}),
    "minItems": 64,
}
"""What no answer of some hundred tokens can end."""


def counted(number: int, keys: int) -> Schema:
    """Some of `keys` optional integers, at least a third and at most two thirds."""
    names = {f"q{key}_{number}": WHOLE for key in range(keys)}
    bounds = {"minProperties": keys // 3, "maxProperties": 2 * keys // 3}
    return {"type": "object", "properties": names, "additionalProperties": False, **bounds}


def nested(number: int, levels: int) -> Schema:
    """An object in an object, and so on."""
    schema = WHOLE
    for level in range(levels):
        schema = record({f"p{level}_{number}": schema})
    return schema


def doubled(number: int, levels: int) -> Schema:
    """Each level has the one below twice."""
    schema = record({f"leaf_{number}": WHOLE})
    for level in range(levels):
        schema = {"oneOf": [record({f"{side}{level}": schema}) for side in "ab"]}
    return schema


def texts(number: int) -> Schema:
    """Texts with bounds, which automata have to count along."""
    return record({f"{key}{number}": {"type": "string", "maxLength": 24 + 8 * i} for i, key in enumerate("ab")})


def large(count: int) -> list[str]:
    """Different schemas that take long to work out, the kinds by turns."""
    makes = (
        lambda number: counted(number, 24),
        lambda number: nested(number, 60),
        lambda number: doubled(number, 5),
        texts,
    )
    return [json.dumps(makes[number % len(makes)](number)) for number in range(count)]


def beyond(count: int) -> list[str]:
    """Different schemas that no backend here keeps."""
    return [json.dumps(counted(number, 150)) for number in range(count)]


def endless(count: int) -> list[str]:
    """Different expressions whose automata have more states than can be made in seconds."""
    return [f"(?:a|b)*a(?:a|b){{{number}}}" for number in range(18, 18 + count)]
