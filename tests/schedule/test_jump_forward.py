"""Tokens that a grammar leaves little choice of are guessed, and computed at once; no answer depends on it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import (
    DIGITS,
    OBJECT,
    QUOTED,
    Constrained,
    ShapeMatcher,
    Shapes,
    alone,
    byte,
    moody,
    prefers,
    said,
    shaped,
    text,
)

from rtk.grammar.constraint import ask
from rtk.plugin.grammar import Vocabulary, read_row
from rtk.plugin.testing.grammar_examples import END, VOCABULARY

ENDS = frozenset({END})
LETTERS = [*text('"'), (b"aeioy", 3, 9), *text('"')]
KEYED = [*text('{"yes":'), *DIGITS, *text(',"cat":"cars","no":'), *LETTERS, *text(',"true":true}')]
TEN = [piece for i in range(10) for piece in [*text('{,"'[i > 0 :: 1][:1] + f'"long key {i}":'), *DIGITS]] + text("}")


def harness(script, **options):
    return Constrained(**{"script": script, "end_tokens": ENDS, "pool_tokens": 512, **options})


def books_are_closed(h):
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("invariant_violations") == h.stat("commit_failures") == h.stat("steps_failed") == 0
    assert h.stat("attention_query_rows") == h.stat("prefill_tokens") + h.stat("decode_tokens")


def looked_ahead(pieces, vocabulary=VOCABULARY):
    """The tokens that are written for what has no choice of bytes, and those that the mask then allows."""
    constraint = shaped(pieces, vocabulary=vocabulary)(vocabulary.ends)
    mask = np.zeros((1, constraint.words), np.int32)
    ask([constraint], mask, [0])
    constraint.refine(mask[0])
    constraint.look_ahead(mask[0])
    return [[vocabulary.tokens[token] for token in tokens] for tokens in (constraint.drafts, read_row(mask[0]))]


def test_what_has_no_choice_of_bytes_has_none_of_tokens_the_longest_that_fit():
    drafts, allowed = looked_ahead(text('{"yes":nonée'))
    assert drafts == [b'{"', b"yes", b'":', b"no", b"n", "é".encode(), b"e"]
    assert allowed == [b'{"']


def test_where_a_token_could_go_on_behind_what_has_no_choice_it_may():
    """`ye` is the longest of what is certain, and `yes` may be what the model means."""
    drafts, allowed = looked_ahead([*text("ye"), (b"s", 0, 1)])
    assert drafts == [b"ye"]
    assert allowed == [b"y", b"ye", b"yes"]


@pytest.mark.parametrize("tokens", [[b"ab", b"c"], [b"a", b"b", b"ab", b"bc"]])
def test_vocabularies_without_single_bytes_have_a_choice_that_they_may_need(tokens):
    vocabulary = Vocabulary([*tokens, b""], frozenset({len(tokens)}))
    drafts, allowed = looked_ahead(text("abc"), vocabulary)
    assert drafts[0] == b"ab"
    assert allowed == [token for token in tokens if b"abc".startswith(token)]


@pytest.mark.parametrize("jump", [False, True])
def test_a_model_that_would_spell_gets_whole_tokens_with_and_without_guesses(jump):
    h = harness(prefers(*b'{"yes:}'), jump_forward=jump)
    h.add("a", [1], constraint=shaped(text('{"yes":"yes"}')))
    h.run()
    assert [VOCABULARY.tokens[token] for token in h.tokens["a"]] == [b'{"', b"yes", b'":', b'"', b"yes", b'"}']
    assert h.stat("steps") == (2 if jump else 6) + h.stat("wasted_rows")
    books_are_closed(h)


@pytest.mark.parametrize("page", [1, 4, 16])
def test_ten_long_keys_take_fewer_steps_and_the_answer_is_the_same(page):
    steps, answers = {}, {}
    for jump in (False, True):
        h = harness(prefers(*b"}17"), page_size=page, jump_forward=jump, max_running=1, context_length=256)
        h.add("a", range(7), constraint=shaped(TEN), max_new_tokens=200)
        h.run()
        steps[jump], answers[jump] = h.stat("steps"), h.tokens["a"]
        books_are_closed(h)
    assert answers[True] == answers[False] == alone(prefers(*b"}17"), range(7), shaped(TEN), 200)
    assert steps[False] >= 1.5 * steps[True]
    assert h.stat("jump_forward_tokens") == steps[False] - steps[True] > 50
    assert 10 <= h.stat("jump_forward_steps") < steps[True]


def test_a_guess_that_the_model_does_not_share_costs_nothing_but_its_place():
    """Of `zye` the first is certain, but `yes` might follow it: the model may write y."""
    h = harness(prefers(*b"y"), page_size=4)
    h.add("a", [1], constraint=shaped([(b"ab", 1, 1), *text("zye"), (b"s", 0, 1), *text("c")]))
    h.run()
    assert h.tokens["a"] == [*b"azyec"]
    steps, kept, computed = (h.stat(n) for n in ("jump_forward_steps", "jump_forward_tokens", "decode_tokens"))
    assert (steps, kept) == (2, 1 if h.overlap else 2)
    assert computed > h.stat("generated_tokens") - 1  # `ye` was computed in vain
    books_are_closed(h)


@pytest.mark.parametrize("page", [1, 4])
def test_guesses_take_no_slot_that_somebody_needs_in_the_step_after(page, monkeypatch):
    h = harness(prefers(*b"{}17"), page_size=page, pool_tokens=64, conservativeness=0.02)
    running, short = h.scheduler._running, 0
    reach = running.reach

    def noted(request, stop):
        nonlocal short
        guesses = stop - request.planned_len
        reach(request, stop)
        left = h.scheduler._pools.allocator.free + h.scheduler._pools.cache.evictable
        assert not guesses or left >= page * len(running.decoding()) or stop <= capacity_before[request.rid]
        short += guesses < min(len(request.constraint.drafts), request.left - 1)

    grow = running.grow
    capacity_before = {}

    def grown(rows):
        failed = grow(rows)
        capacity_before.update({r.rid: r.capacity for r in rows})
        return failed

    monkeypatch.setattr(running, "reach", noted)
    monkeypatch.setattr(running, "grow", grown)
    shape = text("{" + "1" * 20 + "}")
    for i in range(4):
        h.add(f"{i}", range(i, i + 3), constraint=shaped(shape), max_new_tokens=30)
    h.run()
    assert h.tokens == {f"{i}": alone(prefers(*b"{}17"), range(i, i + 3), shaped(shape), 30) for i in range(4)}
    assert short and h.stat("jump_forward_tokens") > 20
    books_are_closed(h)


def test_an_end_token_is_taken_right_behind_guesses():
    h = harness(prefers(*b"xyz", END))
    h.add("a", range(5), constraint=shaped([*text("xyz"), (b"1", 0, 3)]))
    h.run()
    assert (h.tokens["a"], h.finished["a"].matched) == ([*b"xyz", END], END)
    assert (h.stat("jump_forward_steps"), h.stat("jump_forward_tokens")) == (1, 2)
    books_are_closed(h)


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_limit_holds_in_the_middle_of_guesses(limit):
    h = harness(prefers(*b"1{"), page_size=4)
    h.add("a", range(5), constraint=shaped(KEYED), max_new_tokens=limit)
    h.run()
    assert h.tokens["a"] == alone(prefers(*b"1{"), range(5), shaped(KEYED), 99)[:limit]
    assert h.finished["a"].reason == "length"
    books_are_closed(h)


def test_a_stop_string_ends_the_text_in_the_middle_of_guesses():
    def match_stop(params, prompt):
        heard = []
        return lambda token: heard.append(token) or ("yes" if said(heard).endswith("yes") else None)

    h = harness(prefers(byte("1")), match_stop=match_stop)
    h.add("a", range(5), constraint=shaped(KEYED), stop=("yes",))
    h.run()
    assert (said(h.tokens["a"]), h.finished["a"].matched) == ('{"yes', "yes")
    books_are_closed(h)


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_an_abort_while_guesses_are_computed(after):
    h = harness(moody, page_size=4)
    h.add("a", range(9), constraint=shaped(KEYED))
    h.add("b", range(9), constraint=shaped(KEYED))
    for _ in range(after):
        h.step()
    h.abort("a")
    h.run()
    assert h.tokens["b"] == alone(moody, range(9), shaped(KEYED), 99)
    books_are_closed(h)


class Broken(ShapeMatcher):
    """Fails at one thing, where it has seen three tokens or more."""

    fails = ""

    def forced(self):
        return self.fail("forced", super().forced)

    def accept(self, token):
        return self.fail("accept", super().accept, token)

    def allowed(self):
        return self.fail("fill_batch", super().allowed)

    def fail(self, what, otherwise, *args):
        assert what != self.fails or len(self.past) < 4, "out of order"
        return otherwise(*args)


@pytest.mark.parametrize("method", ["forced", "accept", "fill_batch"])
def test_a_backend_that_fails_at_guesses_ends_that_request(method, caplog):
    backend = type("Odd", (Shapes,), {"matcher": type("M", (Broken,), {"fails": method})})()
    h = harness(prefers(byte("1")))
    h.add("a", range(5), constraint=shaped(KEYED, backend=backend, name="odd"))
    h.add("b", range(7), constraint=shaped(KEYED))
    h.run()
    assert (h.finished["a"].code, h.finished["b"].reason) == ("grammar_failed", "stop")
    assert caplog.text.count("grammar plugin 'odd'") == 1
    assert f"grammar plugin 'odd': {method}() failed: AssertionError; the host" in caplog.text
    books_are_closed(h)


def test_nonsense_for_bytes_is_a_fault():
    backend = type("Odd", (Shapes,), {"matcher": type("M", (ShapeMatcher,), {"forced": lambda self: "text"})})()
    h = harness(prefers(byte("1")))
    h.add("a", range(5), constraint=shaped(KEYED, backend=backend))
    h.run()
    assert h.finished["a"].code == "grammar_failed"


def test_bytes_that_are_not_forced_after_all_change_nothing():
    """What a backend says is forced is a guess like any other."""
    backend = type("Odd", (Shapes,), {"matcher": type("M", (ShapeMatcher,), {"forced": lambda self: b'{"a":12'})})()
    h = harness(moody)
    h.add("a", range(5), constraint=shaped(OBJECT, backend=backend))
    h.run()
    assert h.tokens["a"] == alone(moody, range(5), shaped(OBJECT), 99)
    assert h.stat("grammar_faults") == 0
    books_are_closed(h)


SHAPES = [None, OBJECT, QUOTED, KEYED, LETTERS]


@pytest.mark.stepwise  # the loops are among what is varied
@settings(deadline=None, max_examples=30)
@given(
    page=st.sampled_from([1, 4]),
    pool=st.integers(14, 40),
    rows=st.integers(1, 4),
    chunk=st.sampled_from([None, 8]),
    loop=st.sampled_from([{"overlap": False}, {"overlap": True}, {"overlap": True, "lazy": True}]),
    mixed=st.booleans(),
    jump=st.booleans(),
    ratio=st.sampled_from([0.02, 1.0]),
    hot=st.booleans(),
    requests=st.lists(
        st.tuples(st.sampled_from(SHAPES), st.integers(1, 12), st.integers(1, 30), st.integers(0, 4)), max_size=7
    ),
)
def test_answers_are_the_same_whatever_happens(page, pool, rows, chunk, loop, mixed, jump, ratio, hot, requests):
    told = []
    for options in (
        {"page_size": page, "pool_tokens": 4 * pool, "max_running": rows, "chunk_tokens": chunk, **loop}
        | {"mixed_chunk": mixed, "conservativeness": ratio, "jump_forward": jump},
        {"jump_forward": False, "max_running": 1, "overlap": False},
    ):
        h = harness(moody, **options)
        for i, (shape, length, new, steps) in enumerate(requests):
            constraint = None if shape is None else shaped(shape)
            h.add(f"{i}", range(length), max_new_tokens=new, temperature=0.9 * hot, seed=i, constraint=constraint)
            for _ in range(steps):
                h.step()
        h.run()
        books_are_closed(h)
        assert h.stat("grammar_faults") == h.stat("sampling_errors") == h.stat("plugin_faults") == 0
        told.append({rid: (h.tokens[rid], h.finished[rid]) for rid in h.finished})
    assert told[0] == told[1]
