"""The kernels: extend, decode over pieces of the keys, and the reduction that joins the pieces.

Scores are exponents of two: `scale` and `cap` come multiplied by log2(e) (see `backend.exponents`). K/V are read by
slot, whatever the page size, and nothing but visible positions is read. A loop adds keys to three running values of
each query: `peak` is the largest score so far, `total` the sum of 2 ** (score - peak), `acc` that of the values,
weighted so.

Where keys are latents, `rest_dim` is not 0: the first `head_dim` entries of a key are its value too, and are read once
for both; `rest_dim` further ones are not.
"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _load_queries(  # type: ignore[no-untyped-def]
    q,
    q_dim,
    own,
    head_dim: tl.constexpr,
    rest_dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
):
    """Of queries at the pointers `q`: what the first `head_dim` entries of keys are multiplied with, and the rest."""
    dims = tl.arange(0, block_d)
    query = tl.load(q[:, None] + dims[None, :] * q_dim, mask=own[:, None] & (dims < head_dim)[None, :], other=0.0)
    q_rest = query
    if rest_dim > 0:
        rest = tl.arange(0, block_r)
        q_rest = tl.load(
            q[:, None] + (head_dim + rest)[None, :] * q_dim, mask=own[:, None] & (rest < rest_dim)[None, :], other=0.0
        )
    return query, q_rest


@triton.jit  # type: ignore[untyped-decorator]
def _load_values(  # type: ignore[no-untyped-def]
    v,
    slot,
    there,
    v_slot,
    v_dim,
    v_head_dim: tl.constexpr,
    block_v: tl.constexpr,
):
    dims = tl.arange(0, block_v)
    inside = there[:, None] & (dims < v_head_dim)[None, :]
    return tl.load(v + slot[:, None] * v_slot + dims[None, :] * v_dim, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _add_keys(  # type: ignore[no-untyped-def]
    peak,
    total,
    acc,
    q,
    q_rest,
    k,
    v,
    slots,
    queries,
    start,
    stop,
    end,
    scale,
    cap,
    window,
    k_slot,
    k_dim,
    v_slot,
    v_dim,
    head_dim: tl.constexpr,
    rest_dim: tl.constexpr,
    v_head_dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    block_v: tl.constexpr,
    block_n: tl.constexpr,
    masked: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
):
    """Add the keys from `start` in steps of `block_n` up to `stop`; those from `end` on are not read.

    `masked` is False where every query sees every key. `queries` are positions; `k` and `v` point at the head.
    """
    dims = tl.arange(0, block_d)
    for at in range(start, stop, block_n):
        keys = at + tl.arange(0, block_n)
        there = keys < end
        slot = tl.load(slots + keys, mask=there, other=0).to(tl.int64)
        if rest_dim > 0:
            value = _load_values(v, slot, there, v_slot, v_dim, v_head_dim, block_v)
            rest = tl.arange(0, block_r)
            key = tl.load(
                k + slot[None, :] * k_slot + (head_dim + rest)[:, None] * k_dim,
                mask=there[None, :] & (rest < rest_dim)[:, None],
                other=0.0,
            )
            score = tl.dot(q, tl.trans(value), tl.dot(q_rest, key, input_precision="ieee"), input_precision="ieee")
        else:
            key = tl.load(
                k + slot[None, :] * k_slot + dims[:, None] * k_dim,
                mask=there[None, :] & (dims < head_dim)[:, None],
                other=0.0,
            )
            score = tl.dot(q, key, input_precision="ieee")
        score *= scale
        if capped:
            score = cap * (1 - 2 / (tl.exp2(score) + 1))  # cap * tanh
        if masked:
            seen = keys[None, :] <= queries[:, None]
            if windowed:
                seen = seen & (keys[None, :] > queries[:, None] - window)
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a query that has seen no key yet
        weight = tl.exp2(score - base[:, None])
        keep = tl.exp2(peak - base)
        if rest_dim == 0:
            value = _load_values(v, slot, there, v_slot, v_dim, v_head_dim, block_v)
        total = total * keep + tl.sum(weight, 1)
        acc = tl.dot(weight.to(value.dtype), value, acc * keep[:, None], input_precision="ieee")
        peak = higher
    return peak, total, acc


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    peak,
    total,
    q,
    q_rest,
    k,
    v,
    slots,
    queries,
    start,
    full,
    seen,
    end,
    scale,
    cap,
    window,
    k_slot,
    k_dim,
    v_slot,
    v_dim,
    head_dim: tl.constexpr,
    rest_dim: tl.constexpr,
    v_head_dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    block_v: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
):
    """Add the keys from `start` to `end`. Every query sees those from `full` to `seen`: whole blocks need no mask."""
    acc = tl.zeros([block_m, block_v], tl.float32)
    if windowed:
        peak, total, acc = _add_keys(
            peak, total, acc, q, q_rest, k, v, slots, queries, start, full, end, scale, cap, window,
            k_slot, k_dim, v_slot, v_dim, head_dim, rest_dim, v_head_dim,
            block_d, block_r, block_v, block_n, True, True, capped,
        )  # fmt: skip
    edge = full + tl.maximum(seen - full, 0) // block_n * block_n
    peak, total, acc = _add_keys(
        peak, total, acc, q, q_rest, k, v, slots, queries, full, edge, end, scale, cap, window,
        k_slot, k_dim, v_slot, v_dim, head_dim, rest_dim, v_head_dim,
        block_d, block_r, block_v, block_n, False, windowed, capped,
    )  # fmt: skip
    return _add_keys(
        peak, total, acc, q, q_rest, k, v, slots, queries, edge, end, end, scale, cap, window,
        k_slot, k_dim, v_slot, v_dim, head_dim, rest_dim, v_head_dim,
        block_d, block_r, block_v, block_n, True, windowed, capped,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def extend_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    sinks,
    table,
    work,
    scale,
    cap,
    window,
    heads,
    group,
    context,
    q_token,
    q_head,
    q_dim,
    k_slot,
    k_head,
    k_dim,
    v_slot,
    v_head,
    v_dim,
    out_token,
    out_head,
    sink_head,
    head_dim: tl.constexpr,
    rest_dim: tl.constexpr,
    v_head_dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    block_v: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
    sinking: tl.constexpr,
):
    """Program `i * heads + h`: query head h of the i-th block of queries.

    `work` [blocks, 4] has the first query's place in the batch, how many there are, their row of the table, and the
    first one's position. Neighbouring programs read the same K/V.
    """
    head = tl.program_id(0) % heads
    item = work + tl.program_id(0) // heads * 4
    token = tl.load(item).to(tl.int64)
    count = tl.load(item + 1)
    row = tl.load(item + 2).to(tl.int64)
    first = tl.load(item + 3)
    end = first + count
    k += (head // group).to(tl.int64) * k_head
    v += (head // group).to(tl.int64) * v_head
    slots = table + row * context

    offsets = tl.arange(0, block_m)
    own = offsets < count
    tokens = token + offsets
    queries = first + offsets
    query, q_rest = _load_queries(
        q + head.to(tl.int64) * q_head + tokens * q_token, q_dim, own, head_dim, rest_dim, block_d, block_r
    )
    peak = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    if sinking:
        sink = tl.load(sinks + head * sink_head).to(tl.float32) * 1.4426950408889634  # log2(e)
        peak = tl.zeros([block_m], tl.float32) + sink
        total += 1.0
    start = 0
    full = 0
    if windowed:
        start = tl.maximum(first - window + 1, 0)
        hidden = tl.maximum(end - window - start, 0)
        full = start + (hidden + block_n - 1) // block_n * block_n
    peak, total, acc = _attend(
        peak, total, query, q_rest, k, v, slots, queries, start, full, first + 1, end, scale, cap, window,
        k_slot, k_dim, v_slot, v_dim, head_dim, rest_dim, v_head_dim,
        block_d, block_r, block_v, block_m, block_n, windowed, capped,
    )  # fmt: skip

    v_dims = tl.arange(0, block_v)
    tl.store(
        out + head.to(tl.int64) * out_head + tokens[:, None] * out_token + v_dims[None, :],
        (acc / total[:, None]).to(out.dtype.element_ty),
        mask=own[:, None] & (v_dims < v_head_dim)[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def decode_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    parts,
    weights,
    table,
    work,
    scale,
    cap,
    kv_heads,
    group,
    context,
    q_token,
    q_head,
    q_dim,
    k_slot,
    k_head,
    k_dim,
    v_slot,
    v_head,
    v_dim,
    head_dim: tl.constexpr,
    rest_dim: tl.constexpr,
    v_head_dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    block_v: tl.constexpr,
    block_h: tl.constexpr,
    block_n: tl.constexpr,
    capped: tl.constexpr,
):
    """Program: a block of the query heads of one K/V head, over one piece of the keys of a row with one query.

    `work` [pieces, 4] has the query's place in the batch, its row of the table, and from where to where the piece
    goes. Into `parts` [pieces, q_heads, v_head_dim] goes the piece's attention, into `weights` [pieces, q_heads] the
    logarithm of its sum of weights.
    """
    blocks = tl.cdiv(group, block_h)
    piece = tl.program_id(0) // (kv_heads * blocks)
    block = tl.program_id(0) % (kv_heads * blocks)
    kv_head = block // blocks
    item = work + piece * 4
    token = tl.load(item).to(tl.int64)
    row = tl.load(item + 1).to(tl.int64)
    start = tl.load(item + 2)
    end = tl.load(item + 3)
    k += kv_head.to(tl.int64) * k_head
    v += kv_head.to(tl.int64) * v_head
    slots = table + row * context

    within = block % blocks * block_h + tl.arange(0, block_h)
    own = within < group
    heads = (kv_head * group + within).to(tl.int64)
    query, q_rest = _load_queries(
        q + token * q_token + heads * q_head, q_dim, own, head_dim, rest_dim, block_d, block_r
    )
    queries = tl.zeros([block_h], tl.int32) + (end - 1)
    peak = tl.full([block_h], float("-inf"), tl.float32)
    total = tl.zeros([block_h], tl.float32)
    peak, total, acc = _attend(
        peak, total, query, q_rest, k, v, slots, queries, start, start, end, end, scale, cap, 0,
        k_slot, k_dim, v_slot, v_dim, head_dim, rest_dim, v_head_dim,
        block_d, block_r, block_v, block_h, block_n, False, capped,
    )  # fmt: skip

    v_dims = tl.arange(0, block_v)
    to = piece.to(tl.int64) * kv_heads * group + heads
    tl.store(
        parts + to[:, None] * v_head_dim + v_dims[None, :],
        acc / total[:, None],
        mask=own[:, None] & (v_dims < v_head_dim)[None, :],
    )
    tl.store(weights + to, peak + tl.log2(total), mask=own)


@triton.jit  # type: ignore[untyped-decorator]
def join_kernel(  # type: ignore[no-untyped-def]
    parts,
    weights,
    out,
    sinks,
    rows,
    heads,
    out_token,
    out_head,
    sink_head,
    v_head_dim: tl.constexpr,
    block_h: tl.constexpr,
    block_v: tl.constexpr,
    sinking: tl.constexpr,
):
    """Program: a block of query heads of one row. `rows` [rows, 3] has its query's place, first piece and pieces."""
    blocks = tl.cdiv(heads, block_h)
    item = rows + tl.program_id(0) // blocks * 3
    token = tl.load(item).to(tl.int64)
    first = tl.load(item + 1)
    count = tl.load(item + 2)

    own = tl.program_id(0) % blocks * block_h + tl.arange(0, block_h)
    there = own < heads
    v_dims = tl.arange(0, block_v)
    inside = there[:, None] & (v_dims < v_head_dim)[None, :]
    peak = tl.full([block_h], float("-inf"), tl.float32)
    total = tl.zeros([block_h], tl.float32)
    if sinking:
        peak = tl.load(sinks + own * sink_head, mask=there, other=0.0).to(tl.float32) * 1.4426950408889634  # log2(e)
        total += 1.0
    acc = tl.zeros([block_h, block_v], tl.float32)
    at = first.to(tl.int64) * heads + own
    for _ in range(count):
        weight = tl.load(weights + at, mask=there, other=0.0)
        part = tl.load(parts + at[:, None] * v_head_dim + v_dims[None, :], mask=inside, other=0.0)
        higher = tl.maximum(peak, weight)
        keep = tl.exp2(peak - higher)
        join = tl.exp2(weight - higher)
        total = total * keep + join
        acc = acc * keep[:, None] + part * join[:, None]
        peak = higher
        at += heads
    tl.store(
        out + token * out_token + own[:, None].to(tl.int64) * out_head + v_dims[None, :],
        (acc / total[:, None]).to(out.dtype.element_ty),
        mask=inside,
    )
