import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtk.errors import ConfigError
from rtk.model.memory import GIB, MEM_FRACTION, PoolSize, cgroup_free, free_bytes, pool_size
from rtk.schedule.budget import Limits, resolve_max_new_tokens


def size(**changes) -> PoolSize:
    asked = {
        "free": 1_000_000,
        "device": "cpu",
        "mem_fraction": None,
        "pool_tokens": None,
        "bytes_per_slot": 100,
        "page_size": 1,
        "max_running": 1000,
        "context_length": 1000,
    }
    return pool_size(**{**asked, **changes})


def test_a_share_of_the_free_memory_less_the_padding_page():
    assert size().slots == 5000 - 1
    assert size(mem_fraction=0.2).slots == 2000 - 1
    assert size(mem_fraction=0.2, page_size=16).slots == (2000 // 16 - 1) * 16
    assert size(device="cuda").slots == int(10000 * MEM_FRACTION["cuda"]) - 1


def test_no_more_than_running_requests_can_fill():
    found = size(max_running=3, context_length=100, page_size=16)
    assert found.slots == 3 * 112 + 32
    assert "of which running requests can fill 368" in found.reason


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("prompt", [1, 16, 17, 99])
def test_one_request_may_use_the_whole_context(page_size, prompt):
    slots = size(max_running=1, context_length=100, page_size=page_size).slots
    limits = Limits(100, slots, page_size, max_running=1, max_prefill_tokens=1)
    assert resolve_max_new_tokens(prompt, 100 - prompt, limits) == 100 - prompt


def test_tokens_that_are_asked_for_come_in_whole_pages():
    assert size(pool_tokens=100).slots == 100
    assert size(pool_tokens=100, page_size=16).slots == 112
    assert size(pool_tokens=9999).slots == 9999


@pytest.mark.parametrize(("page_size", "least"), [(1, 4), (3, 9), (16, 48)])
def test_the_smallest_pool_holds_the_smallest_request(page_size, least):
    slots = size(pool_tokens=least, page_size=page_size).slots
    assert slots == least
    assert resolve_max_new_tokens(1, 1, Limits(100, slots, page_size, max_running=1, max_prefill_tokens=1)) == 1
    with pytest.raises(ConfigError, match=f"would hold {least - page_size} tokens, the smallest request needs {least}"):
        size(pool_tokens=least - page_size, page_size=page_size)


def test_the_reason_is_one_line_of_arithmetic():
    found = size(free=8 * GIB, bytes_per_slot=46080, page_size=16)
    assert found.reason == "8.00 GiB free x 0.5 / 46,080 B - a page of 16 = 93,184 tokens"
    found = size(free=8 * GIB, bytes_per_slot=46080, page_size=16, pool_tokens=1000)
    assert found.reason == "1,008 tokens asked for, + a page of 16, x 46,080 B = 0.04 GiB of 8.00 GiB free"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_tokens": 10_000}, "cache.pool_tokens = 10000: 10,000 tokens asked for"),
        ({"free": 0}, "would hold 0 tokens"),
    ],
)
def test_a_pool_that_is_too_small_or_too_large_is_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        size(**changes)
    assert "\n" not in str(error.value)


@given(
    free=st.integers(0, 10**12),
    fraction=st.floats(0.01, 1),
    bytes_per_slot=st.integers(1, 10**6),
    page_size=st.sampled_from([1, 16, 64]),
    max_running=st.integers(1, 512),
    context_length=st.integers(1, 10**6),
)
def test_the_pool_fits_into_its_share(free, fraction, bytes_per_slot, page_size, max_running, context_length):
    try:
        found = size(
            free=free,
            mem_fraction=fraction,
            bytes_per_slot=bytes_per_slot,
            page_size=page_size,
            max_running=max_running,
            context_length=context_length,
        )
    except ConfigError:
        return
    assert found.slots % page_size == 0
    assert (found.slots + page_size) * bytes_per_slot <= free * fraction
    assert found.slots < max_running * (context_length + page_size) + 2 * page_size


def group(folder: Path, limit: str, used: int, inactive: int, names=("memory.max", "memory.current", "inactive_file")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {inactive}\n")


def test_limits_of_cgroup_v2_and_its_ancestors(tmp_path):
    (tmp_path / "proc").write_bytes(b"0::/a/\xc3\xa9\xff\n")
    group(tmp_path / "root" / "a" / os.fsdecode(b"\xc3\xa9\xff"), "1000", 400, 100)
    group(tmp_path / "root" / "a", "900", 950, 0)
    group(tmp_path / "root", "max", 5, 5)
    assert list(cgroup_free(tmp_path / "proc", tmp_path / "root")) == [700, 0]


def test_limits_of_cgroup_v1_whose_path_is_the_hosts(tmp_path):
    (tmp_path / "proc").write_text("5:cpu,cpuacct:/x\n4:memory:/docker/123\n3:name=memory:/y\n0::/\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    group(tmp_path / "root" / "memory", "2000", 500, 250, names)
    assert list(cgroup_free(tmp_path / "proc", tmp_path / "root")) == [1750]


def test_no_cgroups_no_limits(tmp_path):
    assert list(cgroup_free(tmp_path / "missing", tmp_path)) == []


def test_this_machine_has_free_memory():
    assert 0 < free_bytes(torch.device("cpu")) < 2**50
