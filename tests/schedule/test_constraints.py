"""Answers that have a grammar, over a scripted model and a toy backend."""

import threading

import numpy as np
import pytest
from shapes import DIGITS, OBJECT, QUOTED, SPECIAL, Constrained, Shapes, alone, byte, moody, prefers, said, shaped, text

from rtk.plugin.grammar import Vocabulary, write_row
from rtk.plugin.testing.grammar_examples import END, VOCABULARY

ENDS = frozenset({END})


def harness(script, **settings):
    return Constrained(**{"script": script, "end_tokens": ENDS, "pool_tokens": 512, **settings})


def books_are_closed(h):
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("invariant_violations") == h.stat("commit_failures") == h.stat("steps_failed") == 0


# --- what a model wants, and gets ------------------------------------------------------------------------------------


def test_an_answer_follows_its_grammar_and_ends_right_after_the_value():
    """C36: no end token is sampled, none is sent."""
    h = harness(prefers(byte("9")))
    h.add("a", [1], constraint=shaped(OBJECT))
    h.run()
    assert said(h.tokens["a"]) == '{"a":999}'
    assert (h.finished["a"].reason, h.finished["a"].matched) == ("stop", None)
    assert END not in h.tokens["a"]
    books_are_closed(h)


def test_a_model_that_always_prefers_white_space_gets_what_is_bounded():
    """C33."""
    h = harness(prefers(byte(" "), byte("\n")))
    h.add("a", [1], constraint=shaped(OBJECT))
    h.run()
    assert said(h.tokens["a"]) == '{  "a"  :  0  }'
    assert h.finished["a"].reason == "stop"


def test_no_token_ends_the_text_before_the_grammar_is_complete():
    """C34: a model with two end tokens, and a stop token of the client's that has text."""
    vocabulary = Vocabulary(VOCABULARY.tokens, frozenset({END, SPECIAL}))
    h = harness(prefers(SPECIAL, byte("x"), END, byte("y")), end_tokens=vocabulary.ends)
    h.add("a", [1], constraint=shaped(QUOTED, vocabulary=vocabulary), stop_token_ids=(byte("x"),))
    h.run()
    assert said(h.tokens["a"]) == '"yyyyy"'
    assert h.finished["a"].reason == "stop"


def test_stop_tokens_are_allowed_where_the_grammar_is_complete_though_it_could_go_on():
    h = harness(prefers(byte("x"), byte("1")))
    h.add("a", [1], constraint=shaped(DIGITS), stop_token_ids=(byte("x"),))
    h.add("b", [2], constraint=shaped(DIGITS), stop_token_ids=(byte("1"),))
    h.add("c", [3], constraint=shaped(DIGITS))
    h.run()
    assert (said(h.tokens["a"]), h.finished["a"].matched) == ("1x", byte("x"))
    assert (said(h.tokens["b"]), h.finished["b"].matched) == ("01", byte("1"))  # not as the first digit
    assert (said(h.tokens["c"]), h.finished["c"].matched) == ("111", None)


def test_an_end_token_is_taken_where_the_model_wants_it_and_may_have_it():
    h = harness(prefers(END, byte("7")))
    h.add("a", [1], constraint=shaped(DIGITS))
    h.add("b", [2], constraint=shaped(DIGITS), ignore_eos=True)
    h.run()
    assert (h.tokens["a"], h.finished["a"].matched) == ([byte("7"), END], END)
    assert (said(h.tokens["b"]), h.finished["b"].matched) == ("777", None)


def test_special_tokens_never_come_and_a_row_that_comes_late_is_dropped():
    """C37."""
    h = harness(prefers(SPECIAL, byte("5")))
    h.add("a", [1], constraint=shaped(QUOTED))
    h.add("b", [2], constraint=shaped(DIGITS))
    h.run()
    assert (said(h.tokens["a"]), said(h.tokens["b"])) == ('""', "555")
    assert h.stat("wasted_rows") == (2 if h.overlap else 0)
    books_are_closed(h)


@pytest.mark.parametrize(("limit", "reason", "answer"), [(5, "length", '{"a":'), (7, "stop", '{"a":0}')])
def test_an_answer_that_is_cut_says_so(limit, reason, answer):
    """C47."""
    h = harness(prefers(byte("{"), byte('"'), byte("a"), byte(":"), byte("}")))
    h.add("a", [1], constraint=shaped(OBJECT), max_new_tokens=limit)
    h.run()
    assert (said(h.tokens["a"]), h.finished["a"].reason) == (answer, reason)


def test_a_complete_answer_ends_before_the_minimum_that_was_asked_for():
    h = harness(prefers(END, byte("x"), byte("7")))
    h.add("a", [1], constraint=shaped(DIGITS), min_new_tokens=2)
    h.add("b", [1], constraint=shaped(DIGITS), min_new_tokens=9)
    h.run()
    assert (h.tokens["a"], h.finished["a"].matched) == ([*b"77", END], END)
    assert (h.tokens["b"], h.finished["b"].reason) == ([*b"777"], "stop")


def test_a_grammar_of_nothing_ends_without_a_token():
    h = harness(prefers(END))
    h.add("a", [1], constraint=shaped([]))
    h.run()
    assert ("a" in h.tokens and h.tokens["a"]) == []
    assert h.finished["a"].reason == "stop"
    books_are_closed(h)


# --- thinking --------------------------------------------------------------------------------------------------------

BYTES = Vocabulary(
    [*(bytes([i]) for i in range(256)), b"</", b"think>", b"think>1", b"x</think>", b"</think>2", b"", b"</think>"],
    frozenset({261}),
)
SPLIT, TAIL, LONG, JOINED, BEHIND, STOP, WHOLE = range(256, 263)


def thinks(*order):
    """A model that says this, one after the other, where it may."""

    def script(history):
        logits = np.zeros(len(BYTES.tokens), np.float32)
        for rank, token in enumerate(order[len(history) - 1 :]):
            logits[token] = max(logits[token], 100.0 - rank)
        return logits

    return script


@pytest.mark.parametrize(
    "way",
    [
        [*b"</think>"],
        [SPLIT, TAIL],
        [*b"hm<", JOINED],
        [WHOLE],
        [*b"<</think", byte(">")],
        [*b"</thi</thin", *b"</think>"],
        [byte("x"), *b"</think>"],
    ],
)
def test_thinking_is_free_and_the_answer_is_not(way):
    """C38: the marker may be split over tokens, or begin inside one."""
    h = harness(thinks(*way, byte("z"), byte("8"), byte("8"), byte("8")), end_tokens=BYTES.ends)
    h.add("a", [1], constraint=shaped(DIGITS, vocabulary=BYTES, after=b"</think>"), max_new_tokens=30)
    h.run()
    assert h.tokens["a"] == [*way, *b"888"]
    assert h.finished["a"].reason == "stop"


@pytest.mark.parametrize("way", [[SPLIT, LONG], [BEHIND], [STOP], [*b"</t", STOP], [SPLIT, *b"thin", STOP]])
def test_a_token_that_goes_on_behind_the_marker_or_ends_the_text_does_not_come_while_it_thinks(way):
    h = harness(thinks(*way), end_tokens=BYTES.ends)
    h.add("a", [1], constraint=shaped(DIGITS, vocabulary=BYTES, after=b"</think>"), max_new_tokens=len(way))
    h.run()
    assert h.tokens["a"][:-1] == way[:-1]
    assert way[-1] not in h.tokens["a"][-1:]
    assert h.finished["a"].reason == "length"  # thinking was cut: nothing of the answer is there


# --- others in the batch, and everything that happens to requests ----------------------------------------------------


LETTERS = [*text('"'), (b"aeioy", 12, 20), *text('"')]
LIMIT = 24


def crowd(h):
    """Requests with grammars and without; what each says when it is alone."""
    wanted = {}
    for i, pieces in enumerate([LETTERS, OBJECT, LETTERS, None, LETTERS, QUOTED, None, LETTERS]):
        prompt = [*range(40 + i, 44 + i + 8 * (i == 7))]
        if pieces is None:
            h.add(f"{i}", prompt, max_new_tokens=LIMIT, ignore_eos=True)
            history = list(prompt)
            while len(history) < len(prompt) + LIMIT:
                history.append(int(moody(history).argmax()))
            wanted[f"{i}"] = history[len(prompt) :]
        else:
            h.add(f"{i}", prompt, max_new_tokens=LIMIT, constraint=shaped(pieces))
            wanted[f"{i}"] = alone(moody, prompt, shaped(pieces), LIMIT)
    return wanted


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("mixed", [False, True])
def test_grammars_go_through_chunks_mixed_steps_and_retractions(page, mixed):
    h = harness(
        moody, page_size=page, pool_tokens=56, chunk_tokens=8, mixed_chunk=mixed, conservativeness=0.02, max_running=6
    )
    wanted = crowd(h)
    h.run()
    assert h.tokens == wanted
    assert h.stat("retractions") > 0 and h.stat("middle_chunks") > 0
    assert h.stat("grammar_faults") == h.stat("sampling_errors") == 0
    books_are_closed(h)


def test_a_seed_gives_the_same_answer_however_steps_are_made():
    said_by = []
    for settings in ({}, {"pool_tokens": 64, "conservativeness": 0.02}):
        h = harness(moody, **settings)
        for i in range(4):
            h.add(f"{i}", range(20), temperature=1.0, seed=i, constraint=shaped(OBJECT))
        h.run()
        said_by.append(h.tokens)
    assert said_by[0] == said_by[1]
    assert len({said(tokens) for tokens in said_by[0].values()}) > 1


def test_an_abort_in_the_middle_leaves_the_others_alone():
    h = harness(moody)
    wanted = crowd(h)
    h.step()
    h.step()
    h.abort("0")
    h.run()
    assert {rid: tokens for rid, tokens in h.tokens.items() if rid != "0"} == {
        rid: tokens for rid, tokens in wanted.items() if rid != "0"
    }
    books_are_closed(h)


@pytest.mark.stepwise
def test_the_forward_is_launched_early_and_only_sampling_waits_for_the_token_before():
    h = harness(moody, overlap=True, lazy=True)
    events = []
    launch = h.executor.launch

    def noted(plan):
        flight, step = launch(plan), plan.step
        events.append(f"launch {step}")
        sample, result = flight.sample, flight.result
        flight.sample = lambda inputs: (events.append(f"sample {step}"), sample(inputs))
        flight.result = lambda: (events.append(f"result {step}"), result())[1]
        return flight

    h.executor.launch = noted
    h.add("a", [1], constraint=shaped(OBJECT), max_new_tokens=3)
    h.run()
    assert events == [
        *("launch 1", "sample 1", "launch 2", "result 1", "sample 2", "launch 3", "result 2", "sample 3", "result 3")
    ]


# --- dead ends, and backends that fail -------------------------------------------------------------------------------


class Odd(Shapes):
    """A backend that does something else for answers that begin with a q."""

    def __init__(self, **methods):
        self.matcher = type("OddMatcher", (Shapes.matcher,), {k: v for k, v in methods.items() if k != "fill_batch"})
        self.fill = methods.get("fill_batch")

    def fill_batch(self, matchers, mask, rows):
        for matcher, row in zip(matchers, rows, strict=True):
            if self.fill and odd(matcher):
                self.fill(mask[row])
            else:
                super().fill_batch([matcher], mask, [row])


def odd(matcher):
    return matcher.pieces[0][0] == b"q" and len(matcher.past) == 3


def dead(row):
    row[:] = 0


def raises(*args):
    raise RuntimeError("out of order")


def everything(row):
    row[:] = -1


def refuses(matcher, token):
    return False if odd(matcher) else Shapes.matcher.accept(matcher, token)


def breaks(matcher, token):
    return raises() if odd(matcher) else Shapes.matcher.accept(matcher, token)


FAULTS = {
    "the mask raises": ({"fill_batch": raises}, "fill_batch() failed: RuntimeError"),
    "the mask allows anything": ({"fill_batch": everything}, "accept() refused token 100, which its mask allows"),
    "accept raises": ({"accept": breaks}, "accept() failed: RuntimeError"),
    "accept refuses": ({"accept": refuses}, "accept() refused token 101, which its mask allows"),
}
ODD = [*text("qu"), (b"e", 1, 9)]


@pytest.mark.parametrize("fault", FAULTS)
def test_who_is_failed_by_its_backend_ends_with_an_error_and_nobody_else(fault, caplog):
    methods, problem = FAULTS[fault]
    backend = Odd(**methods)
    h = harness(prefers(byte("d"), byte("e")), jump_forward=False)
    h.add("a", [1], constraint=shaped(OBJECT, backend=backend, name="odd"))
    h.add("q", [2], constraint=shaped(ODD, backend=backend, name="odd"))
    h.add("b", [3], max_new_tokens=9)
    h.add("c", [4], constraint=shaped(QUOTED, backend=backend, name="odd"))
    h.run()
    finish = h.finished["q"]
    assert (finish.reason, finish.code, finish.status) == ("error", "grammar_failed", 500)
    assert finish.problem == "the grammar backend 'odd' failed on this answer"
    assert h.tokens.get("q") == [*b"qu"]
    assert [said(h.tokens[rid]) for rid in "abc"] == ['{"a":000}', "d" * 9, '"ddddd"']
    assert h.stat("grammar_faults") == h.stat("plugin_faults") == 1
    assert h.scheduler.health.degraded
    logged = [record.getMessage() for record in caplog.records if "odd" in record.getMessage()]
    assert logged == [f"grammar plugin 'odd': {problem}; the host uses an error for the request instead"]
    books_are_closed(h)


def test_a_dead_end_is_an_error_of_its_own():
    h = harness(prefers(byte("e")))
    backend = Odd(fill_batch=dead)
    h.add("q", [2], constraint=shaped(ODD, backend=backend))
    h.add("c", [4], constraint=shaped(QUOTED, backend=backend))
    h.run()
    assert (h.finished["q"].reason, h.finished["q"].code) == ("error", "grammar_dead_end")
    assert (said(h.tokens["q"]), said(h.tokens["c"])) == ("qu", '"eeeee"')
    assert (h.stat("grammar_dead_ends"), h.stat("grammar_faults"), h.stat("plugin_faults")) == (1, 0, 0)
    books_are_closed(h)


def test_an_answer_that_takes_too_long_to_follow_ends_and_the_others_go_on(monkeypatch):
    """In a batch nobody knows who it was: each is asked once more, alone."""
    spent = [0.0]

    def slowly(row):
        spent[0] += 1.5
        write_row(row, [byte("e")])

    monkeypatch.setattr("rtk.schedule.constraints.thread_time", lambda: spent[0])
    h = harness(prefers(byte("e")), jump_forward=False)
    backend = Odd(fill_batch=slowly)
    h.add("q", [2], constraint=shaped(ODD, backend=backend))
    h.add("c", [4], constraint=shaped(QUOTED, backend=backend))
    h.run()
    finish = h.finished["q"]
    assert (finish.reason, finish.code, finish.status) == ("error", "grammar_too_slow", 400)
    assert finish.problem.startswith("what the grammar allows here took more than 1 s to find out")
    assert (said(h.tokens["q"]), said(h.tokens["c"])) == ("qu", '"eeeee"')
    assert (h.stat("grammar_slow"), h.stat("grammar_faults"), h.stat("plugin_faults")) == (1, 0, 0)
    books_are_closed(h)


def test_a_client_whose_stops_bar_the_only_way_on_is_told_so():
    h = harness(prefers(byte("x")))
    h.add("a", [1], constraint=shaped(OBJECT), stop_token_ids=(byte(":"),))
    h.run()
    finish = h.finished["a"]
    assert (finish.reason, finish.code, finish.status) == ("error", "grammar_dead_end", 400)
    assert finish.problem == (
        "no token can follow here under the grammar but those of stop_token_ids; leave some of them out"
    )
    books_are_closed(h)


def test_a_backend_that_fails_on_many_at_once_and_on_nobody_alone_is_asked_one_by_one(caplog):
    class Lonely(Shapes):
        def fill_batch(self, matchers, mask, rows):
            assert len(matchers) == 1, "too many"
            super().fill_batch(matchers, mask, rows)

    h = harness(prefers(byte("e")))
    for rid in "ab":
        h.add(rid, [1], constraint=shaped(QUOTED, backend=Lonely()))
    backend = Lonely()
    for rid in "cd":
        h.add(rid, [1], constraint=shaped(QUOTED, backend=backend))
    h.run()
    assert {said(tokens) for tokens in h.tokens.values()} == {'"eeeee"'}
    assert h.scheduler.health.instead == {"grammar plugin 'shapes'": "one answer after the other"}
    assert h.stat("grammar_faults") == 0 and h.stat("plugin_faults") > 0


@pytest.mark.parametrize("method", ["fill_batch", "accept"])
def test_a_backend_that_does_not_return_is_interrupted(method, monkeypatch, caplog):
    """The watchdog's strike is made by the loop itself, so that nothing depends on time."""
    h = harness(prefers(byte("e")), jump_forward=False)
    watchdog = h.scheduler.health.watchdog
    monkeypatch.setattr(watchdog, "_thread", threading.get_ident())

    def turns(*args):
        if args and not hasattr(args[0], "dtype") and not odd(args[0]):
            return Shapes.matcher.accept(*args)
        watchdog._interrupt(watchdog.call)
        while True:
            pass

    backend = Odd(**{method: turns})
    h.add("q", [2], constraint=shaped(ODD, backend=backend, name="odd"))
    h.add("c", [4], constraint=shaped(QUOTED, backend=backend))
    h.run()
    assert h.finished["q"].code == "grammar_failed"
    assert said(h.tokens["c"]) == '"eeeee"'
    assert f"{method}() did not return within 5 s" in caplog.text
    assert h.stat("grammar_faults") == 1
    books_are_closed(h)


def test_requests_without_a_grammar_carry_no_mask():
    h = harness(moody)
    masks = []
    launch = h.executor.launch

    def noted(plan):
        flight = launch(plan)
        sample = flight.sample
        flight.sample = lambda inputs: (masks.append(inputs.mask), sample(inputs))
        return flight

    h.executor.launch = noted
    h.add("a", [1], max_new_tokens=3, ignore_eos=True)
    h.run()
    assert masks == [None] * 3
    assert h.scheduler._constraints._bits is None
