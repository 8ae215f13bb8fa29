"""Planted faults of grammar backends: the contract suite catches each."""

import functools
import itertools
import json
import re

import numpy as np
import pytest
from planted import assert_caught, assert_passes

from rtk.plugin import GrammarBackend, Judgement, Matcher, Options
from rtk.plugin.grammar import read_row, write_row
from rtk.plugin.testing.grammar_examples import END, VOCABULARY
from rtk.plugin.testing.toys import ChoiceMatcher, Choices


def choices():
    return Choices(Options())


def test_the_toy_passes():
    assert_passes("grammar", choices)


def test_rows_are_bits_of_words():
    row = np.full(2, -1, dtype=np.int32)
    write_row(row, [0, 31, 33])
    assert row.tolist() == [1 - 2**31, 2]
    assert read_row(row) == [0, 31, 33]


def test_a_row_has_a_bit_for_each_token_and_is_filled_up():
    assert len(VOCABULARY.tokens) % 32
    assert VOCABULARY.words == 10


# --- another backend that passes: the suite does not ask for the toy's habits ---------------------------------------


class Enumerated(GrammarBackend):
    """Regular expressions and grammars of few answers, which it lists; narrows the others to those it has listed."""

    spec_kinds = frozenset({"choice", "regex"})

    def _texts(self, spec) -> list[str]:
        return json.loads(spec.text) if spec.kind == "choice" else _matching(spec.text)

    def judge(self, spec):
        if spec.kind == "choice":
            return choices().judge(spec)
        try:
            re.compile(spec.text)
        except re.error as error:
            return Judgement.refused(str(error))
        finite = not re.search(r"[*+]", spec.text)
        return Judgement.exact() if finite else Judgement.narrowed("answers have four parts at most")

    def compile(self, spec, vocabulary):
        return ShortMemory(tuple(text.encode() for text in self._texts(spec)), vocabulary)

    fill_batch = Choices.fill_batch


class ShortMemory(ChoiceMatcher):
    """Takes back no more than one token, and forces nothing."""

    max_rollback = 1

    def forced(self):
        return b""


@functools.cache
def _matching(pattern: str) -> list[str]:
    words = ["a", "b", "cat", "car", "s", "0", "1", "é", "yes"]
    texts = ("".join(parts) for length in range(5) for parts in itertools.product(words, repeat=length))
    return [text for text in texts if re.fullmatch(pattern, text)]


def test_a_backend_that_lists_and_narrows_passes():
    assert_passes("grammar", Enumerated)


# --- faults ----------------------------------------------------------------------------------------------------------


def backend(**methods):
    """A backend that differs from the toy in these methods."""
    return lambda: type("Faulty", (Choices,), methods)(Options())


def matcher(**methods):
    """A backend whose matchers differ from the toy's in these methods."""
    faulty = type("FaultyMatcher", (ChoiceMatcher,), methods)

    def compile_faulty(self, spec, vocabulary):
        return faulty(tuple(text.encode() for text in json.loads(spec.text)), vocabulary)

    return backend(compile=compile_faulty)


toy = ChoiceMatcher


def forbids_the_only_token(self):
    found = toy.allowed(self)
    return found if len(found) > 1 else []


def forgets_long_tokens(self):
    return [token for token in toy.allowed(self) if token < 256 or token == END]


def allows_a_token_that_leads_astray(self):
    """Looks at the first byte of a token."""
    firsts = {text[:1] for text in self.left()}
    more = [i for i, token in enumerate(VOCABULARY.tokens) if token and token[:1] in firsts]
    return sorted({*toy.allowed(self), *more})


def allows_special_tokens(self):
    """No bytes are the beginning of everything."""
    found = toy.allowed(self)
    return found + ([END + 1] if found and found != [END] else [])


def ends_too_early(self):
    found = toy.allowed(self)
    return sorted({*found, END}) if self.past and found else found


def never_ends(self):
    return [token for token in toy.allowed(self) if token != END]


def accepts_everything(self, token):
    self.past.append(token)
    return True


def accepts_after_the_end(self, token):
    ended = bool(self.past) and self.past[-1] == END
    return (ended and token == END) or toy.accept(self, token)


def moves_when_it_refuses(self, token):
    fits = token in toy.allowed(self)
    self.past.append(token)
    return fits


def accepts_in_silence(self, token):
    toy.accept(self, token)


def takes_back_too_few(self, count):
    toy.rollback(self, count - 1)


def takes_back_one_at_most(self, count):
    toy.rollback(self, min(count, 1))


def takes_back_everything(self, count):
    self.past.clear()


def fork_shares_its_past(self):
    fork = toy.fork(self)
    fork.past = self.past
    return fork


def fork_begins_anew(self):
    return type(self)(self.texts, self.vocabulary)


def fork_has_no_past(self):
    """It stands where the other does, and cannot go back."""
    fork = toy.fork(self)
    fork.rollback = lambda count: None
    return fork


def forces_the_first_answer(self):
    return min(self.left(), default=b"")


def forces_text(self):
    return toy.forced(self).decode(errors="replace")


def writes_rows_in_order(self, matchers, mask, rows):
    Choices.fill_batch(self, matchers, mask, range(len(rows)))


def adds_to_the_mask(self, matchers, mask, rows):
    """Counts on a mask of zeros."""
    before = mask.copy()
    Choices.fill_batch(self, matchers, mask, rows)
    mask |= before


def clears_the_mask(self, matchers, mask, rows):
    mask[:] = 0
    Choices.fill_batch(self, matchers, mask, rows)


def forgets_the_last_word(self, matchers, mask, rows):
    Choices.fill_batch(self, matchers, mask, rows)
    mask[list(rows), -1] = 0


def judges_once(self, spec):
    """Remembers, and thinks better of it."""
    seen = Choices.__dict__.get("seen") or set()
    Choices.seen = seen | {spec}
    return Choices.judge(self, spec) if spec not in seen else Judgement.narrowed("seen before")


def judges_all_exact(self, spec):
    return Judgement.exact()


def refuses_what_is_plain(self, spec):
    return Choices.judge(self, spec) if spec.text.isascii() else Judgement.refused("not ASCII")


def gives_no_reason(self, spec):
    judgement = Choices.judge(self, spec)
    return Judgement(judgement.verdict)


def drops_a_choice(self, spec, vocabulary):
    """Narrows, and calls it exact."""
    return ChoiceMatcher(tuple(text.encode() for text in json.loads(spec.text)[:2]), vocabulary)


def ignores_what_follows(self, spec, vocabulary):
    """Every text may go on."""
    texts = json.loads(spec.text)
    return ChoiceMatcher(tuple(text.encode() for text in [*texts, *(f"{text}x" for text in texts)]), vocabulary)


def compiles_once(self, spec, vocabulary):
    """All who ask for a spec get one matcher."""
    kept = self.__dict__.setdefault("kept", {})
    if spec not in kept:
        kept[spec] = Choices.compile(self, spec, vocabulary)
    return kept[spec]


def keeps_what_was_compiled(self, spec, vocabulary):
    """By the spec alone: for another tokenizer it is wrong."""
    kept = self.__dict__.setdefault("kept", {})
    if spec not in kept:
        kept[spec] = Choices.compile(self, spec, vocabulary)
    return kept[spec].fork()


def knows_one_end(self, token, left):
    ends = self.vocabulary.ends
    return toy.fits(self, token, left) and (token not in ends or token == min(ends))


def knows_one_id_for_the_same_bytes(self, token, left):
    first = self.vocabulary.tokens.index(self.vocabulary.tokens[token])
    return toy.fits(self, token, left) and (token in self.vocabulary.ends or token == first)


FAULTS = [
    (backend, {"compile": keeps_what_was_compiled}, "every vocabulary is its own"),
    (matcher, {"fits": knows_one_end}, "every vocabulary is its own"),
    (matcher, {"fits": knows_one_id_for_the_same_bytes}, "every vocabulary is its own"),
    (matcher, {"allowed": forbids_the_only_token}, "what is allowed can be said"),
    (matcher, {"allowed": forgets_long_tokens}, "masks are exact"),
    (matcher, {"allowed": allows_a_token_that_leads_astray}, "masks are exact"),
    (matcher, {"allowed": allows_a_token_that_leads_astray}, "walks end in answers"),
    (matcher, {"allowed": allows_special_tokens}, "masks are exact"),
    (matcher, {"allowed": ends_too_early}, "what is not allowed cannot"),
    (matcher, {"allowed": never_ends}, "what is allowed can be said"),
    (matcher, {"accept": accepts_everything}, "accept and mask agree"),
    (matcher, {"accept": accepts_after_the_end}, "accept and mask agree"),
    (matcher, {"accept": moves_when_it_refuses}, "accept and mask agree"),
    (matcher, {"accept": accepts_in_silence}, "what is allowed can be said"),
    (matcher, {"rollback": takes_back_too_few}, "rollback takes back"),
    (matcher, {"rollback": takes_back_one_at_most}, "rollback takes back"),
    (matcher, {"rollback": takes_back_everything}, "any past is followed"),
    (matcher, {"fork": fork_shares_its_past}, "forks are independent"),
    (matcher, {"fork": fork_begins_anew}, "forks are independent"),
    (matcher, {"fork": fork_has_no_past}, "forks are independent"),
    (matcher, {"fork": fork_has_no_past}, "any past is followed"),
    (matcher, {"forced": forces_the_first_answer}, "forced bytes are forced"),
    (matcher, {"forced": forces_text}, "forced bytes are forced"),
    (backend, {"fill_batch": writes_rows_in_order}, "rows are their own"),
    (backend, {"fill_batch": adds_to_the_mask}, "rows are their own"),
    (backend, {"fill_batch": clears_the_mask}, "rows are their own"),
    (backend, {"fill_batch": forgets_the_last_word}, "what is allowed can be said"),
    (backend, {"judge": judges_once}, "specs are judged"),
    (backend, {"judge": judges_all_exact}, "specs are judged"),
    (backend, {"judge": refuses_what_is_plain}, "specs are judged"),
    (backend, {"judge": gives_no_reason}, "specs are judged"),
    (backend, {"compile": drops_a_choice}, "masks are exact"),
    (backend, {"compile": ignores_what_follows}, "what is not allowed cannot"),
    (backend, {"compile": compiles_once}, "compiling is safe in threads"),
    (backend, {"spec_kinds": frozenset({"choice", "prose"})}, "kinds are known"),
]


def _named(make, changed, check):
    ((method, what),) = changed.items()
    return f"{getattr(what, '__name__', method)}-{check}"


@pytest.mark.parametrize(("make", "changed", "check"), [pytest.param(*fault, id=_named(*fault)) for fault in FAULTS])
def test_planted_faults_are_caught(make, changed, check):
    assert_caught("grammar", make(**changed), check)


def test_a_matcher_may_leave_forced_out():
    assert Matcher.forced(ChoiceMatcher((b"x",), VOCABULARY)) == b""
