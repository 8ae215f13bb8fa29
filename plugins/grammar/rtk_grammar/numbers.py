"""JSON numbers in a range, digit by digit: what these expressions match is in the range, however it is parsed."""

from fractions import Fraction

from rtk_grammar.expr import EMPTY, NEVER, Expr, Text, alt, chars, one_of, optional, rep, seq, token

DIGITS = 40
"""Of a number, before its point and after it, at most. So digits do not go on for ever."""
EXACT = 15
"""Digits that a number with a bound and a fraction has at most: so many are told apart by every parser."""
LONGEST = 400
"""Digits of a bound."""

DIGIT = one_of("0123456789")
NOT_ZERO = one_of("123456789")
NATURAL = alt(Text("0"), seq(NOT_ZERO, rep(DIGIT, 0, DIGITS - 1)))
MINUS = optional(Text("-"))
INTEGER = token(seq(MINUS, NATURAL))
NUMBER = token(
    seq(
        MINUS,
        NATURAL,
        optional(seq(Text("."), rep(DIGIT, 1, DIGITS))),
        optional(seq(one_of("eE"), optional(one_of("+-")), rep(DIGIT, 1, 2))),
    )
)


def _digits(low: str, high: str) -> Expr:
    return chars([(ord(low), ord(high))])


def same_length(low: str, high: str) -> Expr:
    """Texts of as many digits as both have, from `low` to `high`."""
    if low == high:
        return Text(low)
    count = len(low) - 1
    if not count:
        return _digits(low, high)
    if low[0] == high[0]:
        return seq(Text(low[0]), same_length(low[1:], high[1:]))
    first, last = int(low[0]), int(high[0])
    options: list[Expr] = []
    if low[1:].strip("0"):
        options.append(seq(Text(low[0]), same_length(low[1:], "9" * count)))
        first += 1
    if high[1:].strip("9"):
        options.append(seq(Text(high[0]), same_length("0" * count, high[1:])))
        last -= 1
    if first <= last:
        options.append(seq(_digits(str(first), str(last)), rep(DIGIT, count, count)))
    return alt(*options)


def naturals(low: int, high: int | None) -> dict[int, Expr]:
    """Numbers from `low` to `high`, by how many digits they have; without `high`, up to `DIGITS` digits."""
    low_text = str(low)
    high_text = str(high) if high is not None else "9" * max(DIGITS, len(low_text))
    found: dict[int, Expr] = {}
    for length in range(len(low_text), len(high_text) + 1):
        least = low_text if length == len(low_text) else "1" + "0" * (length - 1)
        most = high_text if length == len(high_text) else "9" * length
        if least <= most:
            found[length] = same_length(least, most)
    return found


def _any_length(parts: dict[int, Expr]) -> Expr:
    """One of the `naturals`; lengths of which all numbers are in it as one."""
    full = [n for n, part in parts.items() if n > 1 and part == seq(NOT_ZERO, rep(DIGIT, n - 1, n - 1))]
    others = [part for n, part in parts.items() if n not in full]
    return alt(*others, *([seq(NOT_ZERO, rep(DIGIT, full[0] - 1, full[-1] - 1))] if full else []))


def integers(low: int | None, high: int | None) -> Expr:
    """Integers from `low` to `high`; None is no bound."""
    if low is None and high is None:
        return INTEGER
    options: list[Expr] = []
    if high is None or high >= 0:
        options.append(_any_length(naturals(max(low or 0, 0), high)))
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        options.append(seq(Text("-"), _any_length(naturals(least, None if low is None else -low))))
    return token(alt(*options))


Bound = tuple[Fraction, bool]
"""A number, and whether it is itself outside."""


def numbers(low: Bound | None, high: Bound | None) -> Expr:
    """Numbers between two bounds, without exponent."""
    if low is None and high is None:
        return NUMBER
    options: list[Expr] = []
    zero = (Fraction(0), False)
    if high is None or high >= zero:
        options.append(_magnitudes(low if low is not None and low[0] >= 0 else zero, high))
    if low is None or low[0] <= 0:
        # Mirrored. 0 may have a sign where it is inside.
        least = (-high[0], high[1]) if high is not None and high[0] <= 0 else zero
        most = None if low is None else (-low[0], low[1])
        options.append(seq(Text("-"), _magnitudes(least, most)))
    return token(alt(*options))


def _split(number: Fraction) -> tuple[int, str]:
    """A number from 0 on: what is before its point, and the digits after it."""
    whole = number.numerator // number.denominator
    rest, found = number - whole, ""
    while rest:
        rest *= 10
        found += str(rest.numerator // rest.denominator)
        rest -= rest.numerator // rest.denominator
    return whole, found


def _magnitudes(low: Bound, high: Bound | None) -> Expr:
    whole, rest = _split(low[0])
    if high is None:
        top, top_rest = None, ""
    elif high[0] < low[0] or (high[0] == low[0] and (low[1] or high[1])):
        return NEVER
    else:
        top, top_rest = _split(high[0])
    if high is not None and top == whole:
        return seq(Text(str(whole)), _fraction(whole, (rest, low[1]), (top_rest, high[1])))
    options = [seq(Text(str(whole)), _fraction(whole, (rest, low[1]), None))]
    if top is None or whole + 1 < top:
        for length, part in naturals(whole + 1, None if top is None else top - 1).items():
            room = max(0, EXACT - length)
            options.append(seq(part, optional(seq(Text("."), rep(DIGIT, 1, room))) if room else EMPTY))
    if high is not None and top is not None:
        options.append(seq(Text(str(top)), _fraction(top, ("", False), (top_rest, high[1]))))
    return alt(*options)


def _fraction(whole: int, low: tuple[str, bool], high: tuple[str, bool] | None) -> Expr:
    """What may follow `whole`: nothing, or a point and digits, between digits of bounds that may be outside."""
    room = max(0, EXACT - len(str(whole)))
    low_digits, low_strict = low
    high_digits, high_strict = high if high is not None else ("", False)

    def may_end(at: int, by_low: bool, by_high: bool) -> bool:
        above = not by_low or (at >= len(low_digits) and not low_strict)
        return above and (not by_high or at < len(high_digits) or not high_strict)

    def digits(at: int, by_low: bool, by_high: bool) -> Expr:
        """Digits from this place on, where those before are just those of a bound."""
        if not by_low and not by_high:
            return rep(DIGIT, 0, room - at)
        options = [EMPTY] if may_end(at, by_low, by_high) else []
        return alt(*options, more(at, by_low, by_high))

    def more(at: int, by_low: bool, by_high: bool) -> Expr:
        if at >= room:
            return NEVER
        least = int(low_digits[at : at + 1] or "0") if by_low else 0
        most = int(high_digits[at : at + 1] or "0") if by_high else 9
        options: list[Expr] = []
        free = [d for d in range(least, most + 1) if not (by_low and d == least) and not (by_high and d == most)]
        if free:
            options.append(seq(_digits(str(free[0]), str(free[-1])), rep(DIGIT, 0, room - at - 1)))
        for digit in sorted({least, most} - set(free)):
            if least <= digit <= most:
                rest = digits(at + 1, by_low and digit == least, by_high and digit == most)
                options.append(seq(Text(str(digit)), rest))
        return alt(*options)

    by_high = high is not None
    ends = [EMPTY] if may_end(0, True, by_high) else []
    return alt(*ends, seq(Text("."), more(0, True, by_high)))


def multiples(of: int, low: int | None, high: int | None, most: int) -> Expr | None:
    """Multiples, where they can be told by their last digits or are few; else None."""
    if low is not None and high is not None and (high // of) - -(-low // of) < most:
        return token(alt(*(Text(str(of * n)) for n in range(-(-low // of), high // of + 1))))
    digits = next((k for k in range(1, 4) if 10**k % of == 0), 0)
    if not digits or high is not None or low not in (None, 0, 1):
        return None
    small = [Text(str(n)) for n in range(low or 0, 10**digits, of) if n >= (low or 0) and n % of == 0]
    if low == 1:
        small = [Text(str(n)) for n in range(of, 10**digits, of)]
    ends = alt(*(Text(f"{n:0{digits}}") for n in range(0, 10**digits, of)))
    large = seq(NOT_ZERO, rep(DIGIT, 0, DIGITS - 1 - digits), ends)
    return token(seq(MINUS if low is None else EMPTY, alt(*small, large)))
