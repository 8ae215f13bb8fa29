"""The clients of bench/soak.py: what each sends, when it leaves, and what it must get."""

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

TENANTS = ("acme", "beta")
"""Who the clients are, by turns. The key of each is its name."""
LIMIT_S = 600.0
"""How long one client waits."""
PROMPT, ANSWER, LONG = (8, 96), (32, 192), 256
"""Bytes of prompts behind what they share, tokens of answers, and of answers that nobody waits for."""

SHARED = [f"{topic}: what is known of it, in a few words. " for topic in ("tides", "rivers", "clouds", "moss")]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
JSON = r'\s*\{\s*"n"\s*:\s*-?\d+\s*\}\s*'
FORMS: Sequence[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "[ab]{3,9}"}, "[ab]{3,9}"),
    ({"guided_choice": ["yes", "no", "maybe"]}, "yes|no|maybe"),
    ({"guided_json": SCHEMA}, JSON),
]
"""What answers are to look like, and a pattern that they match then."""

MALFORMED: Sequence[tuple[str, bytes]] = [
    ("/v1/completions", b""),
    ("/v1/completions", b"{"),
    ("/v1/completions", b"[]"),
    ("/v1/completions", b"\xff\xfe{}"),
    ("/v1/completions", b"[" * 5000),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": -1}'),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": 1e400}'),
    ("/v1/completions", b'{"prompt": "a", "temperature": NaN}'),
    ("/v1/completions", b'{"prompt": "\\ud800"}'),
    ("/v1/completions", b'{"prompt": [1, 2, 3000000]}'),
    ("/v1/completions", b'{"prompt": ' + json.dumps("x" * 200_000).encode() + b"}"),
    ("/v1/completions", b'{"prompt": "a", "guided_regex": "(((("}'),
    ("/v1/completions", b'{"prompt": "a", "guided_json": {"type": "no such type"}}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "nobody", "content": "a"}]}'),
    ("/v1/chat/completions", b'{"messages": [], "stream": "yes"}'),
    ("/v1/chat/completions", b'{"messages": 5}'),
    ("/generate", b'{"text": "a", "input_ids": [1]}'),
    ("/generate", b'{"text": "a", "sampling_params": {"top_p": 7}}'),
    ("/abort", b'{"rid": 5}'),
]


@dataclass(frozen=True)
class Plan:
    """One client. `leaves` is None where it stays to the end, else when it goes."""

    kind: str
    path: str
    body: bytes
    stream: bool = False
    rid: str = ""
    tenant: str = TENANTS[0]
    prompt_bytes: int = 0
    leaves: str | None = None
    """While `sending`, while `waiting` for the first byte, or after `events` of a stream."""
    after: float = 0.0
    """Seconds, or events."""
    resets: bool = False
    """Whether its end of the connection is torn off, rather than closed."""
    wants: dict[str, Any] = field(default_factory=dict)
    """Of an answer: `tokens` at the most, `choices`, a `pattern` that its text matches, `deadline`."""


@dataclass
class Outcome:
    """What a client got."""

    plan: Plan
    status: int = 0
    code: str = ""
    events: int = 0
    tokens: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    left: bool = False
    problem: str = ""

    @property
    def ends(self) -> str:
        """In a word."""
        return "left" if self.left else self.code or str(self.status)


def plans(count: int, seed: int, *, several: bool) -> list[Plan]:
    """The clients of one run, the same for a seed. `several`: whether the server gives several answers to a prompt."""
    rng = random.Random(seed)
    shares = {_malformed: 0.05, _leaver: 0.2, _formed: 0.1, _hurried: 0.05}
    if several:
        shares |= {_several: 0.05, _leaver: 0.18, _several_leave: 0.02}
    makers = [maker for maker, share in shares.items() for _ in range(round(share * count))]
    makers += [_plain] * (count - len(makers))
    rng.shuffle(makers)
    made = [maker(rng, f"soak-{seed}-{i}") for i, maker in enumerate(makers)]
    return [replace(plan, tenant=TENANTS[i % len(TENANTS)]) for i, plan in enumerate(made)]


def formed(name: str) -> list[Plan]:
    """Clients that want forms which nobody has wanted before: afterwards, whatever sees to them runs."""
    rng = random.Random(name)
    forms = [
        ({"guided_regex": f"{name}[ab]{{3,9}}"}, f"{name}[ab]{{3,9}}"),
        ({"guided_choice": [f"{name}-{word}" for word in ("yes", "no")]}, f"{name}-(yes|no)"),
        ({"guided_json": {**SCHEMA, "title": name}}, JSON),
    ]
    return [_formed(rng, f"formed-{name}-{i}", form) for i, form in enumerate(forms)]


def crowds(size: int) -> list[Plan]:
    """For each tenant a client that wants so many answers at a time."""
    body = {"prompt": "a", "n": size, "max_tokens": 1, "temperature": 1, "ignore_eos": True}
    wants = {"tokens": 1, "choices": size}
    return [Plan("crowd", "/v1/completions", json.dumps(body).encode(), tenant=t, wants=wants) for t in TENANTS]


def leavers(count: int, seed: int) -> list[Plan]:
    """Clients that all leave in the middle of a stream that only its length ends."""
    rng = random.Random(seed)
    return [_leaver(rng, f"left-{seed}-{i}", "events") for i in range(count)]


def _plain(rng: random.Random, rid: str) -> Plan:
    return _request(rng, rid, "plain", {})


def _malformed(rng: random.Random, rid: str) -> Plan:
    path, body = rng.choice(MALFORMED)
    return Plan("malformed", path, body, rid=rid)


def _hurried(rng: random.Random, rid: str) -> Plan:
    return _request(rng, rid, "deadline", {"deadline_ms": rng.choice([1, 50, 400, 60_000])}, {"deadline": True})


def _several(rng: random.Random, rid: str) -> Plan:
    return _request(rng, rid, "several", {"n": 2, "temperature": 1}, {"choices": 2})


def _several_leave(rng: random.Random, rid: str) -> Plan:
    return _leaver(rng, rid, n=2)


def _leaver(rng: random.Random, rid: str, leaves: str | None = None, **more: Any) -> Plan:
    leaves = leaves or rng.choice(["sending", "waiting", "waiting", "events", "events"])
    after = rng.randint(1, 12) if leaves == "events" else rng.choice([0, 0, 0.005, 0.02, 0.1])
    more |= {"max_tokens": LONG, "stream": leaves == "events" or rng.random() < 0.5}
    if leaves == "waiting" and rng.random() < 0.2:  # it may leave a grammar that is being compiled
        more["guided_regex"] = f"[a-f]{{{rng.randint(1, 60)}}}"
    plan = _request(rng, rid, "leaves", more)
    return replace(plan, leaves=leaves, after=after, resets=rng.random() < 0.5)


def _formed(rng: random.Random, rid: str, form: tuple[dict[str, Any], str] | None = None) -> Plan:
    length = rng.randint(1, 40)
    rare = {"guided_regex": f"x{{{length}}}"}, f"x{{{length}}}"  # hardly ever compiled before
    asked, pattern = form or rng.choice([*FORMS, rare])
    return _request(rng, rid, "formed", {**asked, "max_tokens": 64}, {"pattern": pattern})


def _request(
    rng: random.Random, rid: str, kind: str, more: dict[str, Any], wants: dict[str, Any] | None = None
) -> Plan:
    """A request that only its length, a deadline or its form ends."""
    text = rng.choice(SHARED) + "".join(rng.choices("abcdefgh ", k=rng.randint(*PROMPT)))
    formed = any(name.startswith("guided") for name in more)
    body = {
        "rid": rid,
        "max_tokens": rng.randint(*ANSWER),
        "stream": rng.random() < 0.5,
        "temperature": rng.choice([0, 1]),
        "seed": rng.randrange(1000),
        "ignore_eos": not formed,
        **more,
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    chat = rng.random() < 0.3
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    wants = {"tokens": body["max_tokens"], "choices": 1, **(wants or {})}
    return Plan(kind, path, json.dumps(body).encode(), body["stream"], rid, prompt_bytes=len(text), wants=wants)


async def run(host: str, port: int, plan: Plan) -> Outcome:
    """Be that client. What it should not have got stands in `problem`."""
    outcome = Outcome(plan)
    try:
        async with asyncio.timeout(LIMIT_S):
            await _talk(host, port, plan, outcome)
    except TimeoutError:
        outcome.problem = f"no end after {LIMIT_S:.0f} s"
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        outcome.problem = f"{type(error).__name__}: {error}"
    if not outcome.problem and not outcome.left:
        outcome.problem = _wrong(outcome)
    return outcome


async def _talk(host: str, port: int, plan: Plan, outcome: Outcome) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST {plan.path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        head += f"Authorization: Bearer {plan.tenant}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(plan.body)}\r\n\r\n".encode())
        if plan.leaves == "sending":
            writer.write(plan.body[: len(plan.body) // 2])
            await writer.drain()
            await asyncio.sleep(plan.after)
            outcome.left = True
            return
        writer.write(plan.body)
        await writer.drain()
        if plan.leaves == "waiting":
            await asyncio.sleep(plan.after)
            outcome.left = True
            return
        await _read(reader, plan, outcome)
    finally:
        if plan.resets and outcome.left:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, plan: Plan, outcome: Outcome) -> None:
    outcome.status = int((await reader.readline()).split()[1])
    streams = False
    while line := (await reader.readline()).strip():
        streams |= line.lower().startswith(b"content-type: text/event-stream")
    if not streams:
        _take(outcome, json.loads(await reader.read()))
        return
    done = False
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            done = True
        elif line.startswith(b"data: "):
            outcome.events += 1
            _take(outcome, json.loads(line[6:]))
            if plan.leaves == "events" and outcome.events >= plan.after:
                outcome.left = True
                return
    if not done and not outcome.code:
        outcome.problem = "the stream was broken off"


def _take(outcome: Outcome, said: dict[str, Any]) -> None:
    """An answer, or an event of a stream."""
    if "error" in said:
        outcome.code = said["error"]["code"]
        return
    outcome.tokens = (said.get("usage") or {}).get("completion_tokens") or outcome.tokens
    for choice in said.get("choices", ()):
        new = choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        outcome.texts[choice["index"]] = outcome.texts.get(choice["index"], "") + new
        if choice["finish_reason"]:
            outcome.reasons[choice["index"]] = choice["finish_reason"]


def _wrong(outcome: Outcome) -> str:
    """What is wrong with what a client got that stayed; empty: nothing."""
    plan, wants = outcome.plan, outcome.plan.wants
    if plan.kind == "malformed":
        return "" if 400 <= outcome.status < 500 and outcome.code else f"status {outcome.status}"
    if outcome.code == "deadline_exceeded" and wants.get("deadline"):
        return ""
    if outcome.status != 200 or outcome.code:
        return f"status {outcome.status} {outcome.code}"
    if sorted(outcome.reasons) != list(range(wants["choices"])):
        return f"ends of choices {sorted(outcome.reasons)}"
    if "pattern" in wants:
        cut = "length" in outcome.reasons.values()
        return "" if cut or re.fullmatch(wants["pattern"], outcome.texts[0]) else f"text {outcome.texts[0]!r}"
    if outcome.tokens != wants["tokens"] * wants["choices"]:
        return f"{outcome.tokens} tokens, {wants['tokens']} x {wants['choices']} were asked for"
    return ""
