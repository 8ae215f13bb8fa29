"""Writes the package of a new plugin: complete, so that it installs and passes its tests before a line is changed.

`templates/` holds a plugin of each kind that does something small and right; what it does is the author's to change.
"""

import re
import string
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from rtk.config.models import PLUGIN_SECTIONS
from rtk.errors import PluginError, one_line
from rtk.plugin.host import NAME, installed
from rtk.plugin.info import KINDS, Kind, canonical


class Sketch(NamedTuple):
    """What the template of a kind says of itself."""

    object: str
    summary: str
    option: str
    """The one field of the options."""
    use: str
    """The end of the README."""
    requires: frozenset[str] = frozenset()
    imports: str = ""
    """What its options need of the standard library."""


SKETCHES: dict[Kind, Sketch] = {
    "eviction": Sketch(
        "Policy",
        "prefixes that were reused often enough go last",
        'keep_hits: int = Field(default=1, ge=1, description="hits from which on a prefix goes last")',
        "Then serve with it: `rtk serve --eviction $name --set eviction.$key.keep_hits=2`.",
    ),
    "schedule": Sketch(
        "Policy",
        "fewest uncached tokens first; waiting requests rise",
        'aging: float = Field(default=10.0, ge=0, description="tokens that a second of waiting counts for")',
        "Then serve with it: `rtk serve --schedule $name --set schedule.$key.aging=100`.",
        frozenset({"prefix_match"}),
    ),
    "attention": Sketch(
        "Backend",
        "plain attention, row by row",
        'in_double: bool = Field(default=False, description="compute in float64 whatever the type of the model")',
        "Then serve with it: `rtk serve --attention $name`.",
    ),
    "grammar": Sketch(
        "Backend",
        "answers that are one of a few texts",
        'max_choices: int = Field(default=1000, ge=1, description="most texts to choose from")',
        "rtk asks no grammar plugins yet: the contract and its suite come first.",
    ),
    "storage": Sketch(
        "Store",
        "pages in the memory of this process",
        'max_bytes: int = Field(default=1 << 28, ge=1, description="most bytes that pages take")',
        "rtk asks no storage plugins yet: the contract and its suite come first.",
    ),
    "observer": Sketch(
        "Watcher",
        "writes down how long each request took",
        'path: Path = Field(default=Path("requests.txt"), description="file that lines are added to")',
        "Then serve with it: `rtk serve --observe '[\"$name\"]' --set observe.$key.path=requests.txt`.",
        imports="from pathlib import Path\n\n",
    ),
}


def write_package(kind: str, name: str, into: Path) -> Path:
    """Write the folder of a new package and say which. Raises `PluginError` where the name cannot be had."""
    if kind not in KINDS:
        raise PluginError(f"unknown kind {kind!r}; kinds: {', '.join(KINDS)}")
    name = canonical(name)
    if not re.fullmatch(NAME, name):
        raise PluginError(
            f"{name!r} is no name of a plugin; write letters from a to z and digits, a letter first, with single "
            "dashes between words"
        )
    for section, keys in PLUGIN_SECTIONS.items():
        if keys.kind == kind and name.replace("-", "_") in keys.model_fields:
            raise PluginError(
                f"{section}.{name} is a key of rtk's own, so no plugin can be called so; choose another name"
            )
    if name in installed().names(kind):
        raise PluginError(
            f"{kind} plugin {name!r} is there, of {installed().get(kind, name).origin}; choose another name"
        )
    folder = into / f"rtk-{kind}-{name}"
    try:
        if folder.exists():
            raise PluginError(f"{folder} exists; choose another name or --into another folder")
        for path, text in _package(kind, name).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PluginError(
            f"{folder} cannot be written: {one_line(error)}; choose another name or --into another folder"
        ) from error
    return folder


def _package(kind: Kind, name: str) -> dict[str, str]:
    """The files, by their paths in the package's folder."""
    sketch = SKETCHES[kind]
    key = name.replace("-", "_")
    module = f"rtk_{kind}_{key}"
    words = {"kind": kind, "name": name, "key": key, "module": module}
    words |= {
        "distribution": f"rtk-{kind}-{name}",
        "entry_point": f"{kind}-{name}",
        "target": f"{module}.{sketch.object.lower()}",
        "object": sketch.object,
        "options": f"{sketch.object}Options",
        "option": sketch.option,
        "summary": sketch.summary,
        "imports": sketch.imports,
        "use": string.Template(sketch.use).substitute(words),
        "requires": _requires(sketch),
        "rtk_version": version("rtk-inference"),
    }

    def filled(template: str) -> str:
        text = (files("rtk.plugin") / "templates" / f"{template}.txt").read_text(encoding="utf-8")
        return string.Template(text).substitute(words)

    return {
        "pyproject.toml": filled("pyproject.toml"),
        "README.md": filled("README.md"),
        f"{module}/__init__.py": filled("init.py"),
        f"{module}/{sketch.object.lower()}.py": filled(f"{kind}.py"),
        f"tests/test_{sketch.object.lower()}.py": filled(f"{kind}_test.py"),
    }


def _requires(sketch: Sketch) -> str:
    names = ", ".join(f'"{name}"' for name in sorted(sketch.requires))
    return f"\n            requires=frozenset({{{names}}})," if names else ""
