"""Runs in a process of its own, in triton's interpreter: parts of the contract suite, and cases beyond it.

A kernel that reads or writes where it should not would take the tests' process with it. There is no bfloat16: the
interpreter keeps it as integers, and calculates with those.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from rtk.plugin import KVShape
from rtk.plugin.testing import NotApplicable, suite
from rtk.plugin.testing.attention_cases import Case
from rtk.plugin.testing.attention_scene import Scene
from rtk_attention.triton import TritonOptions
from rtk_attention.triton.backend import TritonAttention

LONG = {  # checks that take more than a second; the kernels read by slot, whatever the page size
    "equals the oracle: long decode",
    "equals the oracle: long chunk",
    "equals the oracle: told and long, slots in order",
    "equals the oracle: window, long chunk",
    "equals the oracle: mla, long chunk",
    "equals the oracle: mla, page 64",
    "equals the oracle: mla, a told prefix, page 64",
}
ALL = {"window": 40, "softcap": 5.0, "sinks": True}
ROWS = ((1, 300), (3, 150), (1, 1), (70, 70), (1, 130))


class Interpreted(TritonAttention):
    """As if the CPU had that many multiprocessors."""

    capabilities = replace(
        TritonAttention.capabilities, devices=frozenset({"cpu"}), dtypes=frozenset({"float32", "float16"})
    )

    def multiprocessors(self, device: torch.device) -> int:
        return 8


def cases(*, few: bool):
    """Head dimensions, groups, types and features: each in at least one case of the few, all together otherwise."""
    dims = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256))
    heads = ((1, 20), (2, 2), (2, 6))
    features = ({}, ALL, {"softcap": 5.0}, {"sinks": True}, {"window": 40})
    if few:
        pairs = zip(dims, heads * 2, (*features, ALL), ("float32", "float16") * 3, strict=True)
    else:
        pairs = ((d, h, f, t) for d in dims for h in heads for f in features for t in ("float32", "float16"))
    shapes = [(KVShape(1, kv, *dims, q), asked, dtype) for dims, (kv, q), asked, dtype in pairs]
    if few:
        shapes.append((latent(256, 32, 20), ALL, "float16"))
    else:
        latents = [latent(*sizes) for sizes in ((512, 64, 4), (512, 64, 40), (256, 64, 16), (256, 32, 20), (16, 8, 3))]
        shapes += [(s, asked, dtype) for s in latents for asked in features for dtype in ("float32", "float16")]
    for shape, asked, dtype in shapes:
        yield Case(name=f"{shape} {dtype} {asked}", shape=shape, rows=ROWS, dtype=dtype, **asked)


def latent(value: int, rest: int, q_heads: int) -> KVShape:
    """A latent of that many entries that are the value, and of some that are not."""
    return KVShape(1, 1, value + rest, value, q_heads, mla=True)


def run(*, few: bool) -> Iterator[str]:
    """One line for each check and case. Raises where one fails."""
    backend = Interpreted(TritonOptions())
    for check in suite("attention"):
        if few and (not check.quick or check.name in LONG):
            continue
        try:
            check(lambda: backend)
        except NotApplicable as reason:
            yield f"skipped {check.name}: {reason}"
        else:
            yield f"passed {check.name}"
    for case in cases(few=few):
        scene = Scene(backend, case)
        for row, got in enumerate(scene.run()):
            scene.assert_close(got, scene.expected(row), f"row {row} {case.rows[row]}")
        yield f"passed {case.name}"


if __name__ == "__main__":
    for line in run(few=sys.argv[1] == "few"):
        sys.stdout.write(f"{line}\n")
