"""Whether this machine has rtk's own linear layers."""

import shutil

import pytest
import torch

from rtk.native import COMPILERS

needs_panels = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512" or not any(map(shutil.which, COMPILERS)),
    reason="needs AVX-512 and a C++ compiler",
)
