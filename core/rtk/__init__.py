"""rtk: an LLM inference runtime in which every policy is a plugin.

Importing `rtk` is light: torch and transformers are imported when an engine is built.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rtk.errors import ConfigError, ModelError, PluginError, RequestError, RtkError

if TYPE_CHECKING:
    from rtk.engine import Engine, Generation
    from rtk.schedule.messages import CacheReport, Finish, PinState, TokenLogprobs
    from rtk.serve.explanation import CacheExplanation
    from rtk.serve.protocol import Chat, Delta

__all__ = [
    "CacheExplanation",
    "CacheReport",
    "Chat",
    "ConfigError",
    "Delta",
    "Engine",
    "Finish",
    "Generation",
    "ModelError",
    "PinState",
    "PluginError",
    "RequestError",
    "RtkError",
    "TokenLogprobs",
]

_LATER = {
    "CacheExplanation": "rtk.serve.explanation",
    "CacheReport": "rtk.schedule.messages",
    "Chat": "rtk.serve.protocol",
    "Delta": "rtk.serve.protocol",
    "Engine": "rtk.engine",
    "Finish": "rtk.schedule.messages",
    "Generation": "rtk.engine",
    "PinState": "rtk.schedule.messages",
    "TokenLogprobs": "rtk.schedule.messages",
}
"""Where the names are that are imported on first use."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'rtk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
