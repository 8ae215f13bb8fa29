"""Random expressions, and texts that match them or nearly do."""

from hypothesis import strategies as st

from rtk.grammar.regex.chars import complement, union
from rtk.grammar.regex.nodes import NOTHING, Alt, Chars, Seq, alt, chars, repeat, seq

CODES = [
    *b"\0\1\t\n\r\x1f !\"#&'-/09<[\\]^`abc{|}~\x7f",
    0x80,
    0xA0,
    0xE9,
    0x7FF,
    0x800,
    0x2028,
    0x4E00,
    0xD7FF,
    0xE000,
]
CODES += [0xFEFF, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]


def sets(codes=CODES):
    one = st.sampled_from(codes)
    ranges = st.lists(
        one.map(lambda a: (a, a)) | st.tuples(one, one).map(lambda p: (min(p), max(p))), min_size=1, max_size=3
    )
    plain = ranges.map(union)
    return st.one_of(plain, plain, plain.map(complement).filter(bool)).map(chars)


def _bigger(inner):
    times = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (1, 3), (0, 2), (2, None)])
    return st.one_of(
        st.lists(inner, max_size=3).map(seq),
        st.lists(inner, min_size=1, max_size=3).map(alt),
        st.tuples(inner, times).map(lambda p: repeat(p[0], *p[1])),
    )


def nodes(codes=CODES, leaves=6):
    return st.recursive(sets(codes), _bigger, max_leaves=leaves).filter(lambda node: node != NOTHING)


def a_text_of(node, random):
    """One of the texts that match."""
    if isinstance(node, Chars):
        low, high = random.choice(node.ranges)
        return chr(random.choice([low, high, random.randint(low, high)]))
    if isinstance(node, Seq):
        return "".join(a_text_of(item, random) for item in node.items)
    if isinstance(node, Alt):
        return a_text_of(random.choice(node.options), random)
    times = random.randint(node.low, node.low + 2 if node.high is None else node.high)
    return "".join(a_text_of(node.item, random) for _ in range(times))


def changed(text, random, codes=CODES):
    """`text` with a character more, less, or other."""
    at = random.randint(0, len(text))
    return text[:at] + random.choice(["", chr(random.choice(codes))]) + text[at + random.randint(0, 1) :]


def texts(node, random, codes=CODES):
    """Some that match, and some that mostly do not."""
    good = [a_text_of(node, random) for _ in range(4)]
    return [*good, *(changed(text, random, codes) for text in good), ""]
