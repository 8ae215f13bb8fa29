"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class PolicyOptions(Options):
    default_s: float | None = Field(
        None,
        gt=0,
        description="seconds from arrival that requests without a deadline are ordered by; null: they go last",
    )


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="edf",
            summary="earliest deadline first; ties: order of arrival",
            target="rtk_schedule_edf.policy:Policy",
            options=PolicyOptions,
        )
    ]
