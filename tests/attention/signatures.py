"""What the packages that backends call are called with: the signatures of releases, read from their source.

    python tests/attention/signatures.py DISTRIBUTION VERSION FOLDER

writes `signatures/as_source/DISTRIBUTION-VERSION.json` from an unpacked wheel, or from the source that one is built
of. Nothing of it is imported. Tests make functions with these signatures, so that they need none of the packages.
"""

import ast
import functools
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

HERE = Path(__file__).parent / "signatures" / "as_source"
SOURCES = {
    "sgl-flash-mla": {
        "flash_mla.get_mla_metadata": "flash_mla/flash_mla_interface.py",
        "flash_mla.flash_mla_with_kvcache": "flash_mla/flash_mla_interface.py",
    },
    "sgl-kernel": {
        "sgl_kernel.flash_mla.get_mla_metadata": "sgl_kernel/flash_mla.py",
        "sgl_kernel.flash_mla.flash_mla_with_kvcache": "sgl_kernel/flash_mla.py",
    },
    "flashinfer-python": {
        "flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla": "flashinfer/mla/_core.py",
        **{
            f"flashinfer.BatchPrefillWithPagedKVCacheWrapper.{method}": "flashinfer/prefill.py"
            for method in ("__init__", "plan", "run")
        },
        **{  # `plan` passes on to `_plan_impl` what it does not name
            f"flashinfer.BatchDecodeWithPagedKVCacheWrapper.{method}": "flashinfer/decode.py"
            for method in ("__init__", "plan", "_plan_impl", "run")
        },
        **{
            f"flashinfer.mla.BatchMLAPagedAttentionWrapper.{method}": "flashinfer/mla/_batch_mla/_wrapper.py"
            for method in ("__init__", "plan", "run")
        },
        "flashinfer.merge_state": "flashinfer/cascade.py",
    },
}
"""Functions and methods as they are imported, with the file that defines each."""
EARLIER = {"flashinfer/mla/_batch_mla/_wrapper.py": "flashinfer/mla/_core.py"}
"""Where older releases define what is in such a file now."""


def signatures(release: str) -> dict[str, inspect.Signature]:
    """Those of one release, `DISTRIBUTION-VERSION`, by qualified name."""
    return {name: _signature(text) for name, text in json.loads((HERE / f"{release}.json").read_text()).items()}


def executing(signature: inspect.Signature, run: Callable[[SimpleNamespace], object]) -> Callable[..., object]:
    """A function of that signature: `run` gets every argument by its name, defaults included."""

    def function(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return run(SimpleNamespace(**bound.arguments))

    function.__signature__ = signature
    return function


@functools.cache
def _signature(text: str) -> inspect.Signature:
    made: dict[str, Callable[..., object]] = {}
    exec(f"from __future__ import annotations\ndef function{text}: ...", {"torch": torch}, made)
    return inspect.signature(made["function"])


def read(folder: Path, distribution: str) -> dict[str, str]:
    """Signatures as Python source, from the files that define them."""
    found = {}
    for name, file in SOURCES[distribution].items():
        *_, owner, last = name.split(".")
        path = folder / file
        body = ast.parse((path if path.exists() else folder / EARLIER[file]).read_text()).body
        if owner[0].isupper():
            body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
        *_, node = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == last)  # after overloads
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        found[name] = f"({ast.unparse(node.args)}){returns}"
    return found


if __name__ == "__main__":
    distribution, version, folder = sys.argv[1:]
    text = json.dumps(read(Path(folder), distribution), indent=1)
    (HERE / f"{distribution}-{version}.json").write_text(f"{text}\n")
