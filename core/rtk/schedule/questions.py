"""Answers what a scheduler is asked beside requests; the one place where a refusal becomes a message."""

from typing import Protocol

from rtk.errors import RequestError
from rtk.schedule.cache_desk import CacheDesk
from rtk.schedule.messages import (
    Explain,
    ExplainRequest,
    Flush,
    GetCache,
    GetStats,
    NewRequest,
    Outbound,
    Pin,
    Question,
    Refused,
    RequestExplained,
    Stats,
    Unpin,
)
from rtk.schedule.params import SamplingParams


class Books(Protocol):
    """What a scheduler tells of itself, and the one thing that a question makes it do."""

    @property
    def accepted(self) -> int:
        """Requests that run or wait."""

    def held(self) -> int:
        """Slots that running requests hold outside the tree."""

    def measured(self, id: int) -> Stats:
        """All that is counted and measured, as the answer to a question."""

    def explain_request(self, question: ExplainRequest) -> RequestExplained | Refused:
        """What became of a request."""

    def enqueue(self, new: NewRequest, pin: Pin | None = None) -> None:
        """Accept a request, or raise `RequestError`."""


def answer(question: Question, books: Books, desk: CacheDesk) -> Outbound | None:
    """The answer, or a refusal; None where it comes later."""
    try:
        match question:
            case Flush():
                return desk.flush(question.id, books.accepted)
            case GetStats():
                return books.measured(question.id)
            case GetCache():
                return desk.report(question.id, books.held())
            case Explain():
                return desk.explain(question)
            case ExplainRequest():
                return books.explain_request(question)
            case Pin():
                books.enqueue(_prefill(question), question)
                return None
            case Unpin():
                return desk.unpin(question.id, question.name)
    except RequestError as error:
        return Refused(id=question.id, problem=str(error), code=error.code, field=error.field, status=error.status)
    raise TypeError(f"nobody answers a {type(question).__name__}")


def _prefill(pin: Pin) -> NewRequest:
    """The request that computes the prefix and generates nothing; its end answers the pin."""
    params = SamplingParams(max_new_tokens=0, seed=0)  # a seed of its own would move those of later requests
    rid, name = f"pin:{pin.id}", f"pin:{pin.name}"
    return NewRequest(rid=rid, tokens=pin.tokens, params=params, namespace=pin.namespace, name=name)
