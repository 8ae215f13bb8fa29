"""What the sampler is told about each request."""

import numpy as np

from rtk.plugin.testing.harness import Harness
from rtk.schedule.compose import sample_inputs
from rtk.schedule.draws import uniform


def test_how_requests_sample_their_next_token():
    h = Harness(end_tokens=frozenset({98, 99}))
    h.add("greedy", [1, 2], max_new_tokens=9, seed=7, min_new_tokens=2)
    h.add("drawn", [1, 2, 3], max_new_tokens=9, seed=7, temperature=0.5, top_p=0.25, top_k=5)
    h.add("all", [4], max_new_tokens=9, seed=8, temperature=2.0, top_k=-1)
    for position in range(4):
        requests = [h.scheduler._requests[rid] for rid in ("greedy", "drawn", "all")]
        asked = sample_inputs([(request, request.sampled) for request in requests])
        assert asked.temperature.tolist() == [0.0, 0.5, 2.0]
        assert asked.top_p.tolist() == [1.0, 0.25, 1.0]
        assert asked.top_k.tolist() == [0, 5, 0]
        assert asked.top_k.dtype == np.int32
        assert asked.uniform.tolist() == [0.0, uniform(7, position), uniform(8, position)]
        banned = {row: sorted(ids) for row, ids in asked.banned.items()}
        assert banned == ({0: [98, 99]} if position < 2 else {})
        h.step()


def test_each_of_several_samples_of_a_request_has_its_own_draw_and_its_own_bans():
    h = Harness(end_tokens=frozenset({99}))
    h.add("a", [1], max_new_tokens=9, seed=7, temperature=0.5, min_new_tokens=2)
    request = h.scheduler._requests["a"]
    asked = sample_inputs([(request, 1), (request, 2)])
    assert asked.uniform.tolist() == [uniform(7, 1), uniform(7, 2)]
    assert asked.banned == {0: (99,)}
