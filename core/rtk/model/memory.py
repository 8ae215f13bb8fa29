"""How many slots the KV pool gets: what is free, what was asked for, what requests can use at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from rtk.errors import ConfigError
from rtk.schedule.budget import ceil_page, charge

MEM_FRACTION = {"cpu": 0.5, "cuda": 0.85}
"""Share of the free memory that the pool takes on its own account. A CPU's memory belongs to other programs too; on a
GPU the rest is for activations, which are not allocated yet when this is decided."""
GIB = 1024**3
_SLOT_BYTES = 4


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The decision, and the arithmetic behind it in one line."""

    slots: int
    """A multiple of the page size; the padding page comes on top."""
    reason: str


def pool_size(
    *,
    free: int,
    device: str,
    mem_fraction: float | None,
    pool_tokens: int | None,
    bytes_per_slot: int,
    page_size: int,
    max_running: int,
    context_length: int,
) -> PoolSize:
    """Decide on the pool; pure. `free` is in bytes, `device` a device type.

    With `pool_tokens`, that many, rounded up to whole pages. Otherwise `mem_fraction` of the free memory, capped at
    what `max_running` requests of `context_length` tokens can fill. Raises `ConfigError` where the free memory does
    not hold what was asked for, or where the pool is too small for any request.
    """
    if pool_tokens is not None:
        size = _asked_for(pool_tokens, free, bytes_per_slot, page_size)
    else:
        share = share_of_free(device) if mem_fraction is None else mem_fraction
        cap = useful_tokens(max_running, context_length, page_size)
        size = _share_of(free, share, bytes_per_slot, page_size, cap)
    least = ceil_page(charge(1, 1, page_size) + 1, page_size)  # a charge stays below the pool
    if size.slots < least:
        raise ConfigError(
            f"the KV pool would hold {size.slots} tokens, the smallest request needs {least}: {size.reason}; "
            "free memory, raise cache.mem_fraction or set cache.pool_tokens"
        )
    return size


def share_of_free(device: str) -> float:
    """The share of the free memory that the pool takes on a device of this type where none is set."""
    return MEM_FRACTION.get(device, MEM_FRACTION["cuda"])


def useful_tokens(max_running: int, context_length: int, page_size: int) -> int:
    """What so many running requests can fill; a charge counts up to two pages more."""
    return max_running * ceil_page(context_length, page_size) + 2 * page_size


def check_tables(free: int, max_running: int, context_length: int) -> None:
    """Raises `ConfigError` where the free bytes do not hold the tables of slots: scheduler and runner have one each."""
    needed = 2 * (max_running + 1) * context_length * _SLOT_BYTES
    if needed > free:
        raise ConfigError(
            f"schedule.max_running = {max_running}: tables of slots for so many requests of {context_length:,} tokens "
            f"take {_gib(needed)}, but {_gib(free)} are free; lower it, or set model.context_length"
        )


def _asked_for(tokens: int, free: int, bytes_per_slot: int, page_size: int) -> PoolSize:
    slots = ceil_page(tokens, page_size)
    needed = (slots + page_size) * bytes_per_slot
    reason = f"{slots:,} tokens asked for, + a page of {page_size}, x {bytes_per_slot:,} B = {_gib(needed)}"
    if needed > free:
        raise ConfigError(f"cache.pool_tokens = {tokens}: {reason}, but {_gib(free)} are free; ask for fewer")
    return PoolSize(slots, f"{reason} of {_gib(free)} free")


def _share_of(free: int, share: float, bytes_per_slot: int, page_size: int, cap: int) -> PoolSize:
    fitting = max(0, int(free * share) // (bytes_per_slot * page_size) - 1) * page_size
    reason = f"{_gib(free)} free x {share:g} / {bytes_per_slot:,} B - a page of {page_size} = {fitting:,} tokens"
    if fitting <= cap:
        return PoolSize(fitting, reason)
    return PoolSize(cap, f"{reason}, of which running requests can fill {cap:,} ({_gib(cap * bytes_per_slot)})")


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def free_bytes(device: torch.device) -> int:
    """Memory that this process may still take on a device; on a CPU also within the limits of its cgroups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return min([int(psutil.virtual_memory().available), *cgroup_free()])


def cgroup_free(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Bytes left under each memory limit that applies to this process, its own and its ancestors'; v1 and v2.

    File pages that the kernel would give up count as free.
    """
    try:
        lines = proc.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _left(root / "memory", path, limit, usage, "total_inactive_file")


def _left(base: Path, path: str, limit: str, usage: str, inactive: str) -> Iterator[int]:
    """From the group at `path` up to the root. In a container the path may be the host's: only the root exists then."""
    parts = [part for part in path.split("/") if part]
    for depth in range(len(parts), -1, -1):
        folder = base.joinpath(*parts[:depth])
        try:
            most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):  # no such file here, or "max": no limit
            continue
        yield max(0, most - used + int(stat.get(inactive, 0)))
