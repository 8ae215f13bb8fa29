"""What an answer must look like: from what a client asks for to a backend that keeps it, and what it promises.

A form that a client asks for is read and brought into normal form here, every backend in use judges it, and the best
of them is chosen. Nothing is compiled, and no library that compiles is imported.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

import msgspec

from rtk.errors import RequestError, one_line
from rtk.grammar import calls, choice, ebnf, regex, tags
from rtk.grammar.schema import Normal
from rtk.grammar.schema import normalise as normal_schema
from rtk.plugin.foreign import contained
from rtk.plugin.grammar import WHITESPACE, GrammarBackend, Judgement, Reason, Spec
from rtk.plugin.registry import kinds_of
from rtk.schedule.messages import GrammarOrder
from rtk.schedule.params import check_names, shown

KINDS = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")
"""What may be asked for; an engine's parameters are called so, and `json_object` is true."""
OPTIONS = ("grammar_whitespace", "grammar_verify")
"""What may be said beside it."""
PREFERRED = ("xgrammar", "llguidance", "outlines")
"""Which backend is asked first; the others follow in the order of their names."""
MAX_WHITESPACE = 256
KEPT = 256
KEPT_LENGTH = 64 * 1024
"""Forms whose choice is kept, and how many characters each of them may have."""
COUNTERS = ("forms_exact", "forms_narrowed", "forms_loosened", "forms_refused")
Kept = Literal["exact", "narrowed", "loosened"]
"""How far a form is kept. `loosened` are calls of tools that are not strict: more may come than a schema allows."""
MAX_REASONS = 8
"""Of a backend, in the message of a refusal."""

_WITH_WHITESPACE = frozenset({"json_schema", "structural_tag", calls.KIND})
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedForm:
    """What a client asks for, as it was sent."""

    kind: str
    """One of `KINDS`, or that of `rtk.grammar.calls`."""
    value: Any
    """A schema, or the text of one; an expression; a grammar; a list of texts; structural tags; calls."""
    field: str = ""
    """What the client calls it, for messages; empty: by its kind."""
    whitespace: int | None = None
    """Characters between two tokens of a JSON text, at most; None: as the engine is set."""
    verify: bool | None = None
    """Whether the finished text is checked; None: as the engine is set."""

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.field or self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedForm:
    """What becomes of it."""

    order: GrammarOrder
    verdict: Kept
    reasons: tuple[str, ...]
    """Why it is not exact, for the client."""
    asked: AskedForm
    verify: bool = False
    """Whether the finished text is checked."""


def asked_form(params: Mapping[str, Any]) -> tuple[AskedForm | None, dict[str, Any]]:
    """What parameters ask for by the names of `KINDS` and `OPTIONS`, and the others. Raises `RequestError`."""
    check_names(params, *KINDS, *OPTIONS)
    given = {kind: params[kind] for kind in KINDS if params.get(kind) is not None}
    kinds = [kind for kind, value in given.items() if (kind, value) != ("json_object", False)]
    others = {name: value for name, value in params.items() if name not in (*KINDS, *OPTIONS)}
    whitespace, verify = check_options(params)
    if len(kinds) > 1:
        raise two_forms(*kinds)
    if not kinds:
        return None, others
    return AskedForm(kind=kinds[0], value=params[kinds[0]], whitespace=whitespace, verify=verify), others


def check_options(values: Mapping[str, Any], prefix: str = "") -> tuple[int | None, bool | None]:
    """The values called `OPTIONS`. Raises `RequestError`; `prefix` says where they stand."""
    whitespace, verify = (values.get(name) for name in OPTIONS)
    whole = isinstance(whitespace, int) and not isinstance(whitespace, bool)
    if whitespace is not None and not (whole and 0 <= whitespace <= MAX_WHITESPACE):
        raise _must_be(f"an integer from 0 to {MAX_WHITESPACE}, or null", prefix + OPTIONS[0], whitespace)
    if verify is not None and not isinstance(verify, bool):
        raise _must_be("true or false", prefix + OPTIONS[1], verify)
    return whitespace, verify


def two_forms(*fields: str) -> RequestError:
    """The refusal of two forms for one answer."""
    return RequestError(f"{' and '.join(fields)}: an answer can have one form; send one of them", field=fields[1])


class _Read(NamedTuple):
    """A form in normal form."""

    kind: str
    text: str
    narrowed: tuple[str, ...] = ()
    """What the normal form leaves out."""
    unique_keys: bool = False
    schemas: tuple[Normal, ...] = ()
    """Whose pointers reasons are about: the schema, or that of each tag."""
    tools: tuple[str, ...] = ()
    """What each tag calls."""
    loosened: tuple[str, ...] = ()
    """What may come beside what is asked for."""
    otherwise: Normal | None = None
    """What an answer is that has no tags."""

    def shown(self, reason: Reason) -> str:
        """A backend's reason, with the place in what the client sent."""
        if not reason.at:
            return reason.problem
        if self.kind == "json_schema":
            return f"{reason.problem}, at {self.schemas[0].origin(reason.at)}"
        match reason.at.split("/", 4):
            case ["#", "tags", index, "schema", *rest]:
                at = self.schemas[int(index)].origin("/".join(["#", *rest]))
                return f"{reason.problem}, at {at} in {self._part('schema', 'parameters', index)}"
            case ["#", "otherwise", *rest] if self.otherwise is not None:
                at = self.otherwise.origin("/".join(["#", *rest]))
                return f"{reason.problem}, at {at} in the schema of answers that are no calls"
            case ["#", "tags", index, *_]:
                return f"{reason.problem}, in {self._part('', '', index)}"
        return reason.problem

    def _part(self, of_tag: str, of_tool: str, index: str) -> str:
        """What a tag, or a part of it, is called."""
        part, whole = (of_tool, f"tool '{self.tools[int(index)]}'") if self.tools else (of_tag, f"tag {index}")
        return f"the {part} of {whole}" if part else whole


class Choice(msgspec.Struct, frozen=True):
    """The backend that is best for a form, what it is asked for, and what it makes of that."""

    backend: str
    kind: str
    text: str
    unique_keys: bool
    verdict: Kept
    reasons: tuple[str, ...]


class Forms:
    """Chooses among the backends of one engine, one form at a time. Used from one thread, but for `choose`."""

    def __init__(
        self,
        backends: Mapping[str, GrammarBackend],
        *,
        whitespace: int = WHITESPACE,
        verify: bool = False,
        lanes: int = 1,
    ) -> None:
        """`whitespace` and `verify` are those of requests that say nothing; `lanes` forms are chosen for at a time."""
        first = [name for name in PREFERRED if name in backends]
        self._backends = {name: backends[name] for name in [*first, *sorted(backends.keys() - {*first})]}
        self._known = known(self._backends)
        self._whitespace = whitespace
        self._verify = verify
        self._kept: OrderedDict[tuple[str, str, int], Choice] = OrderedDict()
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="rtk-forms")
        self._counts = dict.fromkeys(COUNTERS, 0)

    async def serve(self, asked: AskedForm) -> ServedForm:
        """The best backend for a form. Raises `RequestError` where it is malformed, or where none can keep it."""
        try:
            form = await self._serve(asked, asked.called)
        except RequestError:
            self._counts["forms_refused"] += 1
            raise
        self._counts[f"forms_{form.verdict}"] += 1
        return form

    async def _serve(self, asked: AskedForm, field: str) -> ServedForm:
        kind, text = _text(asked, field)
        whitespace = self._whitespace if asked.whitespace is None else asked.whitespace
        key = (kind, text, whitespace if kind in _WITH_WHITESPACE else WHITESPACE)
        found = self._kept.get(key)
        try:
            if found is None:
                found = await asyncio.wrap_future(self._pool.submit(self.choose, *key))
        except RequestError as error:
            problem = f"{field}: {str(error).removeprefix(f'{field}: ')}"
            raise RequestError(problem, field=field, code=error.code, status=error.status) from error
        self._keep(key, found)
        order = GrammarOrder(
            backend=found.backend, kind=found.kind, text=found.text, whitespace=key[2], unique_keys=found.unique_keys
        )
        verify = self._verify if asked.verify is None else asked.verify
        return ServedForm(order=order, verdict=found.verdict, reasons=found.reasons, asked=asked, verify=verify)

    def _keep(self, key: tuple[str, str, int], found: Choice) -> None:
        if len(key[1]) <= KEPT_LENGTH:
            self._kept[key] = found
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def choose(self, kind: str, text: str, whitespace: int) -> Choice:
        """The best backend. Takes some milliseconds, for the largest forms that are taken some seconds."""
        return best(self._known, kind, text, whitespace)

    def stats(self) -> dict[str, int]:
        """What became of the forms that were asked for."""
        return dict(self._counts)

    def libraries(self) -> dict[str, dict[str, str]]:
        """The backends in the order in which they are asked, each with the version of the library behind it."""
        named = {name: backend.library for name, backend in self._backends.items()}
        return {name: {library: _version(library)} if library else {} for name, library in named.items()}

    def close(self) -> None:
        """No more forms. Safe to call twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Known:
    """A backend, and what it understands: read once, so that one that fails at it later harms no request."""

    backend: GrammarBackend
    kinds: frozenset[str] | str
    """Of `SPEC_KINDS`; or why that is not known, and the backend refuses everything."""


def known(backends: Mapping[str, GrammarBackend]) -> dict[str, Known]:
    """Ask backends what they understand."""
    return {name: Known(backend, _kinds(backend)) for name, backend in backends.items()}


def _kinds(backend: GrammarBackend) -> frozenset[str] | str:
    try:
        return kinds_of(backend)
    except BaseException as error:
        if not contained(error):
            raise
        return f"it cannot tell what it knows: {one_line(error)}"


def best(backends: Mapping[str, Known], kind: str, text: str, whitespace: int) -> Choice:
    """The first backend that keeps a form exactly, else the one that narrows it for the fewest reasons."""
    if kind == calls.KIND:
        return _best_of_calls(backends, calls.parsed(text), whitespace)
    read = _read(kind, text)
    found, refused = _judge_all(backends, read, whitespace)
    if found is None:
        raise _refusal(read, refused)
    return found


def _best_of_calls(backends: Mapping[str, Known], value: Any, whitespace: int) -> Choice:
    """The same for calls of tools: schemas that are not strict are given up where nobody can keep them."""
    loose: dict[int, str] = {}
    while True:
        written = calls.read(value, loose, normal_schema)
        narrowed = [
            f"{reason}, in the parameters of tool '{tool}'"
            for tool, normal in zip(written.tools, written.schemas, strict=True)
            for reason in _left_out(normal)
        ]
        if written.otherwise is not None:
            narrowed += _left_out(written.otherwise)
        read = _Read(
            "structural_tag",
            written.text,
            tuple(narrowed),
            schemas=written.schemas,
            tools=written.tools,
            loosened=written.loosened,
            otherwise=written.otherwise,
        )
        found, refused = _judge_all(backends, read, whitespace)
        if found is not None:
            return found
        judged, given_up = calls.given_up(value, refused.values(), loose)
        if not given_up:
            raise _refusal(read, refused)
        for index in given_up:
            own = [one for one in judged.reasons if f"{one.at}/".startswith(f"#/tags/{index}/")]
            loose[index] = _joined([read.shown(one) for one in own or judged.reasons])


def _judge_all(
    backends: Mapping[str, Known], read: _Read, whitespace: int
) -> tuple[Choice | None, dict[str, Judgement]]:
    """The best backend, or why each of them refuses."""
    spec = Spec(read.kind, read.text, whitespace)
    refused: dict[str, Judgement] = {}
    narrowed: list[Choice] = []
    for name, backend in backends.items():
        judged = _judged(backend, spec)
        if judged.verdict == "refused":
            refused[name] = judged
            continue
        reasons = tuple(dict.fromkeys((*read.loosened, *read.narrowed, *map(read.shown, judged.reasons))))
        verdict: Kept = "loosened" if read.loosened else "narrowed" if reasons else judged.verdict
        found = Choice(name, read.kind, read.text, read.unique_keys, verdict, reasons)
        if judged.verdict == "exact" and not read.narrowed:
            return found, {}
        narrowed.append(found)
    return min(narrowed, key=lambda one: len(one.reasons), default=None), refused


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"


def _text(asked: AskedForm, field: str) -> tuple[str, str]:
    """The kind of a form that a backend knows, and what was sent as one text, which can be written."""
    kind, text = _sent(asked, field)
    if not choice.writable(text):
        problem = f"{field} has half of a surrogate pair in it, which no text can have"
        raise RequestError(problem, field=field, code="invalid_grammar")
    return kind, text


def _sent(asked: AskedForm, field: str) -> tuple[str, str]:
    value = asked.value
    match asked.kind:
        case "json_object":
            if value is not True:
                raise _must_be("true or false", field, value)
            return "json_schema", _json(_ANY_OBJECT)
        case "json_schema" | "structural_tag" if isinstance(value, str):
            return asked.kind, value
        case "json_schema" if not isinstance(value, dict | bool):
            raise _must_be("a JSON Schema: an object, true or false, or the text of one", field, value)
        case "structural_tag" if not isinstance(value, dict):
            raise _must_be("an object, or the text of one", field, value)
        case "regex" | "ebnf":
            if not isinstance(value, str) or not value:
                raise _must_be("a text, and not empty", field, value)
            return asked.kind, value
    try:
        return asked.kind, _json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{field}: no JSON: {one_line(error)}", field=field, code="invalid_grammar") from None


def _must_be(allowed: str, field: str, value: object) -> RequestError:
    return RequestError(f"{field} = {shown(value)}: must be {allowed}", field=field)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _read(kind: str, text: str) -> _Read:
    """What was sent, in normal form. Raises `RequestError` with the place of what is wrong."""
    match kind:
        case "json_schema":
            normal = normal_schema(text)
            return _Read(kind, normal.text, tuple(_left_out(normal)), normal.open_keys, (normal,))
        case "regex":
            return _Read(kind, regex.text(regex.parse(text)))
        case "ebnf":
            return _Read(kind, ebnf.text(ebnf.parse(text)))
        case "choice":
            return _Read(kind, choice.normalise(json.loads(text)))
    return _read_tags(text)


def _read_tags(text: str) -> _Read:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise tags.TagError(f"no JSON: {one_line(error)}") from None
    schemas: list[Normal] = []

    def schema(value: object) -> str:
        normal = normal_schema(value)
        if normal.open_keys:  # beside free text nobody keeps count of an object's keys
            problem = 'an object may have keys that are not named, and a key twice; set "additionalProperties": false'
            raise RequestError(problem, code="invalid_grammar")
        schemas.append(normal)
        return normal.text

    normalised = tags.normalise(value, schema)
    narrowed = [f"{reason}, in tag {i}" for i, normal in enumerate(schemas) for reason in _left_out(normal)]
    return _Read("structural_tag", normalised, tuple(narrowed), False, tuple(schemas))


def _left_out(normal: Normal) -> Iterator[str]:
    return (f"{problem}, at {pointer}" for pointer, problem in normal.narrowed.items())


def _judged(one: Known, spec: Spec) -> Judgement:
    """A backend's judgement; one that fails at it refuses."""
    if isinstance(one.kinds, str):
        return Judgement.refused(one.kinds)
    if spec.kind not in one.kinds:
        return Judgement.refused(f"it knows no {spec.kind}")
    try:
        return one.backend.judge(spec)
    except BaseException as error:
        if not contained(error):
            raise
        return Judgement.refused(f"it cannot judge this: {one_line(error)}")


def _refusal(read: _Read, refused: Mapping[str, Judgement]) -> RequestError:
    """What every backend says; those that say the same together."""
    said: dict[str, list[str]] = {}
    for name, judged in refused.items():
        said.setdefault(_joined([read.shown(reason) for reason in judged.reasons]), []).append(name)
    each = "; ".join(f"{', '.join(names)}: {why}" for why, names in said.items())
    what = "these tool calls" if read.tools else f"this {read.kind}"
    return RequestError(f"no grammar backend can keep {what}: {each}", code="unsupported_grammar")


def _joined(reasons: Sequence[str]) -> str:
    """Different reasons, so many of them as one reads."""
    different = list(dict.fromkeys(reasons))
    more = f", and {len(different) - MAX_REASONS} more" if len(different) > MAX_REASONS else ""
    return ", ".join(different[:MAX_REASONS]) + more
