"""Writes docs/keys.md, the reference of all configuration keys, from the tree that they are declared in."""

from collections.abc import Iterator
from pathlib import Path

from rtk.config.keys import Key, KeyTable, as_text
from rtk.config.tree import config_model
from rtk.plugin.host import installed
from rtk.plugin.registry import Registry

PAGE = Path(__file__).with_name("keys.md")
HEAD = """\
# Configuration keys

Written by `make docs` from the declarations; how keys are set is in [configuration.md](configuration.md). A key without
a flag is set by `--set`, a variable or a file.
"""


def page() -> str:
    """The page, with the plugins that come with rtk and no others."""
    own = [entry for entry in installed().all() if entry.origin.distribution == "rtk-inference"]
    return HEAD + "".join(_sections(Registry(own)))


def _sections(registry: Registry) -> Iterator[str]:
    table = KeyTable(config_model(registry))
    for section in table.sections:
        keys = [key for key in table if key.path.rpartition(".")[0] == section]
        if keys:
            yield f"\n## {section}\n\n| key | flag | value | default | meaning |\n|---|---|---|---|---|\n"
            yield from map(_row, keys)


def _row(key: Key) -> str:
    flag = f"`{key.flag}`" if key.flag else ""
    follows_the_machine = key.field.default_factory is not None and Path in key.types
    default = "the user's cache folder" if follows_the_machine else f"`{as_text(key.default)}`"
    about = " ".join(key.description.split()).replace("|", "\\|")
    return f"| `{key.path}` | {flag} | {key.allowed} | {default} | {about} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
