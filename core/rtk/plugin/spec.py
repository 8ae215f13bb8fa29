"""The hooks of rtk. They run at start-up; nothing on a hot path goes through pluggy."""

from collections.abc import Sequence

import pluggy

from rtk.plugin.info import Plugin

PROJECT = "rtk"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class RtkSpec:
    """Every hook that a plugin module may implement."""

    @hookspec
    def rtk_plugins(self) -> Sequence[Plugin]:
        """Describe the plugins of this module.

        Called once per process, right after the entry point is loaded. Must be cheap: no torch, no I/O. May return
        several descriptions, of several kinds; an empty sequence is allowed.
        """
        raise NotImplementedError  # pragma: no cover - a specification has no body
