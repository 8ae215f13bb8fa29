"""Describes the plugin. Imported whenever rtk starts; what does the work is imported only where it is chosen."""

from pydantic import Field

from rtk.plugin import Options, Plugin, hookimpl


class PolicyOptions(Options):
    tokens_per_s: float = Field(
        default=100.0,
        ge=0.001,
        allow_inf_nan=False,
        description="tokens that one request gets done in a second, by assumption",
    )


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="slack",
            summary="least slack first: time to the deadline, less the work that is left",
            target="rtk_schedule_slack.policy:Policy",
            options=PolicyOptions,
            requires=frozenset({"prefix_match"}),
        )
    ]
