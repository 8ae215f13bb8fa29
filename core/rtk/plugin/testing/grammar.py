"""The contract suite of grammar backends: `CHECKS`, over specs whose answers are known.

Where the answers are few, the mask is compared with them token by token; elsewhere texts that must be possible, texts
that must not be, and what random walks along the mask end in.
"""

import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rtk.plugin.grammar import (
    SPEC_KINDS,
    GrammarBackend,
    Judgement,
    Matcher,
    Reason,
    Spec,
    Vocabulary,
    packed,
    read_row,
    unpacked,
)
from rtk.plugin.testing.check import Check, Factory, named
from rtk.plugin.testing.grammar_examples import END, EXAMPLES, MALFORMED, OTHER, VOCABULARY, Example


def examples(backend: GrammarBackend) -> list[Example]:
    """Those of the kinds that the backend understands."""
    return [example for example in EXAMPLES if example.spec.kind in backend.spec_kinds]


def allowed(backend: GrammarBackend, matcher: Matcher, vocabulary: Vocabulary = VOCABULARY) -> list[int]:
    """The tokens that the mask allows next."""
    mask = np.full((1, vocabulary.words), -1, dtype=np.int32)
    backend.fill_batch([matcher], mask, [0])
    return read_row(mask[0])


def spellings(text: str) -> Iterator[list[int]]:
    """A text as single bytes, and with the longest tokens that there are."""
    data = text.encode()
    yield list(data)
    tokens: list[int] = []
    at = 0
    while at < len(data):
        fitting = [i for i, token in enumerate(VOCABULARY.tokens) if token and data.startswith(token, at)]
        tokens.append(max(fitting, key=lambda i: len(VOCABULARY.tokens[i])))
        at += len(VOCABULARY.tokens[tokens[-1]])
    yield tokens


def _said(tokens: Iterable[int]) -> str:
    return b"".join(VOCABULARY.tokens[token] for token in tokens).decode(errors="backslashreplace")


def kinds_are_known(factory: Factory) -> None:
    """`spec_kinds` names kinds that the host knows, one at least."""
    kinds = factory().spec_kinds
    assert kinds, "no kind of spec is declared"
    assert kinds <= set(SPEC_KINDS), f"unknown kinds {sorted(kinds - set(SPEC_KINDS))}; known: {', '.join(SPEC_KINDS)}"


def specs_are_judged(factory: Factory) -> None:
    """Plain specs are not refused, malformed ones are; a verdict has its reasons, and is the same when asked again."""
    backend = factory()
    plain = [example.spec for example in examples(backend)]
    malformed = [Spec(kind, text) for kind in sorted(backend.spec_kinds) for text in MALFORMED[kind]]
    for spec in [*plain, *malformed]:
        what = f"{spec.kind} {spec.text[:60]}"
        judgement = backend.judge(spec)
        assert isinstance(judgement, Judgement), f"{what}: judge() answered {judgement!r}, which is no Judgement"
        assert judgement == factory().judge(spec), f"{what}: judge() answers differently when asked again"
        has_reasons = bool(judgement.reasons)
        assert has_reasons == (judgement.verdict != "exact"), f"{what}: {judgement.verdict} for {judgement.reasons}"
        for reason in judgement.reasons:
            assert isinstance(reason, Reason), f"{what}: reason {reason!r} is no Reason"
            assert reason.problem and reason.problem.isprintable(), f"{what}: reason {reason.problem!r} is not one line"
        refused = judgement.verdict == "refused"
        reasons = "; ".join(reason.problem for reason in judgement.reasons)
        assert refused == (spec in malformed), f"{what}: {judgement.verdict}: {reasons}"


def what_is_allowed_can_be_said(factory: Factory) -> None:
    """Every text that the spec describes is possible, however it is cut into tokens, unless the backend narrowed it."""
    backend = factory()
    for example in examples(backend):
        if backend.judge(example.spec).verdict == "narrowed":
            continue
        for text in example.accepts:
            for tokens in spellings(text):
                matcher = backend.compile(example.spec, VOCABULARY)
                for i, token in enumerate([*tokens, END]):
                    where = f"{example}: after {_said(tokens[:i])!r}"
                    what = "the end" if token == END else repr(_said([token]))
                    assert token in allowed(backend, matcher), f"{where}, {what} is masked"
                    assert matcher.accept(token), f"{where}, {what} is not accepted"


def what_is_not_allowed_cannot(factory: Factory) -> None:
    """Of a text that the spec does not describe, a token or the end is masked, and not accepted."""
    backend = factory()
    for example in examples(backend):
        for text in example.rejects:
            for tokens in spellings(text):
                matcher = backend.compile(example.spec, VOCABULARY)
                for token in [*tokens, END]:
                    if token not in allowed(backend, matcher):
                        break
                    assert matcher.accept(token), f"{example}: token {token} of {text!r} is allowed, and not accepted"
                else:
                    raise AssertionError(f"{example}: {text!r} can be said")


def masks_are_exact(factory: Factory) -> None:
    """Where the answers are known, just the tokens that lead to one of them are allowed, after every beginning."""
    backend = factory()
    for example in examples(backend):
        if not example.complete or backend.judge(example.spec).verdict == "narrowed":
            continue
        answers = {text.encode() for text in example.accepts}
        for said in sorted({answer[:n] for answer in answers for n in range(len(answer) + 1)}):
            left = [answer[len(said) :] for answer in answers if answer.startswith(said)]
            tokens = enumerate(VOCABULARY.tokens)
            wanted = {i for i, token in tokens if token and any(text.startswith(token) for text in left)}
            wanted |= VOCABULARY.ends if b"" in left else set()
            matcher = backend.compile(example.spec, VOCABULARY)
            for byte in said:
                assert matcher.accept(byte), f"{example}: {bytes([byte])!r} of {said!r} is not accepted"
            got = set(allowed(backend, matcher))
            assert got == wanted, f"{example}: after {said!r}, {_difference(got, wanted)}"


def _difference(got: set[int], wanted: set[int]) -> str:
    more, fewer = (sorted(one - other) for one, other in ((got, wanted), (wanted, got)))
    return f"tokens {more} are allowed that must not be, and tokens {fewer} are not that must"


def every_vocabulary_is_its_own(factory: Factory) -> None:
    """Under other ids, with several ends and several tokens of the same bytes, the same bytes are allowed."""
    backend = factory()
    for example in examples(backend):
        data = _sayable(backend, example).encode()
        matcher, other = (backend.compile(example.spec, vocabulary) for vocabulary in (VOCABULARY, OTHER))
        for at in range(len(data) + 1):
            known = {END if token == END else VOCABULARY.tokens[token] for token in allowed(backend, matcher)}
            wanted = {i for i, token in enumerate(OTHER.tokens) if (END if i in OTHER.ends else token) in known}
            got = set(allowed(backend, other, OTHER))
            assert got == wanted, f"{example}: after {data[:at]!r}, in another vocabulary, {_difference(got, wanted)}"
            if at < len(data):
                token = OTHER.tokens.index(data[at : at + 1])
                assert matcher.accept(data[at]) and other.accept(token), (
                    f"{example}: {data[at : at + 1]!r} is not accepted"
                )


def walks_end_in_answers(factory: Factory) -> None:
    """Whatever is sampled from the mask, what comes out is as the spec says."""
    backend = factory()
    for example in examples(backend):
        compiled = backend.compile(example.spec, VOCABULARY)
        for seed in range(12):
            rng, matcher, tokens = random.Random(seed), compiled.fork(), list[int]()
            while (choices := allowed(backend, matcher)) and len(tokens) < 60:
                token = END if END in choices and rng.random() < 0.3 else rng.choice(choices)
                assert matcher.accept(token), f"{example}: token {token} is allowed, and not accepted"
                if token == END:
                    text = _said(tokens)
                    assert example.holds(text), f"{example}: {text!r} was said"
                    break
                tokens.append(token)
            assert choices, f"{example}: after {_said(tokens)!r} nothing is allowed"


def accept_and_mask_agree(factory: Factory) -> None:
    """A token is accepted iff it is allowed, and one that is not leaves everything as it was; the end is the end."""
    backend = factory()
    for example in examples(backend):
        for matcher in _places(backend, example):
            before = allowed(backend, matcher)
            fork = matcher.fork()
            for token in range(len(VOCABULARY.tokens)):
                accepted = fork.accept(token)
                assert accepted is (token in before), f"{example}: accept({token}) answers {accepted!r}"
                fork = matcher.fork() if accepted else fork
            assert allowed(backend, fork) == before, f"{example}: a refused token moved the matcher"
            if matcher.accept(END):
                after = [token for token in range(len(VOCABULARY.tokens)) if matcher.accept(token)]
                assert not after, f"{example}: tokens {after} are accepted after the end"


def _places(backend: GrammarBackend, example: Example) -> Iterator[Matcher]:
    """Matchers at the beginning, in the middle and at the end of an answer."""
    tokens = next(spellings(_sayable(backend, example)))
    for count in sorted({0, len(tokens) // 2, len(tokens)}):
        matcher = backend.compile(example.spec, VOCABULARY)
        assert all(map(matcher.accept, tokens[:count])), f"{example}: a beginning of {_said(tokens)!r} is not accepted"
        yield matcher


def _sayable(backend: GrammarBackend, example: Example) -> str:
    """The longest known answer that can be said; a narrowed grammar may have dropped some."""
    for text in sorted(example.accepts, key=len, reverse=True):
        if all(map(backend.compile(example.spec, VOCABULARY).accept, [*text.encode(), END])):
            return text
    raise AssertionError(f"{example}: none of {example.accepts} can be said")


def rollback_takes_back(factory: Factory) -> None:
    """After any number of tokens, the end too, so many as `max_rollback` says can be taken back, and said again."""
    backend = factory()
    for example in examples(backend):
        tokens = [*next(spellings(_sayable(backend, example))), END]
        matcher = backend.compile(example.spec, VOCABULARY)
        masks: list[list[int]] = []
        for token in tokens:
            masks.append(allowed(backend, matcher))
            assert matcher.accept(token), f"{example}: {_said(tokens)!r} is not accepted"
        for count in range(1, min(len(tokens), matcher.max_rollback) + 1):
            assert not matcher.accept(255), (
                f"{example}: accepts a byte after the end"
            )  # must leave nothing to take back
            matcher.rollback(count)
            for i, token in enumerate(tokens[len(tokens) - count :], len(tokens) - count):
                assert allowed(backend, matcher) == masks[i], (
                    f"{example}: {count} taken back: another mask at token {i}"
                )
                assert matcher.accept(token), f"{example}: {count} taken back: token {i} is not accepted again"


def forks_are_independent(factory: Factory) -> None:
    """What happens to a fork, or to what it was forked from, does not touch the other."""
    backend = factory()
    for example in examples(backend):
        for matcher in _places(backend, example):
            before = allowed(backend, matcher)
            forks = [matcher.fork() for _ in before[:20]]
            for fork, token in zip(forks, before, strict=False):
                assert fork.accept(token), f"{example}: a fork does not accept what is allowed"
                assert allowed(backend, matcher) == before, f"{example}: what a fork accepts moves the other"
            after = [allowed(backend, fork) if i != END else [] for fork, i in zip(forks, before, strict=False)]
            assert not before or matcher.accept(before[-1])
            for fork, token, wanted in zip(forks, before, after, strict=False):
                same = token == END or allowed(backend, fork) == wanted
                assert same, f"{example}: what a matcher accepts moves its forks"
                if fork.max_rollback:
                    fork.rollback(1)
                    assert allowed(backend, fork) == before, f"{example}: a fork cannot take back"


def rows_are_their_own(factory: Factory) -> None:
    """A batch is written row by row, each to the row that is named, over whatever was there; others stay."""
    backend = factory()
    matchers = [matcher for example in examples(backend) for matcher in _places(backend, example)]
    alone = [allowed(backend, matcher) for matcher in matchers]
    rows = random.Random(1).sample(range(2 * len(matchers)), len(matchers))
    for old in (0, -1, 0x5A5A5A5A):
        mask = np.full((2 * len(matchers), VOCABULARY.words), old, dtype=np.int32)
        backend.fill_batch(matchers, mask, rows)
        for wanted, row in zip(alone, rows, strict=True):
            assert read_row(mask[row]) == wanted, f"row {row} of a batch is not what its matcher allows alone"
        others = np.delete(mask, rows, axis=0)
        assert (others == old).all(), "rows were written that were not named"
    backend.fill_batch([], mask, [])


def forced_bytes_are_forced(factory: Factory) -> None:
    """What `forced` answers is how every answer goes on, and is accepted."""
    backend = factory()
    for example in examples(backend):
        for text in example.accepts:
            data, matcher = text.encode(), backend.compile(example.spec, VOCABULARY)
            for at in range(len(data) + 1):
                forced = matcher.forced()
                assert isinstance(forced, bytes), f"{example}: forced() answers a {type(forced).__name__}"
                fits = data.startswith(forced, at)
                narrowed = backend.judge(example.spec).verdict == "narrowed"
                assert fits or narrowed, (
                    f"{example}: after {data[:at]!r}, {forced!r} is forced, and {text!r} goes on otherwise"
                )
                fork = matcher.fork()
                assert all(map(fork.accept, forced)), f"{example}: after {data[:at]!r}, {forced!r} is not accepted"
                if at == len(data) or not matcher.accept(data[at]):
                    break


def compiling_is_safe_in_threads(factory: Factory) -> None:
    """Several threads compile at once, the same spec too, and each gets a matcher at the start."""
    backend = factory()
    specs = [example.spec for example in examples(backend)]
    wanted = [allowed(factory(), factory().compile(spec, VOCABULARY)) for spec in specs]
    with ThreadPoolExecutor(4) as pool:
        compiled = list(pool.map(lambda spec: backend.compile(spec, VOCABULARY), specs * 4))
    for i, matcher in enumerate(compiled):
        assert allowed(backend, matcher) == wanted[i % len(specs)], f"{specs[i % len(specs)]}: compiled in a thread"
        for token in allowed(backend, matcher)[:1]:
            matcher.accept(token)


def matchers_can_be_sent(factory: Factory) -> None:
    """A matcher survives being pickled without its vocabulary, wherever it stands, and is then independent."""
    backend = factory()
    for example in examples(backend):
        for matcher in _places(backend, example):
            before = allowed(backend, matcher)
            sent = unpacked(packed(matcher), VOCABULARY)
            assert allowed(backend, sent) == before, f"{example}: once pickled, it allows something else"
            for token in before[:1]:
                assert sent.accept(token), f"{example}: once pickled, it does not accept what is allowed"
                assert allowed(backend, matcher) == before, f"{example}: what its copy accepts moves it"


def any_past_is_followed(factory: Factory) -> None:
    """Hypothesis looks for tokens, steps back and forks after which a matcher is not where its past leads."""
    from hypothesis import given
    from hypothesis import strategies as st

    from rtk.plugin.testing.strategies import few

    backend = factory()
    known = examples(backend)
    steps = st.lists(
        st.tuples(st.sampled_from(["accept", "accept", "rollback", "fork"]), st.integers(0, 400)),
        min_size=4,
        max_size=20,
    )

    @few(40)
    @given(st.sampled_from(known), steps)
    def search(example: Example, steps: list[tuple[str, int]]) -> None:
        compiled = backend.compile(example.spec, VOCABULARY)
        matchers: list[tuple[Matcher, list[int]]] = [(compiled.fork(), [])]
        for what, number in steps:
            matcher, past = matchers[number % len(matchers)]
            choices = [] if END in past else allowed(backend, matcher)
            if what == "accept" and choices:
                past.append(choices[number % len(choices)])
                assert matcher.accept(past[-1]), f"token {past[-1]} is allowed, and not accepted"
            elif what == "rollback" and (count := min(number % 4, len(past), matcher.max_rollback)):
                matcher.rollback(count)
                del past[len(past) - count :]
            elif what == "fork":
                matchers.append((matcher.fork(), list(past)))
        for matcher, past in matchers:
            fresh = compiled.fork()
            assert all(map(fresh.accept, past)), f"{past} is not accepted by another matcher"
            if END not in past:
                assert allowed(backend, matcher) == allowed(backend, fresh), f"not where {past} leads"

    search()


CHECKS: tuple[Check, ...] = (
    named(kinds_are_known),
    named(specs_are_judged),
    named(what_is_allowed_can_be_said),
    named(what_is_not_allowed_cannot),
    named(masks_are_exact),
    named(every_vocabulary_is_its_own),
    named(walks_end_in_answers),
    named(accept_and_mask_agree),
    named(rollback_takes_back),
    named(forks_are_independent),
    named(rows_are_their_own),
    named(forced_bytes_are_forced),
    named(compiling_is_safe_in_threads),
    named(matchers_can_be_sent),
    named(any_past_is_followed, quick=False),
)
"""The whole contract."""
