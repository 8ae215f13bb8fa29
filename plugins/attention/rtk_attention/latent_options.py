"""Options of the backends that leave rows of many queries to another one."""

from typing import Literal

from pydantic import Field

from rtk.plugin import Options


class LatentOptions(Options):
    extend: Literal["triton", "flashinfer"] = Field(
        "triton", description="attention plugin that computes the rows of a step that have more than a few queries"
    )
