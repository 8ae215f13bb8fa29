import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtk.cache.key import TOKEN_BYTES, AdapterRef, Namespace, common_prefix, pack, unpack

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(tokens)
def test_pack_and_unpack_are_inverse(ids):
    assert unpack(pack(ids)) == ids
    assert pack(np.array(ids, dtype=np.int64)) == pack(ids)


@given(
    st.lists(st.integers(0, 1), max_size=30),
    st.lists(st.integers(0, 1), max_size=30),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_common_prefix_is_the_first_difference(a, b, a_start, b_start):
    a, b = [7] * a_start + a, [9] * b_start + b
    room = min(len(a) - a_start, len(b) - b_start)
    expected = next((i for i in range(room) if a[a_start + i] != b[b_start + i]), room)
    same = common_prefix(pack(a), a_start * TOKEN_BYTES, pack(b), b_start * TOKEN_BYTES, room * TOKEN_BYTES)
    assert same == expected * TOKEN_BYTES


def test_tokens_that_share_bytes_do_not_match_in_part():
    assert common_prefix(pack([1]), 0, pack([257]), 0, TOKEN_BYTES) == 0  # the two agree in three of four bytes


def test_namespaces_that_join_to_one_string_stay_apart():
    pairs = [("alpha", None), (None, "alpha"), ("al", "pha"), ("alp", "ha"), ("alpha", "")]
    spaces = {Namespace(AdapterRef(name, 1) if name else None, salt) for name, salt in pairs}
    assert len(spaces) == len(pairs)
    assert Namespace(AdapterRef("beta", 1)) != Namespace(AdapterRef("beta", 2))
