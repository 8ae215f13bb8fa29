"""rtk: an LLM inference runtime in which every policy is a plugin.

Importing `rtk` is light: torch and transformers are imported when an engine is built.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtk.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from rtk.engine import Engine

        return Engine
    raise AttributeError(f"module 'rtk' has no attribute {name!r}")
