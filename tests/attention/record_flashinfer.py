"""Writes down the signatures of the installed FlashInfer, for the stand-in: python tests/attention/record_flashinfer.py

FlashInfer can be imported without a GPU; `pip install --no-deps flashinfer-python==VERSION` with einops, ninja,
tabulate, nvidia-ml-py and apache-tvm-ffi is enough for it.
"""

import inspect
import json
from functools import reduce
from pathlib import Path

HERE = Path(__file__).parent / "signatures"
NAMES = (
    "BatchPrefillWithPagedKVCacheWrapper.__init__",
    "BatchPrefillWithPagedKVCacheWrapper.plan",
    "BatchPrefillWithPagedKVCacheWrapper.run",
    "BatchDecodeWithPagedKVCacheWrapper.__init__",
    "BatchDecodeWithPagedKVCacheWrapper._plan_impl",  # `plan` passes on what it does not name
    "BatchDecodeWithPagedKVCacheWrapper.plan",
    "BatchDecodeWithPagedKVCacheWrapper.run",
    "mla.BatchMLAPagedAttentionWrapper.__init__",
    "mla.BatchMLAPagedAttentionWrapper.plan",
    "mla.BatchMLAPagedAttentionWrapper.run",
    "merge_state",
)


def signatures(library):
    """By name, every parameter as (name, kind, whether it can be left out)."""
    found = {name: inspect.signature(reduce(getattr, name.split("."), library)) for name in NAMES}
    return {
        name: [[p.name, p.kind.name, p.default is not p.empty] for p in signature.parameters.values()]
        for name, signature in found.items()
    }


if __name__ == "__main__":
    import flashinfer
    import flashinfer.mla

    HERE.mkdir(exist_ok=True)
    told = json.dumps(signatures(flashinfer), indent=None, separators=(", ", ": ")).replace('"], ', '"],\n  ')
    lines = told.replace("{", "{\n").replace("]], ", "]],\n").replace("}", "\n}")
    (HERE / f"flashinfer-{flashinfer.__version__}.json").write_text(lines + "\n")
