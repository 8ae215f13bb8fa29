"""Random schemas over everything that clients write, in any draft, to be taken to their end: texts are made by them."""

import random

WORDS = ("a", "b", "ab", "x_1", "", "é", 'q"', "tab\t", "back\\slash", "😀", "a/b~c", "</s>", "true", "$ref", "\x7f")
PATTERNS = (
    "^[ab]$",
    "^a",
    "b$",
    "[0-9]{3}",
    r"^\d{2}-\w+\s?$",
    r"^https:\/\/[a-z]+\.org\/$",
    "^x_",
    "^(?:ab?c|d)*$",
    "^[^a-z]{1,3}$",
    r'^"\\[\x00-\x1f]$',
    "^[\U0001f600-\U0001f64f]{2}$",
    "^(?=.*[0-9])(?=.*[a-c])[0-9a-c]{2,4}$",
    "^(?!ab)[a-c]{2}$",
    "^$|^a$",
    ".",
    "^.{0,2}$",
    "^(a|aa)+$",
    r"^[\w.]+@[\w]+$",
    "(^a|b$)",
    "^[A-Z][a-z]{0,3}( [A-Z])?$",
)
FORMATS = (
    *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference"),
    *("json-pointer", "relative-json-pointer"),
)
NUMBERS = (0, 1, 2, 3, -1, 5, 10, 100, 0.5, 1.5, 2.5, -2.0, 1e3, -0.25, 99.99, 2**31, 2**55, -(2**63), 1e-7, 12.0)
STEPS = (1, 2, 3, 5, 10, 0.5, 0.25, 0.1, 7, 2.5, 1e-2, 100)
ODD = (
    *(None, True, False, [], {}, [[]], [1], [1.0, "1", None], {"a": 1}, {"a": {"b": [1, {"c": None}]}, "d": "e"}),
    *({"": ""}, {"b": 1, "a": 2}, [True, False], 0, -0.0, 1e5, 1.0, 12345678901234567890, 0.1, 1e-7),
)
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
SCHEMES = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


class Wide:
    """One schema by one source of random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.draft = rng.choice((4, 6, 7, 2019, 2020, 2020, 2020, 2020))
        self.names = [rng.choice(("n", "m~1", "two words"))] if rng.random() < 0.35 else []
        self.closed = rng.random() < 0.6
        self.hard = rng.choice((0.0, 0.0, 0.15, 0.4))
        """How much there is of what no backend keeps."""

    def chance(self, share):
        return self.rng.random() < share

    def some(self, values, low, high):
        return self.rng.sample(list(values), min(len(values), self.rng.randint(low, high)))

    def root(self):
        schema = self.schema(3)
        if not isinstance(schema, dict):
            return schema
        defs = "$defs" if self.draft >= 2019 else "definitions"
        if self.names:
            schema[defs] = {name: self.schema(2) for name in self.names}
            if self.chance(0.3):
                schema[defs][self.names[0]] = self.node()
        if self.draft != 2020 or self.chance(0.2):
            schema["$schema"] = SCHEMES[self.draft]
        if self.chance(0.1):
            schema |= {"title": "t", "description": "d", "default": 1}
        return schema

    def reference(self):
        name = self.names[0].replace("~", "~0").replace("/", "~1").replace(" ", "%20")
        return {"$ref": f"#/{'$defs' if self.draft >= 2019 else 'definitions'}/{name}"}

    def node(self):
        """Something that has itself in it, and can end."""
        me = self.reference()
        return self.rng.choice(
            (
                {"type": "array", "items": me, "maxItems": 2},
                {"type": "object", "properties": {"k": me, "v": {"type": "integer"}}, "additionalProperties": False},
                {"anyOf": [{"type": "null"}, {"type": "array", "items": me}]},
                {"oneOf": [{"type": "string"}, {"type": "object", "required": ["l"], "properties": {"l": me}}]},
                {"type": "object", "additionalProperties": me},
            )
        )

    def schema(self, depth):
        rng = self.rng
        if self.draft > 4 and self.chance(0.04):
            return self.chance(0.8)
        if self.names and self.chance(0.18):
            found = self.reference()
            return found | self.typed(rng.choice(TYPES), 0) if self.draft >= 2019 and self.chance(0.2) else found
        if self.chance(0.12):
            found = self.constant()
            return found | self.typed(rng.choice(TYPES), 0) if self.chance(0.2) else found
        if depth > 0 and self.chance(0.22):
            return self.applied(depth - 1)
        kind = rng.choice(TYPES if depth > 0 else TYPES[:5])
        found = self.typed(kind, depth)
        if depth > 0 and self.chance(0.12):
            found |= self.applied(depth - 1)
        return found

    def constant(self):
        values = (*ODD, *WORDS, *NUMBERS)
        if self.draft > 4 and self.chance(0.3):
            return {"const": self.rng.choice(values)}
        found = []
        for one in self.some(values, 1, 6):
            if not any(type(one) is type(other) and one == other for other in found):
                found.append(one)
        return {"enum": found}

    def applied(self, depth):
        rng, hard = self.rng, self.chance(self.hard)
        ways = ["allOf", "anyOf", "anyOf", "oneOf", "not"]
        ways += ["if"] * (self.draft >= 7) + (["dependent"] if hard else [])
        keyword = rng.choice(ways)
        if keyword == "allOf":
            kind = rng.choice(TYPES)
            return {"allOf": [self.typed(kind, depth) for _ in range(rng.randint(1, 3))]}
        if keyword == "anyOf":
            return {"anyOf": [self.schema(depth) for _ in range(rng.randint(1, 3))]}
        if keyword == "oneOf":
            if self.chance(0.5):
                kinds = self.some(TYPES, 1, 3)
                return {"oneOf": [self.typed(kind, depth) for kind in kinds]}
            tag = lambda i: {"type": "string", "enum": [f"t{i}"]}  # noqa: E731
            return {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"tag": tag(i), "v": self.schema(depth - 1)},
                        "required": ["tag"],
                        "additionalProperties": False,
                    }
                    for i in range(rng.randint(1, 3))
                ]
            }
        if keyword == "not":
            kind = rng.choice(TYPES)
            inner = self.constant() if self.chance(0.5) else {"type": kind}
            inner = self.typed(kind, 0) if self.chance(self.hard) else inner
            return self.typed(kind, 0) | {"not": inner} if self.chance(0.6) else {"not": inner}
        if keyword == "dependent":
            if self.draft >= 2019:
                return {"type": "object", "dependentRequired": {"a": self.some(WORDS, 0, 2)}}
            return {"type": "object", "dependencies": {"a": self.some(WORDS, 1, 2)}}
        found = {"if": self.typed(rng.choice(TYPES), 0)}
        for part in ("then", "else"):
            if self.chance(0.8):
                found[part] = self.schema(depth)
        return found | (self.typed("object", depth) if self.chance(0.3) else {})

    def typed(self, kind, depth):
        found = {"type": kind}
        if self.chance(0.08):
            found["type"] = [kind, *self.some([one for one in TYPES if one != kind], 1, 1)]
        if kind in ("integer", "number"):
            found |= self._number(kind)
        elif kind in ("string", "array", "object"):
            found |= getattr(self, f"_{kind}")(*([depth] if kind != "string" else []))
        return found

    def _number(self, kind):
        found = {}
        rng = self.rng
        low, high = sorted(self.rng.choice(NUMBERS) for _ in range(2))
        if self.chance(0.4):
            found["minimum"] = low
        if self.chance(0.4):
            found["maximum"] = high
        for bound, other in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if self.chance(0.15):
                if self.draft > 4:
                    found[bound] = low if other == "minimum" else high
                elif other in found:
                    found[bound] = self.chance(0.7)
        if self.chance(0.2):
            found["multipleOf"] = rng.choice((1, 2, 5, 10, 100, 4) if not self.chance(self.hard) else STEPS)
            if self.chance(0.5):
                found |= {"minimum": 0, "maximum": rng.choice((20, 1000))}
        return found

    def _string(self):
        rng, found = self.rng, {}
        way = rng.random()
        if way < 0.3:
            low = rng.randint(0, 4)
            found |= self.rng.choice(({"minLength": low}, {"maxLength": low}, {"minLength": low, "maxLength": low + 2}))
        elif way < 0.6:
            found["pattern"] = rng.choice(PATTERNS)
            if self.chance(0.25):
                found["maxLength"] = rng.randint(1, 6)
        elif way < 0.75:
            found["format"] = rng.choice(FORMATS)
            if self.chance(0.15):
                found["pattern"] = rng.choice(PATTERNS)
        return found

    def _array(self, depth):
        rng, found = self.rng, {}
        if self.chance(0.3):
            parts = [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]
            rest = self.rng.choice((False, False, True, None))
            if rest is None:
                rest = self.schema(depth - 1)
            if self.draft == 2020:
                found["prefixItems"] = parts
                found["items"] = rest
            else:
                found["items"] = parts
                found["additionalItems"] = rest
        elif self.chance(0.8):
            found["items"] = self.schema(depth - 1)
        low = rng.randint(0, 3)
        if self.chance(0.3):
            found["minItems"] = low
        if self.chance(0.4):
            found["maxItems"] = low + rng.randint(0, 2)
        if self.chance(self.hard):
            found["uniqueItems"] = True
            if self.chance(0.5):
                found |= {"items": {"enum": [1, "a", None, True]}}
        if self.draft > 4 and self.chance(self.hard):
            found["contains"] = self.schema(0)
            if self.chance(0.3) and self.draft >= 2019:
                found["minContains"] = rng.randint(0, 2)
        if self.draft >= 2019 and self.chance(0.05):
            found["unevaluatedItems"] = False
        return found

    def _object(self, depth):
        rng, found = self.rng, {}
        names = self.some(WORDS, 0, 4)
        if names or self.chance(0.5):
            found["properties"] = {name: self.schema(depth - 1) for name in names}
        if self.chance(0.5):
            required = self.some([*names, *(["zz"] if self.chance(0.2) else [])], 0, 3)
            if required or self.draft > 4:
                found["required"] = required
        if self.chance(0.7 if self.closed else 0.2):
            found["additionalProperties"] = False
        elif self.chance(0.3):
            found["additionalProperties"] = self.schema(depth - 1)
        if self.chance(0.2):
            found["patternProperties"] = {one: self.schema(depth - 1) for one in self.some(PATTERNS, 1, 2)}
            if self.chance(0.6):
                found["additionalProperties"] = False
        if self.draft > 4 and self.chance(0.15):
            found["propertyNames"] = rng.choice(
                (
                    {"pattern": rng.choice(PATTERNS)},
                    {"enum": self.some(WORDS, 1, 4)},
                    {"maxLength": rng.randint(0, 2)},
                    {"minLength": 2},
                    {"format": rng.choice(FORMATS)},
                )
            )
            if self.chance(0.5):
                found.pop("properties", None)
                found.pop("required", None)
        if self.chance(0.12):
            found["minProperties"] = rng.randint(0, 3)
        if self.chance(0.12):
            found["maxProperties"] = rng.randint(0, 4)
        if self.draft >= 2019 and self.chance(0.05):
            found["unevaluatedProperties"] = False
        return found
