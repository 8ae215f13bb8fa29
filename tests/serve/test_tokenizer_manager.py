"""The client protocol: what goes to the scheduler, what a client gets, and that nothing stays behind."""

import asyncio
import itertools
import logging
import threading
from contextlib import aclosing

import pytest
from fake_scheduler import LENGTH, FakeScheduler, Gate, refusal, saying
from http_harness import assert_idle, manager_over
from tiny_tokenizer import BOS, byte_level, ids_of, sentence_piece

from rtk.errors import ModelError, RequestError
from rtk.schedule.draws import answer_seed
from rtk.schedule.messages import Abort, Finish, NewRequest, Output, TokenLogprobs, Verdict
from rtk.serve.prompts import LONG_TEXT, MESSAGE_COST
from rtk.serve.protocol import Chat, GenerateRequest, ModelFacts, sampling_defaults
from rtk.serve.tokenizer_manager import TokenizerManager

TOKENIZER = byte_level()
A, B, C = ids_of(TOKENIZER, "a", "b", "c")


def with_manager(script, test, *, tokenizer=TOKENIZER, **facts):
    """Run `test(manager, fake)` on a loop; afterwards nothing may be left."""
    with FakeScheduler(script) as fake:
        manager = manager_over(fake, tokenizer, **facts)
        result = asyncio.run(asyncio.wait_for(test(manager, fake), 20))
        assert_idle(manager, fake)
        return result


async def collect(deltas):
    async with aclosing(deltas):
        return [delta async for delta in deltas]


def ask(prompt="x", **given):
    return GenerateRequest(prompt=prompt, **given)


async def refused(manager, *requests, **given):
    with pytest.raises(RequestError) as error:
        await collect(manager.generate_batch(requests, **given))
    return error.value


def test_deltas_carry_text_ids_and_counts():
    async def test(manager, fake):
        return await collect(manager.generate(ask("xyz", rid="mine")))

    first, second, last = with_manager(saying(A, B, C, bundle=2), test)
    assert (first.text, first.token_ids, first.completion_tokens, first.finish) == ("ab", (A, B), 2, None)
    assert (second.text, second.token_ids, second.completion_tokens) == ("c", (C,), 3)
    assert (last.text, last.token_ids, last.completion_tokens, last.finish) == ("", (), 3, LENGTH)
    assert {(d.rid, d.index, d.prompt_tokens, d.cached_tokens) for d in (first, second, last)} == {("mine", 0, 3, 2)}


def test_a_text_with_tokens_that_the_model_lacks_is_refused():
    async def test(manager, fake):
        chat = Chat([{"role": "user", "content": "c"}])
        assert len(await collect(manager.generate(ask("ab")))) == 2
        return [await refused(manager, ask(prompt)) for prompt in ("abc", chat, [A, C])]

    text, chat, ids = with_manager(saying(A), test, vocab_size=C)
    assert str(text) == (
        f"prompt becomes token {C}, which the model lacks: it knows those from 0 to {C - 1}; "
        "leave out the special tokens that it was not made for"
    )
    assert "which the model lacks" in str(chat)
    assert str(ids) == f"prompt[1] = {C}: must be a token id from 0 to {C - 1}"


def test_the_scheduler_gets_validated_parameters_and_the_models_defaults():
    async def test(manager, fake):
        await collect(manager.generate(ask([A, B], sampling={"top_k": 3, "stop": "z"})))
        (new,) = fake.of(NewRequest)
        return new.params

    params = with_manager(saying(A), test, default_sampling={"temperature": 0.5, "top_k": 7})
    assert (params.temperature, params.top_k, params.top_p, params.stop) == (0.5, 3, 1.0, ("z",))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask(""), "prompt"), (ask([]), "prompt"), (ask(Chat([])), "prompt"), (ask([A, -1]), "prompt"),
        (ask([TOKENIZER.size]), "prompt"), (ask("a\ud800"), "prompt"), (ask(sampling={"top_p": 2}), "top_p"),
        (ask(sampling={"stop_token_ids": [10**6]}), "stop_token_ids"), (ask(rid=""), "rid"), (ask(rid="a\n"), "rid"),
        (ask(rid="x" * 201), "rid"),
    ],
)  # fmt: skip
def test_what_fails_validation_is_not_sent_and_leaves_nothing(request_, field):
    async def test(manager, fake):
        error = await refused(manager, request_, rid=request_.rid)
        assert (error.field, error.status) == (field, 400)
        assert not fake.received

    with_manager(saying(A), test)


def test_an_empty_prompt_is_refused_also_where_bos_would_come_before_it():
    async def test(manager, fake):
        errors = [await refused(manager, ask(prompt)) for prompt in ("", [])]
        hint = f"to start from nothing, send the id of the BOS token, [{BOS}]"
        assert {str(e) for e in errors} == {f"prompt is empty: a prompt has at least one token; {hint}"}
        await collect(manager.generate(ask([BOS])))
        await collect(manager.generate(ask("a")))
        return fake.prompts()

    assert with_manager(saying(A), test, tokenizer=byte_level(bos=True)) == [[BOS], [BOS, A]]


def test_a_text_that_encodes_to_nothing_is_empty():
    async def test(manager, fake):
        return await refused(manager, ask(Chat([{"role": "user", "content": ""}])))

    error = with_manager(saying(A), test, tokenizer=byte_level(template="{{ messages[0].content }}"))
    assert error.code == "empty_prompt"


def test_chats_go_through_the_template_without_bos():
    async def test(manager, fake):
        await collect(manager.generate(ask(Chat([{"role": "user", "content": "hi"}]), prompt_name="messages")))
        return TOKENIZER._backend.decode(fake.prompts()[0], skip_special_tokens=False)

    assert with_manager(saying(A), test) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_long_texts_are_encoded_in_a_thread(monkeypatch):
    threads = []
    encode = TOKENIZER.encode

    def noting(text, **options):
        threads.append(threading.current_thread())
        return encode(text, **options)

    monkeypatch.setattr(TOKENIZER, "encode", noting)
    monkeypatch.setattr("rtk.serve.prompts.VERY_LONG_TEXT", 10_000)

    async def test(manager, fake):
        for text in ("x" * LONG_TEXT, "x" * (LONG_TEXT + 1)):
            await collect(manager.generate(ask(text)))
        await collect(manager.generate(ask(Chat([{"role": "user", "content": "x" * 9000}]))))

        await collect(manager.generate(ask(Chat([{"role": "user", "content": ""}] * (LONG_TEXT // MESSAGE_COST + 1)))))
        await collect(manager.generate_batch([ask("x" * 10_001)] * 2))

    with_manager(saying(A), test, context_length=10**7)
    assert [thread is threading.main_thread() for thread in threads] == [True, *[False] * 5]
    assert [thread.name for thread in threads[-2:]] == ["rtk-very-long_0"] * 2


def test_others_have_a_turn_between_the_prompts_of_a_batch(monkeypatch):
    happened = []
    encode = TOKENIZER.encode
    monkeypatch.setattr(TOKENIZER, "encode", lambda *a, **options: happened.append("encode") or encode(*a, **options))

    async def test(manager, fake):
        async def other():
            while True:
                happened.append("turn")
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await collect(manager.generate_batch([ask("x"), ask("y"), ask("z")]))
        task.cancel()

    with_manager(saying(A), test)
    assert [name for name, _ in itertools.groupby(happened)].count("encode") == 3


def test_a_prompt_of_too_many_ids_is_refused_before_a_look_at_them():
    async def test(manager, fake):
        with pytest.raises(
            RequestError, match=r"prompt has 128 tokens; .* exceeds 128, .*; shorten the prompt"
        ) as error:
            await collect(manager.generate(ask(["no id"] * 128)))
        assert (error.value.code, error.value.field) == ("context_length_exceeded", "prompt")
        with pytest.raises(RequestError, match="must be a token id"):
            await collect(manager.generate(ask(["no id"] * 127)))

    with_manager(saying(A), test)


# --- ends -------------------------------------------------------------------------------------------------------


def endless(new):
    while True:
        yield (A,)


def test_closing_the_iterator_aborts():
    async def test(manager, fake):
        deltas = manager.generate(ask())
        assert (await anext(deltas)).text == "a"
        await deltas.aclose()
        assert manager.in_flight == 0
        fake.wait_for(lambda f: f.of(Abort))

    with_manager(endless, test)


def test_cancelling_the_task_aborts():
    gate = Gate()

    async def test(manager, fake):
        task = asyncio.create_task(collect(manager.generate(ask())))
        await asyncio.to_thread(fake.wait_for, lambda f: f.running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(fake.wait_for, lambda f: f.of(Abort))

    with_manager(lambda new: iter([gate]), test)


def test_abort_ends_a_request_with_the_reason_abort():
    async def test(manager, fake):
        deltas = manager.generate(ask(rid="r"))
        await anext(deltas)
        assert manager.abort("r")
        rest = await collect(deltas)
        assert rest[-1].finish == Finish(reason="abort")
        assert not manager.abort("r")

    with_manager(endless, test)


def test_abort_while_the_prompt_is_still_encoded(monkeypatch):
    entered, go = threading.Event(), threading.Event()
    encode = TOKENIZER.encode

    def slow(text, **options):
        entered.set()
        assert go.wait(10)
        return encode(text, **options)

    monkeypatch.setattr(TOKENIZER, "encode", slow)

    async def test(manager, fake):
        task = asyncio.create_task(collect(manager.generate(ask("x" * 9000, rid="r"))))
        await asyncio.to_thread(entered.wait, 10)
        assert manager.abort("r")
        go.set()
        (only,) = await task
        assert only.finish.reason == "abort"
        assert not fake.received

    with_manager(endless, test, context_length=10**5)


def test_a_refusal_comes_before_the_first_delta_with_the_clients_names():
    def script(new):
        yield refusal(new, status=503, code="queue_full", problem="2 wait", where="max_new_tokens")

    async def test(manager, fake):
        return await refused(manager, ask(names={"max_new_tokens": "max_tokens"}))

    error = with_manager(script, test)
    assert (str(error), error.status, error.code, error.field) == ("2 wait", 503, "queue_full", "max_tokens")


def test_an_error_follows_the_deltas_before_it():
    async def test(manager, fake):
        deltas = manager.generate(ask())
        assert (await anext(deltas)).text == "a"
        with pytest.raises(RequestError, match="non-finite logits") as error:
            await anext(deltas)
        assert (error.value.status, error.value.code) == (500, "generation_failed")

    with_manager(saying(A, finish=Finish(reason="error", problem="non-finite logits")), test)


def test_late_answers_to_an_ended_request_reach_no_later_one_of_the_same_id():
    """The scheduler's last word on a request that its client left comes when the id is in use again."""

    async def test(manager, fake):
        deltas = manager.generate(ask(rid="r"))
        await anext(deltas)
        await deltas.aclose()
        again = await collect(manager.generate(ask([B], rid="r")))
        assert [delta.text for delta in again] == ["b", ""]

    with_manager(lambda new: endless(new) if new.rid.startswith("1:") else saying(B)(new), test)


# --- ids --------------------------------------------------------------------------------------------------------


def test_an_id_is_free_again_when_the_last_delta_is_out():
    async def test(manager, fake):
        deltas = manager.generate(ask(rid="r"))
        await anext(deltas)
        second = await refused(manager, ask(rid="r"))
        assert (second.code, second.status) == ("duplicate_rid", 409)
        fake.open(gate)
        assert (await anext(deltas)).finish
        gate.opened = True
        await collect(manager.generate(ask(rid="r")))
        await deltas.aclose()

    gate = Gate()
    with_manager(lambda new: iter([(A,), gate, LENGTH]), test)


def test_ids_inside_a_batch_must_differ_too():
    async def test(manager, fake):
        error = await refused(manager, ask(rid="a"), ask(rid="a"))
        assert error.code == "duplicate_rid"
        assert (await refused(manager, ask(rid="a"), ask(rid="b"), rid="b")).code == "duplicate_rid"

    with_manager(saying(A), test)


# --- batches ----------------------------------------------------------------------------------------------------


def test_a_batch_is_validated_before_any_of_it_is_sent():
    async def test(manager, fake):
        error = await refused(manager, ask("x"), ask([-1], prompt_name="prompt[1]"))
        assert error.field == "prompt[1]"
        assert not fake.received

    with_manager(saying(A), test)


def test_one_refused_request_of_a_batch_aborts_the_others():
    def script(new):
        return iter([refusal(new)]) if new.tokens == pack_of(B) else endless(new)

    async def test(manager, fake):
        error = await refused(manager, ask([A]), ask([B], prompt_name="prompt[1]"), ask([A]))
        assert error.field == "prompt[1]"
        await asyncio.to_thread(fake.wait_for, lambda f: len(f.of(Abort)) == 2)

    with_manager(script, test)


def pack_of(*ids):
    from rtk.cache.key import pack

    return pack(ids)


def test_a_batch_is_aborted_by_its_own_id_or_one_by_one():
    async def test(manager, fake):
        task = asyncio.create_task(collect(manager.generate_batch([ask(), ask()], "b")))
        await asyncio.to_thread(fake.wait_for, lambda f: f.running == 2)
        assert manager.abort("b-1")
        await asyncio.to_thread(fake.wait_for, lambda f: f.running == 1)
        assert manager.abort("b")
        ends = {delta.rid: delta.finish.reason for delta in await task if delta.finish}
        assert ends == {"b-0": "abort", "b-1": "abort"}

    with_manager(endless, test)


def test_deltas_of_a_batch_say_whose_they_are():
    async def test(manager, fake):
        deltas = await collect(manager.generate_batch([ask([A]), ask([B])]))
        return ["".join(d.text for d in deltas if d.index == i) for i in (0, 1)]

    assert with_manager(lambda new: saying(*([C, C] if new.tokens == pack_of(B) else [A]))(new), test) == ["a", "cc"]


# --- questions --------------------------------------------------------------------------------------------------


def test_stats_and_flush():
    gate = Gate()

    async def test(manager, fake):
        assert await manager.flush() == 7
        assert await manager.stats() == {"running": 0}
        task = asyncio.create_task(collect(manager.generate(ask())))
        await asyncio.to_thread(fake.wait_for, lambda f: f.running)
        with pytest.raises(RequestError, match="the cache stays as it is: 1 requests") as busy:
            await manager.flush()
        assert (busy.value.status, busy.value.code) == (409, "cache_busy")
        fake.open(gate)
        await task

    with_manager(lambda new: iter([gate, LENGTH]), test)


def test_nobody_waits_for_an_engine_that_has_stopped():
    async def test(manager, fake):
        fake.healthy = False
        error = await refused(manager, ask())
        assert (error.status, error.code) == (503, "engine_stopped")
        with pytest.raises(RequestError, match="stopped"):
            await manager.stats()

    with_manager(saying(A), test)


def test_an_engine_that_stops_while_a_prompt_is_encoded():
    health = iter([True, False, False])

    async def test(manager, fake):
        manager._healthy = lambda: next(health)
        assert (await refused(manager, ask())).code == "engine_stopped"

    with_manager(lambda new: iter([Gate()]), test)


def test_messages_before_the_first_loop_and_after_the_last_are_dropped():
    with FakeScheduler(saying(A)) as fake:
        manager = manager_over(fake, TOKENIZER)
        manager.deliver([])
        asyncio.run(collect(manager.generate(ask())))
        manager.deliver([])


def test_a_manager_belongs_to_one_loop():
    with FakeScheduler(saying(A)) as fake:
        manager = manager_over(fake, TOKENIZER)
        asyncio.run(collect(manager.generate(ask())))
        with pytest.raises(RuntimeError, match="event loop"):
            asyncio.run(collect(manager.generate(ask())))


# --- the model's defaults ---------------------------------------------------------------------------------------


def test_sampling_defaults_of_a_generation_config(caplog):
    given = {"temperature": 0.6, "top_p": None, "top_k": 20, "do_sample": True, "repetition_penalty": 1.1, "min_p": 0}
    with caplog.at_level(logging.WARNING):
        assert sampling_defaults({**given, "typical_p": 0.9, "num_beams": 1}) == {
            "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "min_p": 0
        }  # fmt: skip
    assert caplog.messages == ["generation_config.json: not supported yet, so without effect: typical_p"]
    assert "min_p" not in caplog.text


def test_impossible_defaults_are_the_models_fault():
    facts = ModelFacts(served_name="m", vocab_size=5, context_length=8, default_sampling={"top_p": 3})
    with pytest.raises(ModelError, match=r"generation_config.json cannot be used: top_p = 3"):
        TokenizerManager(sentence_piece(), print, facts)


# Several answers


def numbered(new):
    """Each answer says its own length in tokens: the first one, the second two."""
    length = int(new.name.rpartition("-")[2]) + 1 if "-" in new.name else 1
    yield from [(A,)] * length
    yield LENGTH


def test_n_asks_for_several_answers_to_one_prompt_and_encodes_it_once():
    async def test(manager, fake):
        request = ask("xy", rid="r", sampling={"n": 3, "seed": 5, "prompt_logprobs": 2})
        return await collect(manager.generate(request)), fake.of(NewRequest)

    deltas, (first, second, third) = with_manager(numbered, test)
    assert (first.name, second.name, third.name) == ("r", "r-1", "r-2")
    assert first.leader is None
    assert second.leader == third.leader == first.rid
    assert first.tokens is second.tokens is third.tokens
    assert [new.params.seed for new in (first, second, third)] == [5, answer_seed(5, 1), answer_seed(5, 2)]
    assert [new.params.prompt_logprobs for new in (first, second, third)] == [2, None, None]
    assert [new.params.n for new in (first, second, third)] == [3, 1, 1]
    said = {i: [d for d in deltas if d.index == i] for i in range(3)}
    assert {i: (own[0].rid, own[-1].completion_tokens, own[-1].finish) for i, own in said.items()} == {
        0: ("r", 1, LENGTH), 1: ("r-1", 2, LENGTH), 2: ("r-2", 3, LENGTH)
    }  # fmt: skip


def test_answers_are_counted_over_the_requests_of_a_batch():
    async def test(manager, fake):
        requests = [ask("x", sampling={"n": 2}), ask("y", sampling={"n": 2})]
        return await collect(manager.generate_batch(requests, "b")), fake.of(NewRequest)

    deltas, news = with_manager(saying(A), test)
    assert {(d.index, d.rid) for d in deltas} == {(0, "b-0"), (1, "b-0-1"), (2, "b-1"), (3, "b-1-1")}
    assert [new.leader for new in news] == [None, news[0].rid, None, news[2].rid]
    assert {new.params.seed for new in news} == {None}


@pytest.mark.parametrize(("name", "ended"), [("b-0", {0, 1}), ("b", {0, 1, 2, 3}), ("b-0-1", {1})])
def test_an_abort_reaches_all_answers_of_a_request(name, ended):
    gate = Gate()

    def script(new):
        yield (A,)
        yield gate
        yield LENGTH

    async def test(manager, fake):
        requests = [ask("x", sampling={"n": 2}), ask("y", sampling={"n": 2})]
        ends = {}
        async with aclosing(manager.generate_batch(requests, "b")) as deltas:
            async for delta in deltas:
                if delta.finish is None and delta.index == 3:
                    assert manager.abort(name)
                    fake.open(gate)
                elif delta.finish is not None:
                    ends[delta.index] = delta.finish.reason
        return ends

    ends = with_manager(script, test)
    assert {i for i, reason in ends.items() if reason == "abort"} == ended


def test_the_ids_of_answers_are_taken_like_others():
    async def test(manager, fake):
        requests = [ask("x", rid="a", sampling={"n": 2}), ask("y", rid="a-1")]
        error = await refused(manager, *requests, rid="b")
        assert (error.code, error.field) == ("duplicate_rid", "rid")
        assert not fake.received

    with_manager(saying(A), test)


def test_a_refused_first_answer_refuses_all_and_leaves_nothing():
    async def test(manager, fake):
        return await refused(manager, ask("x", sampling={"n": 4}))

    error = with_manager(lambda new: iter([refusal(new, status=503, code="queue_full")]), test)
    assert (error.code, error.status) == ("queue_full", 503)


def test_log_probabilities_reach_the_client():
    entry, of_prompt = TokenLogprobs(A, -0.5, ((B, -0.25), (A, -0.5))), TokenLogprobs(B, None)

    def script(new):
        yield Verdict(rid=new.rid, accepted=True)
        yield Output(rid=new.rid, tokens=(A,), logprobs=(entry,), prompt_logprobs=(of_prompt,))
        yield Output(rid=new.rid, tokens=(), finish=LENGTH)

    async def test(manager, fake):
        return await collect(manager.generate(ask("b", sampling={"logprobs": 2, "prompt_logprobs": 0})))

    first, last = with_manager(script, test)
    assert (first.logprobs, first.prompt_logprobs) == ((entry,), (of_prompt,))
    assert (last.logprobs, last.prompt_logprobs) == ((), ())


def test_scoring_that_begins_behind_the_prompt_is_refused_in_the_clients_words():
    async def test(manager, fake):
        given = {"prompt_logprobs": 1, "prompt_logprobs_start": 3}
        await collect(manager.generate(ask("xyz", sampling=given)))
        names = {"prompt_logprobs_start": "logprob_start_len"}
        error = await refused(manager, ask("xy", sampling=given, names=names))
        assert str(error) == "logprob_start_len = 3: must be at most 2, the tokens of the prompt"
        assert error.field == "logprob_start_len"

    with_manager(saying(A), test)
