"""Several answers to one prompt (`n`): each is a request of its own to the scheduler; the first leads the others."""

from msgspec.structs import replace

from rtk.schedule.draws import answer_seed
from rtk.schedule.messages import NewRequest


def answer_rid(rid: str, answer: int) -> str:
    """The client id of one answer: the request's for the first, number 0, and with the number behind it for others."""
    return f"{rid}-{answer}" if answer else rid


def further_answer(first: NewRequest, answer: int, *, rid: str, name: str) -> NewRequest:
    """Another answer to the prompt of the first: with draws of its own, once the first has computed the prompt.

    Only the first tells log-probabilities of the prompt, and asks for as many places in the queue as there are answers.
    """
    params = first.params
    seed = None if params.seed is None else answer_seed(params.seed, answer)
    own = replace(params, n=1, seed=seed, prompt_logprobs=None)
    return replace(first, rid=rid, name=name, params=own, leader=first.rid)
