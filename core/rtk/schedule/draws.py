"""The random source of sampling: one draw per (seed, position), so that a text does not depend on its neighbours."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ANSWERS = 0xD1342543DE82EF95


def uniform(seed: int, position: int) -> float:
    """A number from [0, 1) for the `position`-th token of a request with this seed.

    SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) on seed + position.
    """
    z = (_mix(seed & _MASK) + (position + 1) * _GOLDEN) & _MASK
    return (_mix(z) >> 11) * 2.0**-53


def answer_seed(seed: int, answer: int) -> int:
    """The seed of one of several answers to a prompt: the first, number 0, has the request's own."""
    return seed if not answer else _mix(_mix(seed & _MASK) ^ (answer * _ANSWERS & _MASK)) >> 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
