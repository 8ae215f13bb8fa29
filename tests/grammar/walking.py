"""Random answers under a grammar, taken from the masks that requests get, until they end."""

import random

import numpy as np

from rtk.grammar.constraint import Constraint, ask, runs_out_of_keys
from rtk.grammar.unique_keys import KeyIndex, UniqueKeys
from rtk.plugin.grammar import Vocabulary, read_row

LONG = (
    *(b'{"', b'":', b'","', b'"}', b' "', b"true", b"null", b"00", b"12", b"1}", b'a"', b'",\n', b'"a":', b"]}", b"}}"),
    *(
        b',"b"',
        b"\n  ",
        b"        ",
        b"ab",
        b"x_",
        b'\\"',
        b"\\\\",
        b"\\u00",
        b"\\ud83d",
        b"\\ude00",
        b'":1,"',
        b'"a",',
    ),
    *(b'{"a":1}', b"[[", b"[]", b"{}", b'b":', b'a":{"', b".5", b"e+", b"-0", b"0.", b"https://", b"2024-", b"@a."),
    *(b"\xc3\xa9", b"\xf0\x9f", b"\x98\x80", b"\xa9", b"a\xc3", b"\xff", b"\xc0", b"</s>", b"a", b'"', b","),
)
"""Tokens that straddle what belongs together, pieces of characters, bytes no text has, and some there are twice."""
TOKENS = (*(bytes([byte]) for byte in range(256)), *LONG, b"", b"", b"</s>", b"")
ENDS = frozenset({len(TOKENS) - 3, len(TOKENS) - 2})
VOCABULARY = Vocabulary(TOKENS, ENDS)
INDEX = KeyIndex(VOCABULARY)


def _weights(usual, *special):
    found = np.full(len(TOKENS), float(usual))
    for tokens, weight in special:
        found[[i for i, data in enumerate(TOKENS) if data in tokens]] = weight
    found[list(ENDS)] = 1e9 if usual < 1 else 100
    return found


CLOSE = {b"}", b"]", b"}}", b"]}", b'"}'}
PLAIN = {bytes([byte]) for byte in b"0123456789abcdefgnortxyAPTZ-+./@:_i"}
FREE = _weights(1, (CLOSE, 12), (PLAIN, 3), ({b'"'}, 12))
LEAVE = _weights(0.02, ({b" ", b"\n", b"\t", b"\r", b",", b"{", b"[", b"\\"}, 1e-3), (CLOSE, 1e6), ({b'"'}, 1e5))
FILL = _weights(1e-3, (PLAIN, 1), ({b'"'}, 12))
"""What is likely: at first, then to come to an end, in turns with texts that must be filled before."""
FREELY, IN_TURN, MOST = 40, 25, 1500
"""Tokens: at first, each turn, and in all."""


def walk(backend, matcher, schema, rng: random.Random, *, open_keys):
    """What is said in the end. No token leads to where nothing can follow, and all that are allowed are accepted."""
    keys = UniqueKeys(INDEX) if open_keys else None
    state = Constraint(
        matcher.fork(), backend, "x", VOCABULARY, stops=ENDS, keys=keys, scarce=open_keys and runs_out_of_keys(schema)
    )
    mask, said, forced = np.zeros((1, VOCABULARY.words), dtype=np.int32), b"", []
    for count in range(MOST):
        ask([state], mask, [0])
        state.refine(mask[0])
        allowed = set(read_row(mask[0]))
        if rng.random() < 0.5:
            state.look_ahead(mask[0])
        assert state.state != "dead", said
        if state.state == "ended":
            break
        if state.state == "open" and rng.random() < 0.2:
            forced.append((len(said), state.matcher.forced()))
        if not open_keys and (token := rng.randrange(256)) not in allowed:
            assert not state.fork().accept(token), (said, token)
        choices = np.array(read_row(mask[0]))
        weights = np.cumsum((FREE if count < FREELY else (LEAVE, FILL)[(count - FREELY) // IN_TURN % 2])[choices])
        token = int(choices[min(np.searchsorted(weights, rng.random() * weights[-1], "right"), len(choices) - 1)])
        assert state.accept(token), (said, TOKENS[token])
        if token in ENDS:
            break
        said += TOKENS[token]
    else:
        raise AssertionError(f"it comes to no end: {said[-200:]!r}")
    assert all(said[at:].startswith(data[: len(said) - at]) for at, data in forced), (said, forced)
    return said.decode()
