"""Writes the generated parts of the pages beside it: what the contracts say of themselves, and the list of names.

    python docs/plugins/generate.py [--let-names-go]

A part stands between `<!-- generated: WHAT -->` and `<!-- end -->`. tests/test_docs.py compares.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from rtk.plugin.grammar import SPEC_KINDS
from rtk.plugin.info import CAPABILITIES
from rtk.plugin.testing import suite

HERE = Path(__file__).parent
WIDTH = 120
PROMISED = {
    "rtk.plugin": None,
    "rtk.plugin.grammar": ("SPEC_KINDS", "read_row", "write_row"),
    "rtk.plugin.testing": None,
    "rtk.plugin.testing.harness": ("Harness", "count_up", "digest"),
    "rtk.plugin.testing.toys": ("Choices", "Memory", "Recorder"),
    "rtk.plugin.testing.trace": ("Outcome", "Request", "conversations", "read", "replay"),
}
"""The modules that plugin authors may import from, with the names; None: all of `__all__`."""


def contract(module: str, *classes: str) -> str:
    """Classes of a module, with their documented members."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return "\n\n".join(_class(found[name]) for name in classes)


def _class(node: ast.ClassDef) -> str:
    lines = [f"### `{node.name}`", _prose(ast.get_docstring(node) or "")]
    members = [_item(signature, doc) for signature, doc in _members(node)]
    return "\n\n".join(lines) + ("\n\n" + "\n".join(members) if members else "")


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Public fields and methods with their docstrings; a field's stands below it."""
    for member, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if member.target.id.startswith("_"):
                continue
            value = f" = {ast.unparse(member.value)}" if member.value else ""
            text = f"{member.target.id}: {ast.unparse(member.annotation)}{value}"
            yield re.sub(r" = field\(default_factory=\w+\)", "", text), _string(following)
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            yield _signature(member), ast.get_docstring(member) or ""


def _signature(method: ast.FunctionDef) -> str:
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(method.args))
    returns = f" -> {ast.unparse(method.returns).strip(chr(39))}" if method.returns else ""
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in method.decorator_list):
        return f"@property {method.name}: {returns.removeprefix(' -> ')}"
    return f"{method.name}({arguments}){returns}"


def _string(node: ast.stmt | None) -> str:
    value = node.value if isinstance(node, ast.Expr) else None
    return inspect.cleandoc(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _item(signature: str, doc: str) -> str:
    return f"- `{signature}`" if not doc else f"- `{signature}`:\n" + textwrap.indent(_prose(doc), "  ")


def _prose(doc: str) -> str:
    """Paragraphs, each filled anew."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
    return "\n\n".join(textwrap.fill(text, WIDTH - 2, break_long_words=False) for text in paragraphs)


def checks(kind: str) -> str:
    """The suite of a kind, as a table; checks that differ in their cases only are one row."""
    rows: dict[str, tuple[str, bool]] = {}
    for check in suite(kind):  # type: ignore[arg-type]
        name = check.name.partition(":")[0] + (": …" if ":" in check.name else "")
        rows.setdefault(name, (check.about, check.quick))
    lines = (f"| {name} | {about} | {'yes' if quick else ''} |" for name, (about, quick) in rows.items())
    return "\n".join(["| check | what it looks at | quick |", "|---|---|---|", *lines])


def capabilities() -> str:
    """What a plugin may require."""
    rows = (f"| `{name}` | {what} |" for name, what in CAPABILITIES.items())
    return "\n".join(["| name | what the host switches on, or keeps account of |", "|---|---|", *rows])


def spec_kinds() -> str:
    """The kinds of specs, and what the text of each is."""
    rows = (f"| `{name}` | {what} |" for name, what in SPEC_KINDS.items())
    return "\n".join(["| kind | the text is |", "|---|---|", *rows])


def names() -> str:
    """Every promised name with its public members, one a line."""
    lines: list[str] = []
    for module, chosen in PROMISED.items():
        found = importlib.import_module(module)
        for name in chosen or sorted(found.__all__):
            lines += _lines(found, name)
    return "\n".join(["```", *lines, "```"])


def _lines(module: ModuleType, name: str) -> Iterator[str]:
    value, full = getattr(module, name), f"{module.__name__}.{name}"
    if not inspect.isclass(value):
        yield f"{full}{_parameters(value)}"
        return
    yield full
    for member in sorted(
        {member for base in value.__mro__ if base.__module__.startswith("rtk.") for member in _own(base)}
    ):
        answer = None if member in value.__annotations__ else inspect.getattr_static(value, member)
        function = answer.__func__ if isinstance(answer, classmethod | staticmethod) else answer
        yield f"{full}.{member}{_parameters(function)}"


def _own(base: type) -> set[str]:
    """What a class of ours defines: not what pydantic or the standard library adds to it."""
    annotated = set(inspect.get_annotations(base))
    defined = {name for name, value in vars(base).items() if inspect.isroutine(value) or isinstance(value, property)}
    made = {"model_config", "model_post_init"}
    return {name for name in annotated | defined if not name.startswith("_")} - made


def _parameters(function: object) -> str:
    """As a caller needs them; after `*` by keyword only."""
    if not inspect.isfunction(function):
        return ""
    texts: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        if one.name not in ("self", "cls"):
            texts.append({one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name)
    return f"({', '.join(texts)})"


PARTS: dict[str, Callable[[], str]] = {
    "description": lambda: contract("rtk.plugin.info", "Plugin", "Options"),
    "hooks": lambda: contract("rtk.plugin.spec", "RtkSpec"),
    "capabilities": capabilities,
    "eviction": lambda: contract("rtk.plugin.eviction", "EvictionPolicy", "NodeView"),
    "schedule": lambda: contract(
        "rtk.plugin.schedule", "SchedulePolicy", "RequestView", "Columns", "ScheduleContext", "TreeView", "Progress"
    ),
    "attention": lambda: contract(
        *("rtk.plugin.attention", "AttentionBackend", "Capabilities", "BatchView", "SharedRun", "LayerCall"),
        *("KVShape", "KVLayout", "BufferSpec", "Workspace"),
    ),
    "grammar": lambda: contract(
        "rtk.plugin.grammar", "GrammarBackend", "Matcher", "Spec", "Judgement", "Reason", "Vocabulary"
    ),
    "spec kinds": spec_kinds,
    "storage": lambda: contract("rtk.plugin.storage", "Storage"),
    **{f"{kind} checks": lambda kind=kind: checks(kind) for kind in ("eviction", "schedule", "attention")},  # type: ignore[misc]
    "observer": lambda: contract("rtk.plugin.observer", "Observer", "StepReport", "RequestReport"),
    **{f"{kind} checks": lambda kind=kind: checks(kind) for kind in ("grammar", "storage", "observer")},  # type: ignore[misc]
    "names": names,
}


def filled(page: str) -> str:
    """A page with its generated parts made anew."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- generated: ([a-z ]+) -->)\n.*?(<!-- end -->)", part, page, flags=re.DOTALL)


def main(arguments: Sequence[str]) -> None:
    """Write all pages; a promised name that is gone stops that, unless it is meant."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(HERE.glob("*.md"))}
    new = {page: filled(text) for page, text in pages.items()}
    for page, text in pages.items():
        gone = sorted(set(_promises(text)) - set(_promises(new[page])))
        if gone and "--let-names-go" not in arguments:
            sys.exit(f"promised and gone: {', '.join(gone)}; see 'For how long' in names.md, and --let-names-go")
    for page, text in new.items():
        page.write_text(text, encoding="utf-8")


def _promises(page: str) -> list[str]:
    found = re.search(r"<!-- generated: names -->\n```\n(.*?)```", page, re.DOTALL)
    return found[1].splitlines() if found else []


if __name__ == "__main__":
    main(sys.argv[1:])
