"""What one tenant, or one request, may take: tokens by the minute, requests at a time, lengths of prompt and answer."""

import asyncio

import pytest
from fake_scheduler import LENGTH, Gate, refusal, saying
from http_harness import InProcess, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.config.load import config_from
from rtk.errors import RequestError
from rtk.schedule.messages import NewRequest
from rtk.serve.http.rights import ApiKeys
from rtk.serve.limits import UNLIMITED, Account, Accounts, Ceilings

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
GENERATING = [
    ("/v1/completions", {"prompt": "xy"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "xy"}]}),
    ("/generate", {"text": "xy"}),
    ("/v1/responses", {"input": "xy"}),
]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def refused(account, requests=1):
    with pytest.raises(RequestError) as caught:
        account.take(requests)
    account.give_back(requests)
    return caught.value


# --- accounts ---------------------------------------------------------------------------------------------------


def test_tokens_are_paid_for_by_the_minute():
    clock = Clock()
    account = Account(tokens_per_minute=60, clock=clock)
    account.take(1)
    account.spend(59)
    account.take(1)  # one is left
    account.spend(30)
    error = refused(account)
    assert (error.status, error.code, error.retry_after_s) == (429, "rate_limit_exceeded", 30)
    assert str(error) == "you have used up your 60 tokens per minute; try again in 30 s"
    clock.now += 29.5
    assert refused(account).retry_after_s == 1
    clock.now += 0.5
    account.take(1)
    clock.now += 3600  # nothing is saved up beyond a minute's
    account.spend(60)
    assert refused(account).retry_after_s == 1


def test_requests_are_counted_while_they_wait_or_run():
    account = Account(max_requests=3)
    account.take(2)
    error = refused(account, 2)
    assert (error.status, error.code, error.retry_after_s) == (429, "rate_limit_exceeded", 1)
    account.take(1)
    refused(account)
    account.give_back(2)
    account.take(2)
    assert account.requests == 3


def test_what_never_fits_is_not_told_to_come_back():
    error = refused(Account(max_requests=3), 4)
    more = "send fewer prompts in one request, or a lower n"
    assert (error.status, str(error)) == (400, f"asks for 4 answers; you may have 3 at a time: {more}")


def test_tenants_have_limits_of_their_own():
    bounds = {
        "serve.tenants.max_requests": 2,
        "serve.tenants.tokens_per_minute": 10,
        "serve.tenants.limits": {"acme": {"max_requests": 5}, "free": {"max_requests": None}},
    }
    section = config_from(bounds).serve.tenants
    accounts = Accounts(section)
    assert accounts.of("acme") is accounts.of("acme") is not accounts.of("beta")
    accounts.of("acme").take(5)
    accounts.of("free").take(1000)
    accounts.of("").take(2)
    refused(accounts.of(""))
    accounts.of("beta").take(2)
    for tenant in ("acme", "beta", "free"):
        accounts.of(tenant).give_back(1)
        accounts.of(tenant).spend(10)
        assert refused(accounts.of(tenant)).code == "rate_limit_exceeded"
    assert Accounts().of("acme") is UNLIMITED


# --- over HTTP --------------------------------------------------------------------------------------------------


def limited(script, **bounds):
    section = config_from({f"serve.tenants.{name}": value for name, value in bounds.items()}).serve.tenants
    keys = ApiKeys([("acme", "a"), ("beta", "b")])
    return InProcess(script, tokenizer=TOKENIZER, settings={"keys": keys, "accounts": Accounts(section)})


async def ask(http, path, body, key):
    return await http.request("POST", path, body, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), GENERATING)
def test_a_tenant_with_no_tokens_left_is_refused_and_others_are_not(path, body, stream):
    with limited(saying(A), tokens_per_minute=3) as http:

        async def test():
            for key in ("a", "b"):
                assert (await ask(http, path, {**body, "stream": stream}, key)).status_code == 200
                answer = await ask(http, path, {**body, "stream": stream}, key)
                assert error_of(answer, 429)["code"] == "rate_limit_exceeded"
                assert 1 <= int(answer.headers["retry-after"]) <= 3600
            assert len(http.fake.of(NewRequest)) == 2

        http.run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_a_tenant_has_so_many_requests_at_a_time(stream):
    gate = Gate()
    with limited(lambda new: iter([gate, LENGTH]), max_requests=2) as http:

        async def test():
            first = asyncio.create_task(ask(http, "/generate", {"text": ["x", "y"], "stream": stream}, "a"))
            await asyncio.to_thread(http.fake.wait_for, lambda f: f.running == 2)
            answer = await ask(http, "/v1/completions", {"prompt": "z", "stream": stream}, "a")
            assert error_of(answer, 429)["code"] == "rate_limit_exceeded"
            assert answer.headers["retry-after"] == "1"
            other = asyncio.create_task(ask(http, "/v1/completions", {"prompt": "z"}, "b"))
            await asyncio.to_thread(http.fake.wait_for, lambda f: f.running == 3)
            http.fake.open(gate)
            assert (await first).status_code == (await other).status_code == 200
            assert (await ask(http, "/v1/completions", {"prompt": "z"}, "a")).status_code == 200

        http.run(test())


def test_requests_that_are_refused_or_fail_give_their_places_back():
    def script(new):
        yield refusal(new) if len(new.tokens) > 4 else LENGTH

    with limited(script, max_requests=2) as http:

        async def test():
            for _ in range(5):
                error_of(await ask(http, "/v1/completions", {"prompt": ["xy", "xy"]}, "a"))
                error_of(await ask(http, "/v1/completions", {"prompt": ["x", ""]}, "a"))
                error_of(await ask(http, "/v1/completions", {"prompt": "x", "temperature": -1}, "a"))
            assert (await ask(http, "/v1/completions", {"prompt": ["x", "x"]}, "a")).status_code == 200
            assert http.manager.in_flight == 0

        http.run(test())


def test_a_prompt_that_the_engine_has_no_place_for_costs_nothing():
    with limited(lambda new: iter([refusal(new, status=503, code="queue_full")]), tokens_per_minute=1) as http:

        async def test():
            for _ in range(3):
                answer = await ask(http, "/v1/completions", {"prompt": "xyz"}, "a")
                assert error_of(answer, 503)["code"] == "queue_full"
            assert http.manager.in_flight == 0

        http.run(test())


# --- lengths ----------------------------------------------------------------------------------------------------

CEILINGS = {"ceilings": Ceilings(prompt_tokens=3, new_tokens=5)}


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_have_a_longest(stream):
    with InProcess(saying(A), tokenizer=TOKENIZER, settings=CEILINGS) as http:
        assert http.complete(prompt=[A] * 3, stream=stream).status_code == 200
        error = error_of(http.complete(prompt=[[A], [A] * 4], stream=stream))
        assert (error["code"], error["param"]) == ("prompt_too_long", "prompt[1]")
        assert error["message"] == "prompt[1]: 4 tokens; this server takes prompts of 3 at most"
        assert error_of(http.generate(input_ids=[A] * 4, stream=stream))["param"] == "input_ids"
        assert error_of(http.chat(stream=stream))["param"] == "messages"


def test_answers_have_a_longest():
    with InProcess(saying(A), tokenizer=TOKENIZER, settings=CEILINGS) as http:
        for given, got in (({}, 5), ({"max_tokens": 5}, 5), ({"max_tokens": 1}, 1), ({"max_tokens": None}, 5)):
            assert http.complete(prompt=[A], **given).status_code == 200
            assert http.fake.of(NewRequest)[-1].params.max_new_tokens == got
        for name, value in (("max_tokens", 6), ("max_completion_tokens", 2**31 - 1), ("min_tokens", 6)):
            error = error_of(http.complete(prompt=[A], **{name: value}))
            assert (error["param"], error["message"]) == (
                name,
                f"{name} = {value}: this server's answers have 5 tokens at most",
            )
        error = error_of(http.generate(input_ids=[A], sampling_params={"max_new_tokens": 6}))
        assert error["param"] == "sampling_params.max_new_tokens"
        http.generate(input_ids=[A], sampling_params={"max_new_tokens": 0})
        assert http.fake.of(NewRequest)[-1].params.max_new_tokens == 0
