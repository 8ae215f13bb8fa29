"""What clients say of how their requests are handled, checked; and what is told in their words."""

from typing import Any

from rtk.cache.key import Namespace
from rtk.errors import RequestError
from rtk.schedule.params import check_text, shown
from rtk.serve.protocol import GenerateRequest

MAX_NAME = 200
"""Characters of a request id, and of a pin's name."""

MAX_SALT = 65_536
"""Characters of a cache salt, and of an extra key."""

MAX_PRIORITY = 2**31 - 1

MAX_DEADLINE_MS = 2**31 - 1


def refusal(request: GenerateRequest, problem: str, field: str | None, code: str, status: int) -> RequestError:
    """What the scheduler refuses, in the client's words."""
    names = {"prompt": request.prompt_name, **request.names}
    if field == "grammar" and request.form is not None:
        names[field] = request.form.asked.called
        problem = f"{names[field]}: {problem}"
    length = "max_new_tokens"  # the one parameter that the scheduler's messages name
    problem = problem.replace(length, names.get(length, length))
    return RequestError(problem, field=None if field is None else names.get(field, field), code=code, status=status)


def check_name(name: Any, field: str) -> None:
    """Raises `RequestError` for what is no id and no name."""
    if not (isinstance(name, str) and 1 <= len(name) <= MAX_NAME and name.isprintable()):
        raise RequestError(f"{field}: must be a string of 1 to {MAX_NAME} printable characters", field=field)


def namespace_of(request: GenerateRequest) -> Namespace:
    """Where what is cached of a request is found. Raises `RequestError`."""
    for field, text in (("cache_salt", request.cache_salt), ("extra_key", request.extra_key)):
        if text is None:
            continue
        if not (isinstance(text, str) and 1 <= len(text) <= MAX_SALT):
            raise RequestError(f"{field}: must be a string of 1 to {MAX_SALT:,} characters, or null", field=field)
        check_text(text, field=field)
    tenant = name_or_none(request.tenant, "tenant")
    return Namespace(salt=request.cache_salt, extra=request.extra_key, tenant=tenant)


def priority_of(request: GenerateRequest) -> int:
    """A request's priority. Raises `RequestError`."""
    given = request.priority
    if not isinstance(given, int) or isinstance(given, bool) or abs(given) > MAX_PRIORITY:
        raise RequestError(
            f"priority = {shown(given)}: must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}", field="priority"
        )
    return given


def name_or_none(name: str | None, field: str) -> str:
    """The name as the scheduler has it: empty for none."""
    if name is None:
        return ""
    check_name(name, field)
    return name


def deadline_of(request: GenerateRequest) -> float | None:
    """A request's deadline in seconds. Raises `RequestError`."""
    deadline = request.deadline_ms
    if deadline is None:
        return None
    if not (is_number(deadline) and 0 < deadline <= MAX_DEADLINE_MS):
        allowed = f"a number of milliseconds above 0, up to {MAX_DEADLINE_MS}, or null"
        raise RequestError(f"deadline_ms = {shown(deadline)}: must be {allowed}", field="deadline_ms")
    return deadline / 1000


def is_number(value: Any) -> bool:
    """Whether a client's value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def stopped() -> RequestError:
    """What requests get that nobody computes any more."""
    return RequestError("the engine has stopped; restart the server", code="engine_stopped", status=503)
