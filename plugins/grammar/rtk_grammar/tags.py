"""Structural tags: free text, in which a trigger begins a tag."""

from collections import deque

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
    all_but,
    alt,
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
GOES_ON = frozenset("0123456789.eE+-")
"""What a number could go on with."""


def write(text: str, whitespace: int, reasons: Reasons, by_rules: bool) -> Rules:
    """The grammar of a spec. Raises `RefusedError` where it is malformed.

    Free text is one token, or, `by_rules`, a rule for each state of the automaton that looks out for triggers.
    """
    tags, triggers = _read(parsed(text))
    rules: Rules = {}
    free = _Free(triggers)
    options: dict[str, list[Expr]] = {trigger: [] for trigger in triggers}
    for i, (begin, schema, end) in enumerate(tags):
        at = pointer("#", "tags", i)
        value = Writer(reasons, whitespace, rules).write(schema, pointer(at, "schema"))
        if (not end or end[0] in GOES_ON) and _may_be_a_number(value, rules):
            reasons.refuse("an end that a number before it could go on with", pointer(at, "end"))
        trigger = next(one for one in triggers if begin.startswith(one))
        options[trigger].append(seq(token(Text(begin[len(trigger) :])), value, token(Text(end))))
    if by_rules:
        return rules | free.rules({trigger: alt(*found) for trigger, found in options.items()})
    last, until = free.expressions()
    tagged = [seq(token(until[trigger]), alt(*found)) for trigger, found in options.items()]
    rules["root"] = seq(rep(alt(*tagged)), optional(token(last)))
    return rules


def _read(spec: Schema) -> tuple[list[tuple[str, Schema, str]], list[str]]:
    if not isinstance(spec, dict) or spec.keys() != {"triggers", "tags"}:
        raise RefusedError("no object of triggers and tags")
    triggers, tags = spec["triggers"], spec["tags"]
    if not isinstance(triggers, list) or not triggers or not all(_is_text(one) and one for one in triggers):
        raise RefusedError("triggers that is no array of texts, of one at least, and none empty")
    if not isinstance(tags, list) or not tags:
        raise RefusedError("tags that is no array of tags, of one at least")
    found = []
    for i, tag in enumerate(tags):
        if not isinstance(tag, dict) or tag.keys() != {"begin", "schema", "end"}:
            raise RefusedError(f"tag {i} is no object of begin, schema and end")
        if not _is_text(tag["begin"]) or not _is_text(tag["end"]):
            raise RefusedError(f"begin or end of tag {i} is no text")
        found.append((tag["begin"], tag["schema"], tag["end"]))
    for one in triggers:
        if any(one != other and other in one for other in triggers):
            raise RefusedError(f"the trigger {one!a} has another in it")
        if not any(begin.startswith(one) for begin, _, _ in found):
            raise RefusedError(f"no tag begins with the trigger {one!a}")
    begins = [begin for begin, _, _ in found]
    for i, begin in enumerate(begins):
        if not any(begin.startswith(one) for one in triggers):
            raise RefusedError(f"tag {i} begins with no trigger")
        if any(i != j and other.startswith(begin) for j, other in enumerate(begins)):
            raise RefusedError(f"another tag begins as tag {i} does, with {begin!a}")
    return found, triggers


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

    def rules(self, tagged: dict[str, Expr]) -> Rules:
        """Free text in which each trigger is followed by what is `tagged` so."""
        found: Rules = {"root": Ref("t0")}
        for i, trigger in self._triggers.items():
            found[f"t{i}"] = seq(tagged[trigger], Ref("t0"))
        for state, row in self._steps.items():
            steps = [seq(Text(char), Ref(f"t{target}")) for char, target in row.items() if target]
            found[f"t{state}"] = alt(seq(self._others(state), Ref("t0")), *steps, EMPTY)
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
