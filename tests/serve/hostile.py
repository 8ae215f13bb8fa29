"""Requests that nobody means well with, as data: bodies for every endpoint, and bytes that are hardly HTTP."""

import gzip
import json
from dataclasses import dataclass

from rtk.serve.http.fields import FIELDS, Kind, Scope

LIMIT = 1 << 20
"""The body limit of the server that they are for."""
DEEP = 100_000

BODIES = {
    Scope.COMPLETIONS: ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
    Scope.CHAT: ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
    Scope.RESPONSES: ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
    Scope.GENERATE: ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}}),
    Scope.SAMPLING: ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}}),
    Scope.TOKENIZE: ("/tokenize", {"prompt": "x"}),
    Scope.DETOKENIZE: ("/detokenize", {"tokens": [5]}),
    Scope.ABORT: ("/abort", {"rid": "x"}),
    Scope.EXPLAIN: ("/cache/explain", {"text": "x"}),
    Scope.PIN: ("/cache/pin", {"text": "x", "name": "x"}),
    Scope.UNPIN: ("/cache/unpin", {"name": "x"}),
}
"""A body that is fine, by what it is read as."""
PATHS = sorted({path for path, _ in BODIES.values()})

WRONG = (
    {}, [], "", "x", True, False, 0, -1, 1.5, 10**400, 2**63, [[]], [None], {"a": {"b": []}}, "\ud800", "\x00", [{}],
    ["\udfff"], {"": None}, [1e308], "☃" * 300,
)  # fmt: skip
"""Values of which most are none that a field may have."""


@dataclass(frozen=True)
class Hostile:
    """One of them."""

    name: str
    sent: bytes
    silent: bool = False
    """Whether no answer is one too: the client hangs up in the middle, or says nothing that could be answered."""


def request(path, body=b"", *headers, method="POST", length=True):
    """The bytes of a request after which the client wants no other."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def texts():
    """Bodies that are no object in JSON, or a strange one."""
    yield "empty", b""
    for text in ("null", "true", "1", '"x"', "[]", "[{}]", "{", "}", "{'a': 1}", '{"a": 1,}', '{"a"}', "{}{}", "{} x"):
        yield f"text {text}", text.encode()
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "+1", ".5", "1.", "1e", "'1'"):
        yield f"number {text}", b'{"temperature": ' + text.encode() + b', "prompt": "x", "max_tokens": 2}'
    for digits in (400, 4300, 4301, 100_000):
        yield f"{digits} digits", b'{"seed": ' + b"9" * digits + b', "prompt": "x", "max_tokens": 2}'
    for name, opening in (("lists", b"["), ("objects", b'{"a":')):
        yield f"{name} without end", opening * DEEP
        yield f"deep {name} in a field", b'{"prompt": ' + opening * DEEP
    for depth in (100, 500, 900, 5_000):
        for field in ("prompt", "messages", "input", "text", "json_schema", "chat_template_kwargs", "unknown"):
            value = b'{"a":' * depth + b"1" + b"}" * depth
            yield f"{field} of depth {depth}", b'{"%s": %s, "max_tokens": 2}' % (field.encode(), value)
    yield "duplicate keys", b'{"prompt": 5, "prompt": "x", "max_tokens": 0, "max_tokens": 2}'
    yield "BOM", b'\xef\xbb\xbf{"prompt": "x"}'
    for codec in ("utf-16", "utf-16-le", "utf-32", "cp500"):
        yield codec, '{"prompt": "é"}'.encode(codec)
    for name, raw in (
        ("latin-1", b"\xe9"), ("overlong", b"\xc0\x80"), ("surrogate", b"\xed\xa0\x80"),
        ("too high", b"\xf5\x80\x80\x80"),
        ("cut", b"\xe2\x98"), ("NUL", b"\x00"), ("line end", b"\n"), ("escape", rb"\ud800"), ("half", rb"\u12"),
        ("escaped NUL", rb"\u0000"), ("pair", rb"\ud83d\ude00"), ("wrong pair", rb"\ude00\ud83d"), ("control", b"\x1f"),
    ):  # fmt: skip
        for path, field in (("prompt", b"prompt"), ("key", b"x")):
            text = b'{"prompt": "%s", "max_tokens": 2}' % raw if field == b"prompt" else b'{"%s": "x"}' % raw
            yield f"{name} in the {path}", text


def big():
    """Bodies up to the limit, and above it."""
    for name, value in (
        ("prompt", {"prompt": "x" * (LIMIT - 100)}),
        ("prompt of snowmen", {"prompt": "☃" * (LIMIT // 7)}),
        ("token ids", {"prompt": [1] * (LIMIT // 4)}),
        ("prompts", {"prompt": ["x"] * (LIMIT // 6)}),
        ("messages", {"messages": [{"role": "user", "content": ""}] * (LIMIT // 40)}),
        ("stop strings", {"prompt": "x", "stop": ["x"] * (LIMIT // 6)}),
        ("stop string", {"prompt": "x", "stop": "x" * (LIMIT - 100)}),
        ("keys", {f"k{i}": None for i in range(LIMIT // 20)}),
        ("key", {"k" * (LIMIT - 100): 1}),
        ("expression", {"prompt": "x", "regex": "(" * (LIMIT - 100)}),
        ("salt", {"prompt": "x", "cache_salt": "x" * (LIMIT - 100)}),
        ("name of the request", {"prompt": "x", "rid": "x" * (LIMIT - 100)}),
        ("above the limit", {"prompt": "x" * LIMIT}),
    ):
        yield f"big: {name}", json.dumps(value, ensure_ascii=name != "prompt of snowmen").encode()


def fields():
    """Every field that is read, with a value that it cannot have, wherever it may stand."""
    turn = 0
    for field in FIELDS:
        if field.kind is not Kind.READ:
            continue
        for scope in field.scope:
            path, fine = BODIES[scope]
            value = WRONG[turn % len(WRONG)]
            turn += 1
            put = {field.name: value}
            body = {**fine, "sampling_params": put} if scope is Scope.SAMPLING else {**fine, **put}
            yield f"{field.name} = {value!a:.30} in {scope.name}", path, json.dumps(body).encode()


def protocol():
    """What is wrong is not the body, or not it alone."""
    path, fine = "/v1/completions", b'{"prompt": "x", "max_tokens": 2}'
    chunked = "Transfer-Encoding: chunked"
    chunk = b"%x\r\n%s\r\n" % (len(fine), fine)
    for name, headers in (
        ("gzip", ("Content-Encoding: gzip",)), ("content type", ("Content-Type: multipart/form-data; boundary=x",)),
        ("charset", ("Content-Type: application/json; charset=utf-16",)), ("upgrade", ("Upgrade: websocket",)),
        ("expectations", ("Expect: 100-continue",)), ("two hosts", ("Host: other",)),
        ("accepts nothing", ("Accept: x/y",)),
        ("length twice", (f"Content-Length: {len(fine)}",)), ("another length", ("Content-Length: 1",)),
        ("length and chunks", (chunked,)), ("range", ("Range: bytes=0-1",)),
        ("key", ("Authorization: Bearer \xff\xfe",)),
        ("no such header", ("no colon here",)), ("space in a name", ("X Y: z",)), ("folded", ("X: y", " z")),
        ("NUL in a header", ("X: \x00",)), ("10000 headers", tuple(f"X-{i}: y" for i in range(10_000))),
        ("a long header", ("X: " + "y" * 100_000,)), ("a long cookie", ("Cookie: " + "a=b; " * 20_000,)),
    ):  # fmt: skip
        body = gzip.compress(fine) if name == "gzip" else fine
        yield Hostile(f"header: {name}", request(path, body, *headers), silent=name == "length and chunks")
    for value in ("-1", "x", "1e3", "99999999999999999999", "0x5", "", "+5", "5 5"):
        yield Hostile(f"length {value!r}", request(path, fine, f"Content-Length: {value}", length=False))
    for value in ("xchunked", "chunked, chunked", "identity", "chunked, gzip", " chunked", "Chunked", "\tchunked"):
        yield Hostile(
            f"coding {value!r}", request(path, chunk + b"0\r\n\r\n", f"Transfer-Encoding: {value}", length=False)
        )
    for name, body, cut in (
        ("fine", chunk + b"0\r\n\r\n", False), ("no hex", b"zz\r\nx\r\n", False), ("negative", b"-5\r\nx\r\n", False),
        ("huge", b"f" * 17 + b"\r\nx", True), ("short", b"ff\r\nx\r\n", True),
        ("long", b"1\r\nxyz\r\n0\r\n\r\n", False),
        ("no end", chunk, True), ("extension", b"5;" + b"x" * 100_000 + b"\r\n", True),
        ("trailer", chunk + b"0\r\nX: y\r\nContent-Length: 5\r\n\r\n", False),
        ("above the limit", b"100000\r\n" + b"x" * 0x100000 + b"\r\n1\r\nx\r\n0\r\n\r\n", False),
        ("single bytes", b"".join(b"1\r\n%c\r\n" % byte for byte in fine) + b"0\r\n\r\n", False),
    ):  # fmt: skip
        yield Hostile(f"chunks: {name}", request(path, body, chunked, length=False), silent=cut)
    yield Hostile("body is cut", request(path, fine)[:-5], silent=True)
    yield Hostile("body goes on", request(path, fine) + b"GET /flush_cache HTTP/1.1\r\n\r\n")
    yield Hostile("head is cut", b"POST /v1/completions HTTP/1.1\r\nHost: te", silent=True)
    for name, raw in (
        ("nothing", b""), ("line ends", b"\r\n" * 100), ("TLS", bytes.fromhex("160301020001000001fc0303") + bytes(50)),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ("HTTP/0.9", b"GET /health\r\n\r\n"),
        ("noise", bytes(range(256))),
        ("HTTP/9.9", b"GET /health HTTP/9.9\r\nHost: x\r\nConnection: close\r\n\r\n"),
        ("no host", b"GET /health HTTP/1.1\r\n\r\n"),
        ("bare line ends", b"GET /health HTTP/1.1\nHost: x\nConnection: close\n\n"),
        ("a long line", b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    ):  # fmt: skip
        yield Hostile(f"raw: {name}", raw, silent=name in ("nothing", "line ends", "noise", "TLS", "HTTP/0.9"))
    for target in (
        "/%00",
        "/%ff%fe",
        "/..%2f..%2fetc/passwd",
        "//v1/models",
        "*",
        "http://x/v1/models",
        "/v1/models/%0d%0aX:y",
        "/v1/models/" + "x" * 5_000,
        "/requests/%00/explain",
        "/v1/completions/",
        "/health?" + "a=b&" * 5_000,
    ):
        yield Hostile(f"target {target:.30}", request(target, method="GET"))  # fmt: skip
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "OPTIONS", "HEAD", "x" * 100, "get"):
        yield Hostile(f"method {method:.10}", request(path, fine, method=method))


def all_of_them():
    """Every one; bodies go to the endpoints in turn."""
    for turn, (name, body) in enumerate(texts()):
        path = PATHS[turn % len(PATHS)]
        yield Hostile(f"{name} to {path}", request(path, body))
    for name, body in big():
        yield Hostile(name, request("/v1/chat/completions" if "messages" in name else "/v1/completions", body))
    for name, path, body in fields():
        yield Hostile(name, request(path, body))
    yield from protocol()
