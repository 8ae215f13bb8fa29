import numpy as np
import pytest

from rtk.cache.req_table import ReqTable


def test_row_0_is_padding():
    table = ReqTable(max_running=3, context_length=4)
    assert sorted(table.alloc() for _ in range(3)) == [1, 2, 3]
    assert table.free_rows == 0
    with pytest.raises(IndexError):
        table.alloc()


@pytest.mark.parametrize("row", [0, 2, 4])
def test_a_row_that_is_not_taken_cannot_be_released(row):
    table = ReqTable(max_running=3, context_length=4)
    assert table.alloc() == 1
    with pytest.raises(ValueError, match="is not taken"):
        table.release(row)
    table.release(1)
    assert table.free_rows == 3


def test_write_and_read_back():
    table = ReqTable(max_running=2, context_length=8)
    table.write(1, 2, np.array([5, 6, 7], dtype=np.int32))
    assert table.slots(1, 0, 6).tolist() == [0, 0, 5, 6, 7, 0]
    assert table.slots(2, 0, 8).tolist() == [0] * 8
