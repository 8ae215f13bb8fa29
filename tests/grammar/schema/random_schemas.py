"""Random schemas over all keywords, and documents that are nearly valid under them, from a source of random numbers."""

import copy

NAMES = ("a", "b", "ab", "x_1", "")
PATTERNS = ("^a", "b$", "^[ab]+$", "x", "^x_[0-9]$", "^a{2,3}$", "^$|^a$")
TEXTS = ("", "a", "b", "ab", "aa", "aaa", "x_1", "x", "ba", "é😀", "2024-02-29", "2023-02-29", "10.0.0.1")
NUMBERS = (0, 1, 2, 3, -1, 5, 10, 0.5, 1.5, 2.5, 1.0, -2.0, 4)
FORMATS = ("ipv4", "uuid", "json-pointer")
VALUES = (
    None,
    True,
    False,
    *NUMBERS,
    *TEXTS,
    [],
    [1],
    [1, 2],
    ["a"],
    [[]],
    {},
    {"a": 1},
    {"b": "a"},
    {"a": None, "b": 2},
)
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Random:
    """Schemas and documents."""

    def __init__(self, rng, depth=3, applied=0.5):
        self.rng = rng
        self.depth = depth
        self.share = applied
        self.defs = 0

    def some(self, values, low, high):
        values = list(values)
        self.rng.shuffle(values)
        return values[: self.rng.randint(low, high)]

    def root(self):
        self.defs = self.rng.choice((0, 0, 0, 1, 2, 3))
        schema = self.schema(self.depth)
        if self.defs and isinstance(schema, dict):
            schema["$defs"] = {f"d{i}": self.schema(2) for i in range(self.defs)}
        elif self.defs:
            self.defs = 0
        return schema

    def schema(self, depth):
        rng = self.rng
        if rng.random() < 0.07:
            return rng.random() < 0.7
        if self.defs and rng.random() < 0.2:
            ref = {"$ref": f"#/$defs/d{rng.randrange(self.defs)}"}
            return ref if rng.random() < 0.7 else ref | self.plain(depth - 1)
        schema = self.plain(depth)
        if depth > 0 and rng.random() < self.share:
            schema |= self.applied(depth - 1)
        return schema

    def plain(self, depth):
        rng = self.rng
        schema = {}
        kind = rng.choice(TYPES)
        if rng.random() < 0.7:
            schema["type"] = kind if rng.random() < 0.8 else self.some(TYPES, 1, 3)
        if rng.random() < 0.12:
            schema["enum"] = self.some(VALUES, 0 if rng.random() < 0.05 else 1, 6)
        elif rng.random() < 0.07:
            schema["const"] = rng.choice(VALUES)
        for one in [kind] if rng.random() < 0.8 else self.some(TYPES, 1, 2):
            schema |= getattr(self, f"_{one}", dict)(*([depth] if one in ("array", "object") else []))
        return schema

    def applied(self, depth):
        rng = self.rng
        keyword = rng.choice(("allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas"))
        if keyword in ("allOf", "anyOf", "oneOf"):
            return {keyword: [self.schema(depth) for _ in range(rng.randint(1, 3))]}
        if keyword == "not":
            return {"not": self.schema(depth)}
        if keyword == "dependentRequired":
            return {keyword: {rng.choice(NAMES): self.some(NAMES, 0, 2)}}
        if keyword == "dependentSchemas":
            return {keyword: {rng.choice(NAMES): self.schema(depth)}}
        found = {"if": self.schema(depth)}
        for part in ("then", "else"):
            if rng.random() < 0.7:
                found[part] = self.schema(depth)
        return found

    def _integer(self):
        return self._number()

    def _number(self):
        found = {}
        for keyword in self.some(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), 0, 2):
            found[keyword] = (
                self.rng.choice((0.5, 1, 2, 2.5, 3)) if keyword == "multipleOf" else self.rng.choice(NUMBERS)
            )
        return found

    def _string(self):
        found = {}
        for keyword in self.some(("minLength", "maxLength", "pattern", "format"), 0, 2):
            if keyword == "pattern":
                found[keyword] = self.rng.choice(PATTERNS)
            elif keyword == "format":
                if self.rng.random() < 0.3:
                    found[keyword] = self.rng.choice(FORMATS)
            else:
                found[keyword] = self.rng.randint(0, 4)
        return found

    def _array(self, depth):
        rng = self.rng
        found = {}
        keywords = (
            "prefixItems",
            "items",
            "minItems",
            "maxItems",
            "uniqueItems",
            "contains",
            "minContains",
            "maxContains",
        )
        for keyword in self.some(keywords, 0, 3):
            if keyword == "prefixItems":
                found[keyword] = [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]
            elif keyword in ("items", "contains"):
                found[keyword] = self.schema(depth - 1)
            else:
                found[keyword] = rng.random() < 0.8 if keyword == "uniqueItems" else rng.randint(0, 3)
        return found

    def _object(self, depth):
        rng = self.rng
        found = {}
        if rng.random() < 0.8:
            found["properties"] = {name: self.schema(depth - 1) for name in self.some(NAMES, 0, 3)}
        keywords = (
            "required",
            "required",
            "additionalProperties",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        )
        for keyword in self.some(keywords, 0, 3):
            if keyword == "required":
                found[keyword] = self.some(NAMES, 0, 2)
            elif keyword == "additionalProperties":
                found[keyword] = False if rng.random() < 0.4 else self.schema(depth - 1)
            elif keyword == "patternProperties":
                found[keyword] = {p: self.schema(depth - 1) for p in self.some(PATTERNS, 1, 2)}
            elif keyword == "propertyNames":
                found[keyword] = rng.choice(
                    ({"pattern": rng.choice(PATTERNS)}, {"enum": ["a", "b"]}, {"maxLength": 1}, self.schema(0))
                )
            else:
                found[keyword] = rng.randint(0, 3)
        return found

    # --- documents ----------------------------------------------------------------------------------------------------

    def document(self, schema, root, depth=5):
        """A value that has a fair chance of being valid."""
        rng = self.rng
        if depth <= 0 or not isinstance(schema, dict) or rng.random() < 0.08:
            return copy.deepcopy(rng.choice(VALUES))
        choices = []
        if "$ref" in schema:
            target = root
            for step in schema["$ref"].split("/")[1:]:
                target = target[step]
            choices.append(target)
        for keyword in ("allOf", "anyOf", "oneOf"):
            choices += schema.get(keyword, ())
        choices += [schema[keyword] for keyword in ("then", "else", "if") if keyword in schema]
        if choices and rng.random() < 0.6:
            return self.document(rng.choice(choices), root, depth - 1)
        if "const" in schema and rng.random() < 0.9:
            return copy.deepcopy(schema["const"])
        if schema.get("enum") and rng.random() < 0.9:
            return copy.deepcopy(rng.choice(schema["enum"]))
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = rng.choice(kind)
        if kind is None:
            kind = (
                "object"
                if {"properties", "required", "patternProperties", "propertyNames"} & set(schema)
                else "array"
                if {"items", "prefixItems", "contains"} & set(schema)
                else rng.choice(TYPES)
            )
        if kind == "object":
            return self._object_document(schema, root, depth)
        if kind == "array":
            prefix = schema.get("prefixItems", [])
            count = rng.randint(
                schema.get("minItems", 0), max(schema.get("minItems", 0), min(3, schema.get("maxItems", 3)))
            )
            found = [
                self.document(prefix[i] if i < len(prefix) else schema.get("items", {}), root, depth - 1)
                for i in range(count)
            ]
            if "contains" in schema and found and rng.random() < 0.8:
                found[rng.randrange(len(found))] = self.document(schema["contains"], root, depth - 1)
            return found
        values = {"null": (None,), "boolean": (True, False), "string": TEXTS}.get(kind, NUMBERS)
        bounds = [schema[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in schema]
        return rng.choice((*values, *bounds, *(bound + 1 for bound in bounds)))

    def _object_document(self, schema, root, depth):
        rng = self.rng
        names = [name for name in schema.get("required", ()) if rng.random() < 0.9]
        names += [name for name in schema.get("properties", ()) if rng.random() < 0.6]
        if rng.random() < 0.5:
            names.append(rng.choice((*NAMES, "aa", "c")))
        rng.shuffle(names)
        found = {}
        for name in names:
            part = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            found[name] = self.document(part, root, depth - 1)
        return found
