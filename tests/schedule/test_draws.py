from rtk.schedule.draws import uniform


def test_draws_are_the_same_everywhere():
    # The first two outputs of SplitMix64 from state 0, as published; any change would change every seeded text.
    assert uniform(0, 0) == (0xE220A8397B1DCDAF >> 11) * 2.0**-53
    assert uniform(0, 1) == (0x6E789E6AA1B965F4 >> 11) * 2.0**-53
    assert [uniform(7, 0), uniform(-1, 3)] == [0.5243459416779314, 0.02857293647511372]


def test_draws_fill_the_unit_interval_evenly():
    draws = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert all(0 <= draw < 1 for draw in draws)
    buckets = [sum(int(draw * 10) == bucket for draw in draws) for bucket in range(10)]
    assert all(900 < count < 1100 for count in buckets)
    assert len(set(draws)) == len(draws)
