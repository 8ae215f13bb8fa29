"""The options of the in-batch prefix check, for policies that know what is cached.

Of waiting requests that begin alike, and of whose beginning little is cached, the first to arrive goes ahead and the
others to the end of the line: once it has run, they hit.
"""

from pydantic import Field

from rtk.plugin import Options


class InBatchOptions(Options):
    in_batch_check: int = Field(32, ge=0, description="requests are checked that hit at most so many tokens")
    in_batch_defer: int | None = Field(
        32,
        ge=1,
        description="they are put off if they share at least so many with an earlier waiting one; null: never",
    )
