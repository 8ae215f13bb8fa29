"""How a plugin describes itself: light data, collected at start-up without importing what it describes."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

API_VERSION = 1
"""The contract version of this host. A plugin built for another version is refused by name."""

Kind = Literal["eviction", "schedule", "attention", "grammar", "storage", "observer"]
KINDS: tuple[Kind, ...] = get_args(Kind)

CAPABILITIES: dict[str, str] = {
    "prefix_match": "the prefix cache, for matched lengths of waiting requests",
    "tree": "the prefix cache, for the part of its tree in which waiting requests end",
    "in_batch_check": "the marks of waiting requests that begin like an earlier one",
    "priority": "the priorities that clients give requests; they are named as without effect where nobody reads them",
    "routing_key": "the keys that clients group requests by",
    "tenant": "whose each request is",
}
"""What `Plugin.requires` may name, and what the host must have switched on, or keep account of, for it."""

NEED_CACHE = frozenset({"prefix_match", "tree"})
"""The capabilities that are gone where the prefix cache is switched off."""


class Options(BaseModel):
    """Base of every plugin's options: frozen, unknown keys refused.

    Their names are small letters, digits and underscores, and an alias, where there is one, is for reading and writing.
    Every option has a default, which it would take itself, and which JSON can hold.

    They live at `<kind>.<name>.<option>`; those of observers at `observe.<name>.<option>`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


def canonical(name: str) -> str:
    """The one spelling of a plugin or option name: dashes and underscores are the same."""
    return name.strip().lower().replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What an entry point of the `rtk` group answers for each plugin that it brings.

    `target` is `module:object` and is imported only when configuration asks for the plugin; the object is called with
    the validated options: `object(options)`.
    """

    kind: Kind
    name: str
    """What configuration chooses it by: letters from a to z and digits, a letter first, single dashes between words."""
    summary: str
    """One line of text."""
    target: str
    options: type[Options] = Options
    """The model of its options; every one has a default."""
    requires: frozenset[str] = field(default_factory=frozenset)
    """Of `CAPABILITIES`."""
    api: int = API_VERSION
    """The plugin API that it is built for."""
