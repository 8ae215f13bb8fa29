"""Sets of characters, as ranges of code points: sorted, apart from each other, without surrogates."""

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
ANY: Ranges = ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, LAST))
"""Every character there is."""


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """These ranges as a set; surrogates are no characters, and left out."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    low, high = SURROGATES
    if any(a <= high and low <= b for a, b in out):
        return intersection(tuple(out), ANY)
    return tuple(out)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    """What is in both. O(n + m)."""
    out: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            out.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """Every character that is not in `ranges`."""
    out: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if start < low:
            out.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        out.append((start, LAST))
    return intersection(tuple(out), ANY)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """What is in `a` and not in `b`."""
    return intersection(a, complement(b))


def of(*texts: str) -> Ranges:
    """Single characters, and pairs that stand for a range."""
    return union((ord(text[0]), ord(text[-1])) for text in texts)


def count(ranges: Ranges) -> int:
    """How many characters there are."""
    return sum(high - low + 1 for low, high in ranges)


DIGIT = of("09")
WORD = of("09", "AZ", "_", "az")
SPACE = of("\t\r", " ", "\xa0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000", "\ufeff")
"""What ECMA-262 calls white space and line ends."""
NOT_LINE_END = complement(of("\n", "\r", "\u2028\u2029"))
"""What `.` stands for, as in ECMA-262."""
