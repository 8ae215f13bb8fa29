import pytest
import torch
from rtk.plugin import LayerCall
from rtk.plugin.testing import NotApplicable, suite

from rtk_attention_loops import BackendOptions
from rtk_attention_loops.backend import Loops, attend, hidden


@pytest.mark.parametrize("check", suite("attention"), ids=str)
def test_any_block_keeps_the_contract(check):
    try:
        check(lambda: Loops(BackendOptions(block=2)))
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_a_window_hides_what_is_older_and_what_is_later():
    assert hidden(2, 4, 2, torch.device("cpu")).tolist() == [[True, False, False, True], [True, True, False, False]]


def test_half_precision_is_summed_in_float32():
    k = torch.zeros(4096, 1, 1, dtype=torch.float16)
    v = torch.ones(4096, 1, 1, dtype=torch.float16)
    assert attend(torch.zeros(1, 1, 1, dtype=torch.float16), k, v, LayerCall(0, 1.0)).item() == 1.0


def test_a_sink_takes_weight_and_gives_no_value():
    one = torch.ones(1, 1, 1)
    call = LayerCall(0, 0.0, sinks=torch.zeros(1))
    assert attend(one, one, one, call).item() == pytest.approx(0.5)
