"""A toy grammar: a sequence of pieces, each some bytes of a set; and a model that says what a test wants."""

import numpy as np

from rtk.grammar.constraint import Constraint
from rtk.plugin.grammar import GrammarBackend, Judgement, Matcher, write_row
from rtk.plugin.testing.grammar_examples import END, VOCABULARY
from rtk.plugin.testing.harness import Harness, digest

SPECIAL = END + 1
SPACE = [(b" \n", 0, 2)]
DIGITS = [(b"0123456789", 1, 3)]


def text(data):
    return [(bytes([byte]), 1, 1) for byte in data.encode()]


QUOTED = [*text('"'), (bytes(range(97, 123)), 0, 5), *text('"')]
OBJECT = [*text("{"), *SPACE, *text('"a"'), *SPACE, *text(":"), *SPACE, *DIGITS, *SPACE, *text("}")]


KNOWN = {}


class ShapeMatcher(Matcher):
    """Knows for each token so far where in the pieces the answer may be: (piece, bytes of it)."""

    max_rollback = 2**31

    def __init__(self, pieces, vocabulary, past=None):
        self.pieces = tuple(pieces)
        self.vocabulary = vocabulary
        self.past = past or [self.closure({(0, 0)})]

    def closure(self, places):
        found = set(places)
        for piece, count in sorted(places):
            while piece < len(self.pieces) and count >= self.pieces[piece][1]:
                piece, count = piece + 1, 0
                found.add((piece, count))
        return frozenset(found)

    def step(self, places, byte):
        inside = [(p, c) for p, c in places if p < len(self.pieces)]
        return self.closure({(p, c + 1) for p, c in inside if byte in self.pieces[p][0] and c < self.pieces[p][2]})

    def after(self, token):
        """Where the answer may be after a token; nowhere where it is not allowed; None after an end."""
        places = self.past[-1]
        if token in self.vocabulary.ends:
            return None if (len(self.pieces), 0) in places else frozenset()
        data = self.vocabulary.tokens[token]
        for byte in data:
            places = self.step(places, byte)
        return places if data else frozenset()

    def allowed(self):
        key = self.pieces, self.vocabulary, self.past[-1]
        if key not in KNOWN:
            KNOWN[key] = [t for t in range(len(self.vocabulary.tokens)) if self.after(t) != frozenset()]
        return KNOWN[key]

    def accept(self, token):
        assert self.past[-1] is not None, "it has accepted an end"
        after = self.after(token)
        if after != frozenset():
            self.past.append(after)
        return after != frozenset()

    def rollback(self, count):
        del self.past[len(self.past) - count :]

    def fork(self):
        return type(self)(self.pieces, self.vocabulary, list(self.past))

    def forced(self):
        places, out = self.past[-1], b""
        while (len(self.pieces), 0) not in places:
            pieces = [(*self.pieces[p], c) for p, c in places if p < len(self.pieces)]
            following = {byte for allowed, _, most, c in pieces if c < most for byte in allowed}
            if len(following) != 1:
                break
            (byte,) = following
            places = self.step(places, byte)
            out += bytes([byte])
        return out


class Shapes(GrammarBackend):
    spec_kinds = frozenset({"regex"})
    matcher = ShapeMatcher

    def judge(self, spec):
        return Judgement.exact()

    def compile(self, spec, vocabulary):
        raise NotImplementedError

    def fill_batch(self, matchers, mask, rows):
        for matcher, row in zip(matchers, rows, strict=True):
            write_row(mask[row], matcher.allowed())


class Constrained(Harness):
    """A harness whose requests may have a constraint, made from the tokens that end their texts."""

    def add(self, rid, prompt, *, constraint=None, **options):
        verdict = super().add(rid, prompt, **options)
        if constraint is not None and verdict.accepted:
            request = self.scheduler._requests[rid]
            request.constraint = constraint(request.stop_token_ids)
        return verdict


BACKEND = Shapes()


def shaped(pieces, *, backend=BACKEND, after=b"", vocabulary=VOCABULARY, name="shapes"):
    """What `Constrained.add` makes a request's constraint from."""

    def constraint(stops):
        matcher = backend.matcher(pieces, vocabulary)
        return Constraint(matcher, backend, name, vocabulary, stops=stops, after=after)

    return constraint


def said(tokens, vocabulary=VOCABULARY):
    return b"".join(vocabulary.tokens[token] for token in tokens).decode()


def prefers(*tokens):
    """A model that likes these best, in this order, then any other, the lowest first, white space last."""
    logits = -np.arange(len(VOCABULARY.tokens), dtype=np.float32)
    logits[:33] -= 1000
    for rank, token in enumerate(tokens):
        logits[token] = 100.0 - rank
    return lambda history: logits


def moody(history):
    """A model whose likes depend on every token of the history."""
    return np.random.default_rng(digest(history)).standard_normal(len(VOCABULARY.tokens)).astype(np.float32) * 3


def byte(character):
    return ord(character)


def alone(script, prompt, constraint, limit, stops=VOCABULARY.ends):
    """What the model says greedily under a constraint, token by token, by definition."""
    state, out = constraint(stops), []
    mask = np.zeros((1, state.words), np.int32)
    while not out or out[-1] not in stops:
        if state.stale:
            state.backend.fill_batch([state.matcher], mask, [0])
            state.refine(mask[0])
            state.look_ahead(mask[0])
        if state.state == "ended" or len(out) == limit:
            break
        allowed = np.unpackbits(mask[0].view(np.uint8), bitorder="little")[: len(VOCABULARY.tokens)] == 1
        token = int(np.where(allowed, script([*prompt, *out]), -np.inf).argmax())
        out.append(token)
        assert state.accept(token)
    return out
