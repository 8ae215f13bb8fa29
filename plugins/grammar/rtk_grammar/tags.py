"""Structural tags: free text, in which a trigger begins a tag."""

from collections import deque
from typing import NamedTuple

from rtk_grammar.expr import (
    ANY,
    EMPTY,
    NEVER,
    Alt,
    Expr,
    Ref,
    RefusedError,
    Rules,
    Text,
    Token,
    all_but,
    alt,
    chars,
    optional,
    paths,
    rep,
    seq,
    token,
)
from rtk_grammar.schema import Reasons, Schema, Writer, parsed, pointer
from rtk_grammar.strings import after, writable

MOST_STATES = 400
"""Characters of all triggers together."""
KEYS = frozenset({"triggers", "openers", "otherwise", "tags", "run", "once"})
RUN = ("begin", "between", "end")
WHITE = " \t\r\n"
GOES_ON = frozenset("0123456789.eE+-")
"""What a number could go on with."""


class _Spec(NamedTuple):
    """What is asked for."""

    tags: list[tuple[str, Schema, str]]
    triggers: list[str]
    openers: list[str]
    run: tuple[str, str, str] | None
    """What comes before, between and after tags that follow each other."""
    once: bool
    otherwise: Schema
    """None: there is no other answer."""


def write(text: str, whitespace: int, reasons: Reasons, by_rules: bool) -> Rules:
    """The grammar of a spec. Raises `RefusedError` where it is malformed.

    Free text is one token, or, `by_rules`, a rule for each state of the automaton that looks out for triggers.
    """
    spec = _read(parsed(text))
    rules: Rules = {}
    values: list[Expr] = []
    for i, (_, schema, end) in enumerate(spec.tags):
        at = pointer("#", "tags", i)
        value = Writer(reasons, whitespace, rules).write(schema, pointer(at, "schema"))
        if (not end or end[0] in GOES_ON) and _may_be_a_number(value, rules):
            reasons.refuse("an end that a number before it could go on with", pointer(at, "end"))
        values.append(value)
    if not spec.triggers:
        options = [_run(spec, values, "")]
        if spec.openers:
            options.append(token(_not_beginning(spec.openers)))
        if spec.otherwise is not None:
            options.append(Writer(reasons, whitespace, rules).write(spec.otherwise, pointer("#", "otherwise")))
        rules["root"] = alt(*options)
        return rules
    free, tagged = _Free(spec.triggers), {trigger: _run(spec, values, trigger) for trigger in spec.triggers}
    if by_rules:
        return rules | free.rules(tagged, once=spec.once)
    last, until = free.expressions()
    found = alt(*(seq(token(until[trigger]), run) for trigger, run in tagged.items()))
    rules["root"] = seq(optional(found) if spec.once else rep(found), optional(token(last)))
    return rules


def _run(spec: _Spec, values: list[Expr], trigger: str) -> Expr:
    """Tags that follow each other, once the trigger that they begin with is written."""
    begin, between, end = spec.run or ("", "", "")
    before = trigger if begin else ""
    first = _tag(spec, values, "" if begin else trigger)
    more = rep(seq(token(Text(between)), _tag(spec, values, ""))) if spec.run and not spec.once else EMPTY
    return seq(token(Text(begin[len(before) :])), first, more, token(Text(end)))


def _tag(spec: _Spec, values: list[Expr], written: str) -> Expr:
    """One of the tags, once so much of it is written."""
    rests = [(begin.removeprefix(written), begin.startswith(written), end) for begin, _, end in spec.tags]
    return alt(
        *(
            seq(token(Text(rest)), value, token(Text(end)))
            for (rest, fits, end), value in zip(rests, values, strict=True)
            if fits
        )
    )


def _not_beginning(openers: list[str]) -> Expr:
    """All texts that do not begin with one of these, be it behind white space."""
    openers = [one for one in openers if not any(one != other and one.startswith(other) for other in openers)]
    begun = {opener[:i] for opener in openers for i in range(len(opener))}
    options: list[Expr] = []
    for text in sorted(begun):
        going_on = [(ord(one[len(text)]),) * 2 for one in (*begun, *openers) if one[:-1] == text and one]
        skipped = [] if text else [(ord(char), ord(char)) for char in WHITE]
        options += [Text(text), seq(Text(text), all_but([*going_on, *skipped]), rep(ANY))]
    return seq(rep(chars((ord(char), ord(char)) for char in WHITE)), alt(*options))


def _read(spec: Schema) -> _Spec:
    if not isinstance(spec, dict) or "tags" not in spec or spec.keys() - KEYS:
        raise RefusedError("no object of tags, and what says how they stand in a text")
    triggers, openers = (_texts(spec, key) for key in ("triggers", "openers"))
    tags, run, once = spec["tags"], spec.get("run"), spec.get("once", False)
    if sum(key in spec for key in ("triggers", "openers", "otherwise")) > 1:
        raise RefusedError("several of triggers, openers and otherwise")
    if not isinstance(tags, list) or not tags:
        raise RefusedError("tags that is no array of tags, of one at least")
    if not isinstance(once, bool):
        raise RefusedError("once that is neither true nor false")
    if run is not None:
        if not isinstance(run, dict) or run.keys() != {*RUN} or not all(map(_is_text, run.values())):
            raise RefusedError("run that is no object of the texts begin, between and end")
        run = tuple(run[key] for key in RUN)
    found = []
    for i, tag in enumerate(tags):
        if not isinstance(tag, dict) or tag.keys() != {"begin", "schema", "end"}:
            raise RefusedError(f"tag {i} is no object of begin, schema and end")
        if not _is_text(tag["begin"]) or not _is_text(tag["end"]):
            raise RefusedError(f"begin or end of tag {i} is no text")
        found.append((tag["begin"], tag["schema"], tag["end"]))
    _check_begins([begin for begin, _, _ in found], triggers, openers, run[0] if run else "")
    return _Spec(found, triggers, openers, run, once, spec.get("otherwise"))


def _texts(spec: Schema, key: str) -> list[str]:
    """An array of texts, if it is there."""
    if key not in spec:
        return []
    texts = spec[key]
    if not isinstance(texts, list) or not texts or not all(_is_text(one) and one for one in texts):
        raise RefusedError(f"{key} that is no array of texts, of one at least, and none empty")
    return texts


def _check_begins(begins: list[str], triggers: list[str], openers: list[str], before: str) -> None:
    """Tags can be told apart, and from text; `before` is what comes before the first of several."""
    firsts = [before + begin for begin in begins]
    for one in triggers:
        if any(one != other and other in one for other in triggers):
            raise RefusedError(f"the trigger {one!a} has another in it")
        if not any(first.startswith(one) for first in firsts):
            raise RefusedError(f"no tag begins with the trigger {one!a}")
        if before and not before.startswith(one):
            raise RefusedError(f"the trigger {one!a} is not that of the run")
    for i, begin in enumerate(begins):
        if triggers and not firsts[i].startswith(tuple(triggers)):
            raise RefusedError(f"tag {i} begins with no trigger")
        if openers and not firsts[i].startswith(tuple(openers)):
            raise RefusedError(f"tag {i} begins with no opener")
        if any(i != j and other.startswith(begin) for j, other in enumerate(begins)):
            raise RefusedError(f"another tag begins as tag {i} does, with {begin!a}")


def _is_text(value: Schema) -> bool:
    return isinstance(value, str) and writable(value)


def _may_be_a_number(expr: Expr, rules: Rules) -> bool:
    """Whether a JSON text may be a number as a whole."""
    seen, left = set[str](), [expr]
    while left:
        match left.pop():
            case Ref(name) if name not in seen:
                seen.add(name)
                left.append(rules[name])
            case Alt(parts):
                left += parts
            case Token(part):
                if any(after(part, ord(char)) != NEVER for char in "-0123456789"):
                    return True
            case Text(text):
                if text[:1].isdecimal() or text[:1] == "-":
                    return True
    return False


class _Free:
    """Text without triggers."""

    def __init__(self, triggers: list[str]):
        if sum(map(len, triggers)) > MOST_STATES:
            raise RefusedError(f"triggers of more than {MOST_STATES} characters")
        states, self._steps = _automaton(triggers)
        self._triggers = {i: prefix for i, prefix in enumerate(states) if prefix in triggers}

    def _others(self, state: int) -> Expr:
        """The characters that lead back to the first state."""
        return all_but((ord(char), ord(char)) for char, target in self._steps[state].items() if target)

    def rules(self, tagged: dict[str, Expr], *, once: bool) -> Rules:
        """Free text in which each trigger is followed by what is `tagged` so, once or as often as one likes."""
        found: Rules = {"root": Ref("t0")}
        for i, trigger in self._triggers.items():
            found[f"t{i}"] = seq(tagged[trigger], Ref("n0" if once else "t0"))
        for state, row in self._steps.items():
            for name, known in (("t", {*self._steps, *self._triggers}), ("n", {*self._steps})):
                steps = [seq(Text(char), Ref(f"{name}{to}")) for char, to in row.items() if to and to in known]
                found[f"{name}{state}"] = alt(seq(self._others(state), Ref(f"{name}0")), *steps, EMPTY)
        return found

    def expressions(self) -> tuple[Expr, dict[str, Expr]]:
        """Free text up to the end, and up to each trigger, that one included."""
        edges: dict[int, dict[int, Expr]] = {state: {} for state in self._steps}
        ends: dict[str, dict[int, Expr]] = {trigger: {} for trigger in self._triggers.values()}
        for state, row in self._steps.items():
            for char, target in row.items():
                if target in self._triggers:
                    ends[self._triggers[target]][state] = Text(char)
                elif target:
                    edges[state][target] = alt(*(one for one in [edges[state].get(target)] if one), Text(char))
            edges[state][0] = self._others(state)
        to = paths(edges)
        until = {one: alt(*(seq(to[state], last) for state, last in found.items())) for one, found in ends.items()}
        return alt(*to.values()), until


def _automaton(triggers: list[str]) -> tuple[list[str], dict[int, dict[str, int]]]:
    """States by what of a trigger was just written, and where their characters lead; all others lead to the first."""
    states = [""]
    queue = deque([""])
    while queue:
        prefix = queue.popleft()
        for char in sorted({one[len(prefix)] for one in triggers if one.startswith(prefix) and one != prefix}):
            states.append(prefix + char)
            queue.append(prefix + char)
    known = {prefix: i for i, prefix in enumerate(states)}
    alphabet = sorted({char for one in triggers for char in one})
    steps: dict[int, dict[str, int]] = {}
    for prefix, state in known.items():
        if prefix not in triggers:
            steps[state] = {}
            for char in alphabet:
                written = prefix + char
                ends = (written[i:] for i in range(len(written) + 1))
                steps[state][char] = known[next(end for end in ends if end in known)]
    return states, steps
