"""Every row of the worked examples that concern slots, tables and the tree."""

import json
from pathlib import Path

import numpy as np
import pytest

from rtk.cache.key import TOKEN_BYTES
from rtk.cache.pool import buffer_bytes, buffer_shape, pool_bytes
from rtk.cache.req_table import ReqTable
from rtk.cache.slots import SlotAllocator
from rtk.plugin import BufferSpec, KVLayout

NUMBERS = json.loads((Path(__file__).parents[1] / "data/worked_examples.json").read_text())
SEVEN = NUMBERS["seven_steps"]


def test_seven_steps(make_tree):
    tree = make_tree(pool=4000, page_size=SEVEN["page_size"])
    steps = {step["n"]: step for step in SEVEN["steps"]}
    system = list(range(SEVEN["system_prompt"]))
    a_prompt = [*system, *range(2000, 2000 + SEVEN["a_user"])]
    a_all = [*a_prompt, *range(4000, 4000 + SEVEN["a_total"] - len(a_prompt))]
    b_prompt = [*system, *range(3000, 3000 + SEVEN["b_user"])]
    a_next = [*a_all, *range(5000, 5150)]

    def books(step):
        return steps[step]["evictable"], steps[step]["protected"]

    def sizes(start=0):
        return [size for begin, size in tree.shape() if begin >= start]

    free = tree.allocator.free
    a = tree.acquire(a_prompt)
    assert (a.length, *tree.books()) == (steps[1]["hit"], *books(1))
    tree.fill(a, a_prompt)
    assert free - tree.allocator.free == steps[1]["allocated"] == steps[1]["prefill"]
    assert (sizes(), tree.books()) == (steps[2]["nodes"], books(2))

    tree.fill(a, a_all)
    a_slots = a.slots().tolist()
    a.release()
    assert (sizes(), tree.books()) == (steps[3]["nodes"], books(3))

    b = tree.acquire(b_prompt)
    assert (b.length, b.node.size) == (steps[4]["hit"], steps[4]["locked"])
    assert (sizes(), tree.books()) == ([*steps[4]["split"], SEVEN["a_total"] - 1500], books(4))
    again = tree.acquire(a_all)
    assert (again.slots().tolist() == a_slots) is steps[4]["slots_0_to_1699_unchanged"]
    again.release()

    tree.fill(b, b_prompt)
    assert (sizes(1200), tree.books()) == ([steps[5]["new_leaf"], 300, 200], books(5))
    assert (b.node.size, b.length) == (180, 1380)  # the lock moved to the leaf

    hit = tree.peek(a_next).length
    assert {"hit": hit, "prefill": len(a_next) - hit} == steps[7]["without_step_6"]
    before = len(tree.cache.log)
    assert tree.cache.evict(250) == steps[6]["freed"]
    assert [tree.cache.log._recent[i].tokens for i in range(before, len(tree.cache.log))] == steps[6]["order"]
    assert tree.books() == books(6)
    hit = tree.match(a_next)
    assert (hit, len(a_next) - hit) == (steps[7]["hit"], steps[7]["prefill"])
    b.release()


def test_seven_steps_leave_no_duplicate_prefill(make_tree):
    tree = make_tree(pool=4000)
    prompt = list(range(SEVEN["system_prompt"]))
    first, second = tree.acquire(prompt), tree.acquire(prompt)
    tree.fill(first, prompt)
    grown = tree.fill(second, prompt)
    assert (grown.start, len(grown.duplicates)) == (0, len(prompt))
    assert grown.canonical.tolist() == first.slots().tolist() == second.slots().tolist()
    assert tree.allocator.free == 4000 - len(prompt)
    first.release()
    second.release()


@pytest.mark.parametrize("page", [1, 16, 64])
def test_granularity(make_tree, page):
    numbers = NUMBERS["granularity"]
    tree = make_tree(pool=4096, page_size=page)
    shared = list(range(numbers["shared"]))
    tree.insert([*shared, *[7777] * 64])
    hit = tree.match([*shared, *[8888] * 64])
    assert hit == numbers[f"page_{page}"]
    assert numbers["shared"] - hit <= page - 1 and numbers["max_loss"] == "page_size - 1"


def test_kv_pool():
    numbers = NUMBERS["kv_pool"]
    head = (numbers["n_kv"], numbers["head_dim"])
    k, v = (BufferSpec(name, head, "bfloat16") for name in "kv")
    layout = KVLayout(numbers["layers"], numbers["page_size"], (k, v))
    assert buffer_shape(layout, k, numbers["slots"]) == tuple(numbers["k_buffer_shape"])
    assert buffer_bytes(layout, k, numbers["slots"]) == numbers["k_buffer_bytes"]
    assert numbers["k_buffer_bytes"] == int(np.prod(numbers["k_buffer_shape"])) * numbers["dtype_bytes"]
    assert layout.layers * len(layout.buffers) == numbers["buffers"]
    assert pool_bytes(layout, numbers["slots"]) == numbers["total_bytes"]
    rows = SlotAllocator(numbers["slots"], numbers["page_size"]).alloc(numbers["slots"])
    assert (int(rows[0]), int(rows[-1])) == (numbers["page_size"], numbers["k_buffer_shape"][0] - 1)


def test_req_to_token(make_tree):
    numbers, pool = NUMBERS["req_to_token"], NUMBERS["kv_pool"]
    table = ReqTable(max_running=numbers["rows"] - 1, context_length=numbers["max_context"])
    row = table.slots(1, 0, 1)
    assert table.nbytes == numbers["bytes"]
    assert row.dtype == np.dtype(numbers["dtype"])
    tree = make_tree()
    tree.insert(range(10))
    [node] = tree.cache.nodes()
    assert len(node.tokens) == len(node.packed) == 10 * TOKEN_BYTES
    assert (len(node.tokens) + len(node.packed)) // 10 + row.itemsize == numbers["index_bytes_per_token_tree_plus_row"]
    assert pool["total_bytes"] // pool["k_buffer_shape"][0] == numbers["kv_bytes_per_token"]
