"""What became of a request, for people: its timeline in plain sentences."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rtk.schedule.timeline import AttemptRecord, Attempts, Cause, Chunk, Decoding, Gap, Retraction, Timeline

LEAST_S = 0.0005
"""What is shorter would read as 0.000 s and is left out."""
SIZES = 8
"""Pieces of a prompt whose sizes are listed."""

_FOR: dict[Cause, str] = {
    "step": "the next step",
    "kv": "KV capacity",
    "rows": "a request row (schedule.max_running)",
    "input": "the prompt tokens of a step (schedule.max_prefill_tokens)",
    "chunk": "the prompt tokens of a step (schedule.chunked_prefill_size, or schedule.mixed_chunk_size)",
    "alignment": "a step with room for a whole piece",
    "cut": "another request whose prompt was cut",
    "prefix": "a step that computed for another request what its prompt begins with",
    "decode": "steps that the schedule policy gave to those who decode",
    "hold": "the schedule policy, which held it back",
    "compile": "its grammar to be compiled",
    "leader": "the first answer to its prompt to compute that",
}


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """A timeline, and the same told."""

    timeline: Timeline
    sentences: tuple[str, ...]
    """Their wording is not stable."""


def request_explanation(timeline: Timeline) -> RequestExplanation:
    """Tell why the request waited, what it hit, and what its time went into."""
    t = timeline
    sentences = (
        _arrival(t),
        _waiting(t),
        *map(_refusal, t.attempts),
        _behind(t),
        *(f"The schedule policy said meanwhile: {note}." for note in t.notes),
        _order(t),
        *_prompt(t),
        *_first_token(t),
        *_decoding(t.decoding),
        *_retractions(t),
        _end(t),
    )
    return RequestExplanation(t, tuple(filter(None, sentences)))


# --- until it was started ---------------------------------------------------------------------------------------


def _arrival(t: Timeline) -> str:
    waiting = t.waiting_at_arrival
    others = _count(waiting, "request was waiting", "requests were waiting") if waiting else "nobody was waiting"
    return f"It came with {_count(t.prompt_tokens, 'prompt token', 'prompt tokens')}; {others}."


def _waiting(t: Timeline) -> str:
    parts = [f"{_s(wait.seconds)} for {_FOR[wait.cause]}" for wait in t.waits if wait.seconds >= LEAST_S]
    waits = t.state == "waiting"
    if not parts:
        return "It is waiting." if waits else "It did not wait."
    told = parts[0] if len(parts) == 1 else f"{_s(t.queue_s)}: {', '.join(parts)}"
    return f"It has been waiting {told}." if waits else f"It waited {told}."


def _refusal(alike: Attempts) -> str:
    if not alike.reason:
        return ""
    times = "once," if alike.count == 1 else f"{alike.count} times, the last time"
    return f"It was refused {times} after {_s(alike.last.time)} (step {alike.last.step}): {_refused(alike.last)}."


def _refused(attempt: AttemptRecord) -> str:
    left = attempt.before
    match attempt.reason:
        case "kv":
            locks = f" and the {attempt.locked} cached ones that it would lock" if attempt.locked else ""
            room = f"{left.total:.1f} that are not reserved, of {left.current} free or evictable ones"
            return f"no KV capacity, a charge of {_tokens(attempt.charge)}{locks} against {room}"
        case "rows":
            return "no free request row"
        case "cut":
            return "another request's prompt was cut already, and one is at a time"
        case "prefix":
            return "the step computes for another request what its prompt begins with, and the next one finds it cached"
        case "alignment":
            return "what was left of the step is less than the shortest piece"
        case "input" | "chunk":
            return f"{_tokens(attempt.candidate)} to compute, too many for what was left of {_FOR[attempt.reason]}"
    return ""


def _behind(t: Timeline) -> str:
    if t.behind is None or t.behind.seconds < LEAST_S:
        return ""
    stood = "It has stood" if t.state == "waiting" else "It stood"
    why = "whose prompt was cut" if t.behind.cause == "cut" else f"which waited for {_FOR[t.behind.cause]}"
    return f"{stood} longest behind {t.behind.rid!r}, {_s(t.behind.seconds)}, {why}."


def _order(t: Timeline) -> str:
    over = t.overtaken
    if not over.requests:
        return "Order cost it nothing: nobody who came later was started before it."
    number = ("" if over.complete else "at least ") + _count(over.requests, "request", "requests")
    return f"Order cost it time: {number} that came later started first, with {_tokens(over.tokens)} to compute."


# --- its prompt -------------------------------------------------------------------------------------------------


def _prompt(t: Timeline) -> Iterable[str]:
    if t.started_s is None:
        return
    of = f"of its {_count(t.prompt_tokens, 'prompt token', 'prompt tokens')} came from the cache"
    yield f"{t.cached_tokens or 'None'} {of}."
    if not t.chunks:
        return
    what = "The rest" if t.cached_tokens else "The prompt"
    if t.chunk_count == 1:
        yield f"{what} was computed in one step of {_s(t.forward_s)}."
    else:
        again = ", those after retractions among them" if t.retraction_count else ""
        sizes = [chunk.stop - chunk.start for chunk in t.chunks]
        listed = ", ".join(map(str, sizes)) if t.chunk_count <= SIZES else f"up to {max(sizes)}"
        yield f"{what} was computed in {t.chunk_count} pieces of {listed} tokens, {_s(t.forward_s)} together{again}."
    yield from _beside(t.chunks)


def _beside(chunks: Sequence[Chunk]) -> Iterable[str]:
    if between := sum(chunk.decode_steps for chunk in chunks):
        yield f"Between its pieces, {_count(between, 'step', 'steps')} decoded for others."
    if mixed := [chunk.decoding for chunk in chunks if chunk.decoding]:
        pieces = _count(len(mixed), "piece", "pieces")
        yield f"Mixing: {pieces} shared a step with up to {_count(max(mixed), 'request', 'requests')} that decoded."
    if shared := sum(chunk.other_tokens for chunk in chunks):
        yield f"The same steps computed {_tokens(shared)} of other prompts."


def _first_token(t: Timeline) -> Iterable[str]:
    first = t.first_token
    if first is None:
        return
    yield (
        f"The first token came after {_s(first.after_s)}: {_s(first.queue_s)} of waiting, "
        f"{_s(first.forward_s)} of computing its prompt, {_s(first.between_s)} between the two or between pieces."
    )
    most = max(first.queue_s, first.forward_s, first.between_s)
    if most < LEAST_S:
        return
    if most == first.queue_s:
        yield "Most of that was waiting."
    elif most == first.forward_s:
        yield "Most of that was its own prompt."
    elif t.chunk_count > 1:
        yield "Most of that was chunk size: larger pieces have less between them."


# --- its tokens -------------------------------------------------------------------------------------------------


def _decoding(d: Decoding | None) -> Iterable[str]:
    if d is None or not d.steps:
        return
    yield f"It decoded for {_s(d.seconds)}, in {_count(d.steps, 'step', 'steps')}."
    if d.prefill_steps:
        steps, tokens = _count(d.prefill_steps, "step", "steps"), _tokens(d.prefill_tokens)
        yield f"Meanwhile {steps} computed {tokens} of other prompts, and none for it: {_s(d.prefill_s)}."
    if d.mixed_steps:
        mixed = f"{d.mixed_steps} of its steps computed {_tokens(d.mixed_tokens)} of other prompts too"
        yield f"Mixing: {mixed}, {_s(d.mixed_s)} together."
    if not d.prefill_steps and not d.mixed_steps:
        yield "No other prompt was computed meanwhile."
    if d.gap:
        longest = f"Its longest wait for a token was {_s(d.gap.seconds)}"
        yield f"{longest}, up to {_s(d.gap.ended_s)} after it came: {_filled(d.gap)}."


def _filled(gap: Gap) -> str:
    if gap.retracted:
        return "it was retracted"
    parts = []
    if gap.prefill_tokens:
        parts.append(f"{_tokens(gap.prefill_tokens)} of other prompts were computed, most for {gap.prefill_by!r}")
    if gap.others_retracted:
        parts.append(_count(gap.others_retracted, "other request was retracted", "other requests were retracted"))
    return ", and ".join(parts) or "only the step that made it"


def _retractions(t: Timeline) -> Iterable[str]:
    if t.retraction_count > len(t.retractions):
        yield f"It was retracted {t.retraction_count} times; the first and the last are these."
    for r in t.retractions:
        had = f"It was retracted after {_s(r.after_s)} (step {r.step}) with {_tokens(r.output_tokens)} of output, "
        yield f"{had}{_because(r)}; {_again(r, t)}."


def _because(r: Retraction) -> str:
    names = [repr(name) for name in r.made_room_for]
    if r.others:
        names.append(_count(r.others, "other", "others"))
    who = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    if r.why == "preempted":
        return f"because {who} took its place"
    return f"because {who} needed its slots for their next tokens" if names else "because there were too few slots"


def _again(r: Retraction, t: Timeline) -> str:
    if r.again_s is not None:
        return f"it was started again after {_s(r.again_s)} with {_tokens(r.cached_tokens)} from the cache"
    return "it was not started again" if t.state == "finished" else "it waits to be started again"


def _end(t: Timeline) -> str:
    tokens = _tokens(t.output_tokens)
    if t.state == "finished":
        how = f"{t.end}, {t.problem}" if t.problem else t.end
        return f"It ended after {_s(t.age_s)} with {tokens} of output: {how}."
    return f"It is running after {_s(t.age_s)}, with {tokens} of output so far." if t.state == "running" else ""


def _s(seconds: float) -> str:
    return f"{seconds:.3f} s"


def _tokens(n: int) -> str:
    return _count(n, "token", "tokens")


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
