"""From a JSON Schema in normal form to a grammar, and what the table says of what was met on the way."""

import json
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from typing import Any
from urllib.parse import unquote

from rtk.plugin.grammar import Judgement, Reason
from rtk_grammar import numbers, strings
from rtk_grammar.expr import (
    EMPTY,
    NEVER,
    Alt,
    Expr,
    Ref,
    RefusedError,
    Rules,
    Text,
    Token,
    alt,
    one_of,
    optional,
    rep,
    seq,
    token,
    word,
)
from rtk_grammar.regex import whole
from rtk_grammar.table import Entry, Table

MOST_RULES = 2000
"""Of one object or array, where its parts are counted."""
MOST_CONSTANTS = 500
"""Multiples that are listed."""
MOST_UNIQUE = 6
"""Items of an enum of which each may come once."""
MOST_REASONS = 20
MAX_EXPONENT = 400
SPACE = one_of(" \t\r\n")

Schema = Any
"""What `json.loads` makes of one, but with numbers as `Decimal`."""


def parsed(text: str) -> Schema:
    """A JSON text. Raises `RefusedError`."""

    def wrong(name: str) -> None:
        raise RefusedError(f"{name} is not JSON")

    def number(text: str) -> Decimal:
        found = Decimal(text)
        if abs(found.adjusted()) > MAX_EXPONENT or len(text) > 2 * MAX_EXPONENT:
            raise RefusedError("a number that is too long")
        return found

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=wrong)
    except ValueError as error:
        raise RefusedError(f"not JSON: {error}") from None
    except RecursionError:
        raise RefusedError("nested too deeply") from None


def pointer(at: str, *parts: str | int) -> str:
    """A JSON pointer that goes on by these."""
    return "/".join([at, *(str(part).replace("~", "~0").replace("/", "~1") for part in parts)])


class Reasons:
    """What there is to say of a spec: each narrowing once, at its first place; refusals at all of theirs."""

    def __init__(self, table: Table):
        self._table = table
        self.refused: list[Reason] = []
        self.narrowed: dict[str, Reason] = {}

    def note(self, shape: str, keyword: str, at: str) -> bool:
        """Look a keyword up. False where it is refused."""
        entry = self._table.get((shape, keyword), Entry("refused", f"the keyword {keyword} for the shape {shape}"))
        if entry.verdict == "refused":
            self.refuse(entry.reason, at)
        elif entry.verdict == "narrowed":
            self.narrowed.setdefault(entry.reason, Reason(entry.reason, at))
        return entry.verdict != "refused"

    def refuse(self, problem: str, at: str) -> Expr:
        """Say why not, in words that are in no table: what is malformed."""
        if len(self.refused) < MOST_REASONS:
            self.refused.append(Reason("".join(c if c.isprintable() else repr(c)[1:-1] for c in problem), at))
        return NEVER

    def judgement(self) -> Judgement:
        """All of it."""
        if self.refused:
            return Judgement.refused(*self.refused)
        return Judgement.narrowed(*self.narrowed.values()) if self.narrowed else Judgement.exact()


class Writer:
    """Writes the rules of one schema, or of several that share a grammar."""

    def __init__(self, reasons: Reasons, whitespace: int, rules: Rules | None = None):
        self.rules: Rules = {} if rules is None else rules
        self.reasons = reasons
        self._note = reasons.note
        space = token(rep(SPACE, 1, whitespace)) if whitespace else EMPTY
        self.space = optional(space)
        self.comma = seq(self.space, word(","), self.space)
        self.colon = seq(self.space, word(":"), self.space)
        self._left: list[tuple[str, Schema, str]] = []
        self._defs: dict[str, tuple[Schema, str]] = {}
        self._named: dict[str, str] = {}

    def write(self, schema: Schema, at: str = "#") -> Expr:
        """What a JSON text that is valid under `schema` looks like."""
        self._named = {}
        defs = schema.get("$defs", {}) if isinstance(schema, dict) else {}
        if not isinstance(defs, dict):
            return self.reasons.refuse("$defs that is no object", pointer(at, "$defs"))
        self._defs = {name: (one, pointer(at, "$defs", name)) for name, one in defs.items()}
        found = self._value({key: one for key, one in schema.items() if key != "$defs"} if defs else schema, at)
        while self._left:
            name, one, place = self._left.pop()
            self.rules[name] = self._compound(one, place)
        self._untangle()
        return found

    def _rule(self, expr: Expr) -> Expr:
        """A rule of its own, for what is long or used twice."""
        if isinstance(expr, Ref | Token) or expr == NEVER:
            return expr
        name = f"r{len(self.rules)}"
        self.rules[name] = expr
        return Ref(name)

    def _untangle(self) -> None:
        """Rules that are just alternatives of each other, without end, get what they have in common."""
        for name in self._named.values():
            seen, left, found = {name}, [self.rules[name]], list[Expr]()
            while left:
                for one in expr.parts if isinstance((expr := left.pop(0)), Alt) else (expr,):
                    if not isinstance(one, Ref) or one.name not in self._named.values():
                        found.append(one)
                    elif one.name not in seen:
                        seen.add(one.name)
                        left.append(self.rules[one.name])
            if len(seen) > 1:
                self.rules[name] = alt(*found)

    # --- one schema -------------------------------------------------------------------------------------------------

    def _value(self, schema: Schema, at: str) -> Expr:
        """A scalar at once, others as a rule that is written later."""
        if schema is True:
            return self._anything() if self._note("any", "true", at) else NEVER
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            return self.reasons.refuse("a schema that is neither an object nor true", at)
        if "enum" in schema:
            return self._only(schema, {"enum"}, "enum", at) or self._enum(schema["enum"], pointer(at, "enum"))
        if "$ref" in schema:
            return self._only(schema, {"$ref"}, "$ref", at) or self._ref(schema["$ref"], pointer(at, "$ref"))
        shape = "anyOf" if "anyOf" in schema else schema.get("type")
        if shape in ("array", "object", "anyOf"):
            name = f"r{len(self.rules)}"
            self.rules[name] = NEVER
            self._left.append((name, schema, at))
            return Ref(name)
        if shape == "null":
            return self._only(schema, {"type"}, shape, at) or word("null")
        if shape == "boolean":
            return self._only(schema, {"type"}, shape, at) or token(alt(Text("true"), Text("false")))
        if shape in ("integer", "number"):
            return self._number(schema, shape, at)
        if shape == "string":
            return self._string(schema, at)
        return self.reasons.refuse("a schema of no known shape", at)

    def _compound(self, schema: Schema, at: str) -> Expr:
        if "anyOf" in schema:
            return self._only(schema, {"anyOf"}, "anyOf", at) or self._any_of(schema["anyOf"], pointer(at, "anyOf"))
        return self._array(schema, at) if schema["type"] == "array" else self._object(schema, at)

    def _only(self, schema: dict[str, Schema], known: Iterable[str], shape: str, at: str) -> Expr | None:
        """Look all keywords up; `NEVER` where one is refused."""
        fine = True
        for keyword in schema:
            if keyword != "type" and keyword not in known:
                self._note(shape, f"{keyword}", pointer(at, keyword))
                fine = False
            elif shape not in ("enum", "$ref") and not self._note(shape, keyword, pointer(at, keyword)):
                fine = False
        return None if fine else NEVER

    def _anything(self) -> Expr:
        if "value" not in self.rules:
            value = Ref("value")
            self.rules["value"] = NEVER
            member = self._rule(seq(strings.string(), self.colon, value))
            self.rules["value"] = alt(
                token(alt(Text("null"), Text("true"), Text("false"))),
                numbers.NUMBER,
                strings.string(),
                self._listed("[", self._several(value, 0, None), "]"),
                self._listed("{", self._several(member, 0, None), "}"),
            )
        return Ref("value")

    def _any_of(self, options: Schema, at: str) -> Expr:
        if not isinstance(options, list) or not options:
            return self.reasons.refuse("anyOf that is no array of schemas", at)
        return alt(*(found for i, one in enumerate(options) if (found := self._value(one, pointer(at, i))) != NEVER))

    def _ref(self, to: Schema, at: str) -> Expr:
        name = unquote(to[8:]).replace("~1", "/").replace("~0", "~") if isinstance(to, str) else ""
        if not isinstance(to, str) or not to.startswith("#/$defs/") or name not in self._defs:
            return self.reasons.refuse("$ref to no schema of $defs", at)
        self._note("$ref", "$ref", at)
        if name not in self._named:
            rule = self._named[name] = f"r{len(self.rules)}"
            self.rules[rule] = NEVER
            schema, place = self._defs[name]
            self.rules[rule] = self._value(schema, place)
        return Ref(self._named[name])

    # --- constants --------------------------------------------------------------------------------------------------

    def _enum(self, values: Schema, at: str) -> Expr:
        if not isinstance(values, list) or not values:
            return self.reasons.refuse("enum that is no array of values, of one at least", at)
        scalars, others = list[Expr](), list[Expr]()
        for value in values:
            found = self._constant(value, at)
            (scalars if isinstance(found, Text) else others).append(found)
        return alt(*([token(alt(*scalars))] if scalars else []), *(one for one in others if one != NEVER))

    def _constant(self, value: Schema, at: str) -> Expr:
        if value is None or isinstance(value, bool):
            self._note("enum", "null" if value is None else "boolean", at)
            return Text(json.dumps(value))
        if isinstance(value, Decimal):
            return Text(str(value)) if self._note("enum", "number", at) else NEVER
        if isinstance(value, str):
            return self._name(value, at) if not value or self._note("enum", "string", at) else NEVER
        if isinstance(value, list):
            self._note("enum", "array", at)
            return self._listed("[", self._joined([_whole(self._constant(one, at)) for one in value]), "]")
        self._note("enum", "object", at)
        if len(value) > 1:
            self._note("enum", "order", at)
        if value:
            self._note("object", "properties", at)
        members = [
            seq(token(self._name(name, at)), self.colon, _whole(self._constant(one, at))) for name, one in value.items()
        ]
        return self._listed("{", self._joined(members), "}")

    def _name(self, text: str, at: str) -> Expr:
        if not strings.writable(text):
            return self.reasons.refuse("half of a surrogate pair, which no text has", at)
        return Text(strings.literal(text))

    def _joined(self, items: list[Expr]) -> Expr:
        return seq(*items[:1], *(seq(self.comma, item) for item in items[1:]))

    # --- scalars ----------------------------------------------------------------------------------------------------

    def _number(self, schema: dict[str, Schema], shape: str, at: str) -> Expr:
        keywords = {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
        if self._only(schema, keywords, shape, at):
            return NEVER
        bounds: dict[str, Fraction] = {}
        for keyword in schema.keys() - {"type"}:
            if not isinstance(schema[keyword], Decimal):
                return self.reasons.refuse(f"{keyword} that is no number", pointer(at, keyword))
            bounds[keyword] = Fraction(schema[keyword])
        lows = [(bounds[key], key[0] == "e") for key in ("minimum", "exclusiveMinimum") if key in bounds]
        highs = [(bounds[key], key[0] != "e") for key in ("maximum", "exclusiveMaximum") if key in bounds]
        low, high = max(lows, default=None), min(highs, default=None)
        if high is not None:
            high = (high[0], not high[1])
        if shape == "number" and "multipleOf" not in bounds:
            return numbers.numbers(low, high)
        least = None if low is None else floor(low[0]) + 1 if low[1] else ceil(low[0])
        most = None if high is None else ceil(high[0]) - 1 if high[1] else floor(high[0])
        if "multipleOf" not in bounds:
            return numbers.integers(least, most)
        of = bounds["multipleOf"]
        if of <= 0:
            return self.reasons.refuse("multipleOf that is not above 0", pointer(at, "multipleOf"))
        if shape == "integer":
            of = Fraction(of.numerator)  # the integers among the multiples of n/d are those of n
        if of.denominator != 1:
            self._note(shape, "multipleOf of a fraction", pointer(at, "multipleOf"))
            return NEVER
        if of == 1:
            return numbers.integers(least, most)
        found = numbers.multiples(of.numerator, least, most, MOST_CONSTANTS)
        if found is None:
            self._note("integer", "multipleOf of many", pointer(at, "multipleOf"))
        return NEVER if found is None else found

    def _count(self, schema: dict[str, Schema], keyword: str, at: str) -> int | None:
        value = schema.get(keyword)
        if value is None:
            return None
        if not isinstance(value, Decimal) or value < 0 or value != value.to_integral_value():
            self.reasons.refuse(f"{keyword} that is no count", pointer(at, keyword))
            return None
        return int(value)

    def _string(self, schema: dict[str, Schema], at: str) -> Expr:
        if self._only(schema, {"type", "minLength", "maxLength", "pattern", "not"}, "string", at):
            return NEVER
        least, most = self._count(schema, "minLength", at) or 0, self._count(schema, "maxLength", at)
        special = [keyword for keyword in ("pattern", "not") if keyword in schema]
        if special and (len(special) > 1 or least or most is not None):
            self._note("string", "pattern with lengths", pointer(at, special[0]))
            return NEVER
        if "not" in schema:
            return self._all_but(schema["not"], pointer(at, "not"))
        if "pattern" not in schema:
            return strings.string(least, most) if most is None or least <= most else NEVER
        try:
            return strings.matching(_pattern(schema["pattern"]))
        except RefusedError as error:
            return self.reasons.refuse(f"pattern: {error}", pointer(at, "pattern"))

    def _all_but(self, schema: Schema, at: str) -> Expr:
        values = schema.get("enum") if isinstance(schema, dict) and len(schema) == 1 else None
        if not isinstance(values, list):
            return self.reasons.refuse("the keyword not, but for an enum", at)
        return strings.other_than(value for value in values if isinstance(value, str) and strings.writable(value))

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _listed(self, begin: str, body: Expr, end: str) -> Expr:
        """Brackets around a body that may be empty."""
        if body == EMPTY:
            return seq(word(begin), self.space, word(end))
        if isinstance(body, Alt) and EMPTY in body.parts:
            body = alt(*(part for part in body.parts if part != EMPTY))
            return seq(word(begin), self.space, optional(seq(body, self.space)), word(end))
        return seq(word(begin), self.space, body, self.space, word(end))

    def _several(self, part: Expr, least: int, most: int | None) -> Expr:
        """So many, with commas between them."""
        if part == NEVER:
            return NEVER if least else EMPTY
        if most is not None and most < least:
            return NEVER
        if most == 0:
            return EMPTY
        more = rep(seq(self.comma, part), max(0, least - 1), None if most is None else most - 1)
        return seq(part, more) if least else alt(seq(part, more), EMPTY)

    def _array(self, schema: dict[str, Schema], at: str) -> Expr:
        known = {"type", "prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains"}
        if self._only(schema, known, "array", at):
            return NEVER
        least, most = self._count(schema, "minItems", at) or 0, self._count(schema, "maxItems", at)
        prefix = schema.get("prefixItems", [])
        if not isinstance(prefix, list):
            return self.reasons.refuse("prefixItems that is no array of schemas", pointer(at, "prefixItems"))
        if "contains" in schema:
            return self._containing(schema, least, at)
        if schema.get("uniqueItems") and most not in (0, 1):
            return self._unique(schema, least, most, at)
        firsts = [self._value(one, pointer(at, "prefixItems", i)) for i, one in enumerate(prefix)]
        items = self._value(schema.get("items", True), pointer(at, "items"))
        for i, one in enumerate([*firsts, items]):
            if one == NEVER:
                most = i if most is None else min(most, i)
                break
        if most is not None and most < least:
            return NEVER
        if not firsts:
            return self._listed("[", self._several(self._rule(items), least, most), "]")
        room = len(firsts) if most is None else min(len(firsts), most)
        tail: Expr = EMPTY
        if (most is None or most > len(firsts)) and items != NEVER:
            left = None if most is None else most - len(firsts)
            tail = rep(seq(self.comma, self._rule(items)), max(0, least - len(firsts)), left)
        for i in range(room - 1, 0, -1):
            one = seq(self.comma, firsts[i], tail)
            tail = self._rule(one if i < least else optional(one))
        body = seq(firsts[0], tail) if room else EMPTY
        return self._listed("[", body if least or not room else alt(body, EMPTY), "]")

    def _unique(self, schema: dict[str, Schema], least: int, most: int | None, at: str) -> Expr:
        items = schema.get("items", True)
        values = items.get("enum") if isinstance(items, dict) else None
        if items == {"type": "boolean"}:
            values = [False, True]
        if "prefixItems" in schema or not isinstance(values, list) or not 0 < len(values) <= MOST_UNIQUE:
            self._note("array", "uniqueItems of many", pointer(at, "uniqueItems"))
            return NEVER
        constants = [_whole(self._constant(value, pointer(at, "items", "enum"))) for value in values]
        most = len(values) if most is None else min(most, len(values))
        if most < least:
            return NEVER
        made: dict[frozenset[int], Expr] = {}

        def more(used: frozenset[int]) -> Expr:
            """What may come once these have."""
            if used not in made:
                comma = self.comma if used else EMPTY
                left = [i for i in range(len(constants)) if i not in used] if len(used) < most else []
                options = [seq(comma, constants[i], more(used | {i})) for i in left]
                ends = [EMPTY] if len(used) >= least else []
                made[used] = self._rule(alt(*options, *ends)) if used else alt(*options, *ends)
            return made[used]

        return self._listed("[", more(frozenset()), "]")

    def _containing(self, schema: dict[str, Schema], least: int, at: str) -> Expr:
        """One item that is wanted, anywhere: a constant of a plain type that all items are of."""
        items, wanted = schema.get("items", True), schema["contains"]
        others = schema.keys() - {"type", "items", "contains", "minItems"}
        plain = items is True or (isinstance(items, dict) and items.keys() == {"type"})
        values = wanted.get("enum") if isinstance(wanted, dict) and len(wanted) == 1 else None
        fits = (
            plain and isinstance(values, list) and all(items is True or _is(value, items["type"]) for value in values)
        )
        if others or least > 1 or not (fits or wanted == items):
            self._note("array", "contains beside others", pointer(at, "contains"))
            return NEVER
        item = self._rule(self._value(items, pointer(at, "items")))
        one = item if wanted == items else self._value(wanted, pointer(at, "contains"))
        return self._listed("[", seq(rep(seq(item, self.comma)), one, rep(seq(self.comma, item))), "]")

    # --- objects ----------------------------------------------------------------------------------------------------

    def _object(self, schema: dict[str, Schema], at: str) -> Expr:
        known = {"type", "properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
        if self._only(schema, known | {"minProperties", "maxProperties"}, "object", at):
            return NEVER
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            return self.reasons.refuse("properties that is no object", pointer(at, "properties"))
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            return self.reasons.refuse("required that is no array of names", pointer(at, "required"))
        patterns = self._patterns(schema, at)
        if patterns is None:
            return NEVER
        rest = schema.get("additionalProperties", True)
        places = {name: (one, pointer(at, "properties", name)) for name, one in properties.items()}
        for name, one in properties.items():
            if any(one != other and strings.matches(expr, name) for expr, other, _ in patterns):
                self._note("object", "patternProperties over properties", pointer(at, "properties", name))
                return NEVER
        for name in required:
            if name not in places:
                fitting = [(one, place) for expr, one, place in patterns if strings.matches(expr, name)]
                places[name] = (fitting or [(rest, pointer(at, "additionalProperties"))])[0]
        members: list[tuple[Expr, bool]] = []
        for name, (one, place) in places.items():
            value = self._value(one, place)
            if value == NEVER and name in required:
                return NEVER
            if value != NEVER:
                members.append((self._rule(seq(token(self._name(name, place)), self.colon, value)), name in required))
        others = self._others(schema, at, patterns, rest, set(places))
        least, most = self._count(schema, "minProperties", at) or 0, self._count(schema, "maxProperties", at)
        needed = sum(is_needed for _, is_needed in members)
        if most is not None and most < max(needed, least):
            return NEVER
        if members and len(members) + (others != NEVER) > 1 and most != 1:
            self._note("object", "order", at)
        if others != NEVER and least > needed + 1:
            self._note("object", "minProperties of any names", pointer(at, "minProperties"))
            return NEVER
        if not members:
            return self._listed("{", self._several(others, least, most), "}")
        if least <= needed and (most is None or (others == NEVER and most >= len(members))):
            return self._listed("{", self._in_order(members, others), "}")
        if (len(members) + 1) * ((least if most is None else most) + 1) > MOST_RULES:
            keyword = "minProperties" if most is None else "maxProperties"
            self._note("object", "minProperties and maxProperties of many", pointer(at, keyword))
            return NEVER
        return self._listed("{", self._counted(members, others, least, most), "}")

    def _patterns(self, schema: dict[str, Schema], at: str) -> list[tuple[Expr, Schema, str]] | None:
        """Names by pattern, what their values are, and where that is said; None where it is refused."""
        given = schema.get("patternProperties", {})
        place = pointer(at, "patternProperties")
        if not isinstance(given, dict):
            self.reasons.refuse("patternProperties that is no object", place)
            return None
        found = []
        for pattern, one in given.items():
            try:
                found.append((_pattern(pattern), one, pointer(place, pattern)))
            except RefusedError as error:
                self.reasons.refuse(f"patternProperties: {error}", pointer(place, pattern))
                return None
        for i, (expr, one, _) in enumerate(found):
            if any(one != schema and strings.overlap(expr, other) for other, schema, _ in found[:i]):
                self._note("object", "patternProperties that overlap", place)
                return None
        return found

    def _others(
        self,
        schema: dict[str, Schema],
        at: str,
        patterns: list[tuple[Expr, Schema, str]],
        rest: Schema,
        taken: set[str],
    ) -> Expr:
        """A member of a name that is not `taken`."""
        taken = {name for name in taken if strings.writable(name)}
        if "propertyNames" in schema and (taken or patterns):
            self._note("object", "propertyNames beside others", pointer(at, "propertyNames"))
            return NEVER
        members = [
            self._member(strings.matching(strings.without(expr, taken)), one, place) for expr, one, place in patterns
        ]
        place = pointer(at, "additionalProperties")
        if rest is False:
            name: Expr | None = NEVER
        elif "propertyNames" in schema:
            name = self._names(schema["propertyNames"], pointer(at, "propertyNames"))
        elif patterns:
            found = strings.outside(alt(*(expr for expr, _, _ in patterns), *map(Text, sorted(taken))))
            name = None if found is None else strings.matching(found)
        elif taken:
            self._note("object", "properties", place)
            name = strings.other_than(taken)
        else:
            name = strings.string()
        if name is None:
            self._note("object", "patternProperties and additionalProperties", pointer(at, "patternProperties"))
            return NEVER
        return alt(*(one for one in [*members, self._member(name, rest, place)] if one != NEVER))

    def _member(self, name: Expr, schema: Schema, place: str) -> Expr:
        value = NEVER if name == NEVER else self._value(schema, place)
        return NEVER if value == NEVER else self._rule(seq(name, self.colon, value))

    def _names(self, schema: Schema, at: str) -> Expr:
        if schema is True:
            return strings.string()
        if isinstance(schema, dict) and schema.get("type") == "string":
            return self._string(schema, at)
        if isinstance(schema, dict) and schema.keys() == {"enum"}:
            texts = [value for value in schema["enum"] if isinstance(value, str)]
            return self._enum(texts, pointer(at, "enum")) if texts else NEVER
        return self.reasons.refuse("propertyNames that is no schema of strings", at)

    def _in_order(self, members: list[tuple[Expr, bool]], others: Expr) -> Expr:
        """Members in this order, of which some are needed; then others."""
        tails: list[Expr] = [rep(seq(self.comma, others)) if others != NEVER else EMPTY]
        for member, is_needed in reversed(members):
            more = seq(self.comma, member)
            tails.append(self._rule(seq(more if is_needed else optional(more), tails[-1])))
        tails.reverse()
        options: list[Expr] = []
        for i, (member, is_needed) in enumerate(members):
            options.append(seq(member, tails[i + 1]))
            if is_needed:
                return alt(*options)
        if others != NEVER:
            options.append(self._several(others, 1, None))
        return alt(*options, EMPTY)

    def _counted(self, members: list[tuple[Expr, bool]], others: Expr, least: int, most: int | None) -> Expr:
        """As `_in_order`, of so many members."""
        cap = least if most is None else most
        below: dict[int, Expr] = {}
        """What may follow so many members; after none, there is something."""
        for count in range(cap + 1):
            left = None if most is None else most - count
            more = rep(seq(self.comma, others), max(0, least - count), left)
            below[count] = more if count else self._several(others, max(1, least), most)
        for member, is_needed in reversed(members):
            row: dict[int, Expr] = {}
            for count in range(cap + 1):
                options = [] if is_needed else [below[count]]
                after = min(count + 1, cap) if most is None else count + 1
                if after in below:
                    options.append(seq(self.comma if count else EMPTY, member, below[after]))
                row[count] = alt(*(one for one in options if one != NEVER))
                row[count] = row[count] if row[count] == EMPTY else self._rule(row[count])
            below = row
        return below[0] if least or any(is_needed for _, is_needed in members) else alt(below[0], EMPTY)


def _whole(constant: Expr) -> Expr:
    return token(constant) if isinstance(constant, Text) else constant


def _is(value: Schema, kind: str) -> bool:
    """Whether a constant is of a type."""
    if isinstance(value, Decimal):
        return kind == "number" or (kind == "integer" and value == value.to_integral_value() and "E" not in str(value))
    kinds = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    return kinds[type(value)] == kind


@lru_cache(256)
def _pattern(text: str) -> Expr:
    if not isinstance(text, str):
        raise RefusedError("it is no text")
    return whole(text)
