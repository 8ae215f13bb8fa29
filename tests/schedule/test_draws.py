from rtk.schedule.draws import answer_seed, uniform


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


def test_each_answer_to_a_prompt_has_draws_of_its_own():
    seeds = [answer_seed(5, answer) for answer in range(128)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 128
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert answer_seed(5, 1) == seeds[1] != answer_seed(6, 1)
    assert answer_seed(-5, 0) == -5
    assert len({uniform(seed, position) for seed in seeds for position in range(20)}) == 128 * 20
