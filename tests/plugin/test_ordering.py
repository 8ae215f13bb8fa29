"""An order that is read in part is the beginning of the order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.plugin.ordering import AT_ONCE, Ordering

SIZES = st.sampled_from([0, 1, 63, 64, 65, 1024, 1500])
KINDS = (
    lambda rng, n: rng.integers(0, 3, n),
    lambda rng, n: rng.random(n) < 0.5,
    lambda rng, n: rng.random(n),
    lambda rng, n: rng.choice([-np.inf, 0.0, -0.0, np.inf], n),
    lambda rng, n: np.zeros(n, dtype=np.uint8),
    lambda rng, n: -np.arange(n),
)


@given(
    n=SIZES,
    seed=st.integers(0, 99),
    kinds=st.lists(st.sampled_from(KINDS), max_size=3),
    holds=st.booleans(),
)
def test_it_is_a_sort_by_all_keys_and_then_by_position(n, seed, kinds, holds):
    rng = np.random.default_rng(seed)
    keys = tuple(kind(rng, n) for kind in kinds)
    held = rng.random(n) < 0.4 if holds else None
    ordering = Ordering(n, keys, held)
    left = [i for i in range(n) if held is None or not held[i]]
    assert list(ordering) == sorted(left, key=lambda i: (*(key[i] for key in keys), i))
    assert len(ordering) == len(left)
    assert sorted([*left, *ordering.left_out.tolist()]) == list(range(n))


@pytest.mark.parametrize("taken", [1, AT_ONCE[0], AT_ONCE[0] + 1, AT_ONCE[1] + 1])
def test_who_reads_a_part_reads_the_beginning(taken):
    key = np.random.default_rng(1).integers(0, 50, 5000)
    beginning = [i for i, _ in zip(Ordering(5000, (key,)), range(taken), strict=False)]
    assert beginning == np.argsort(key, kind="stable")[:taken].tolist()
