import pytest
import torch

from rtk.model.fused import fuse_layers
from rtk.model.linear import pack_linears
from rtk.model.probe import probe
from rtk.model.threads import one_thread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_comes_back(two_threads):
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 2


def test_what_runs_before_the_first_step_runs_in_one_thread(zoo, two_threads, monkeypatch):
    loaded = zoo.load("llama")
    forward, seen = loaded.model.forward, []

    def watched(**kwargs):
        seen.append(torch.get_num_threads())
        return forward(**kwargs)

    monkeypatch.setattr(loaded.model, "forward", watched)
    probe(loaded)
    fuse_layers(loaded)
    pack_linears(loaded)
    assert seen == [1] * len(seen)
    assert len(seen) > 4
    assert torch.get_num_threads() == 2
