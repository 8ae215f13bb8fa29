"""Stands for FlashInfer on a CPU: what is passed is bound to the real signatures, checked as the real one does or would
have to, and attended to in torch by nothing but these arguments.

What a kernel loads and then hides is multiplied by zero: NaN in a slot that is passed makes the output NaN.
"""

import inspect
import math
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pkgutil import resolve_name
from types import ModuleType

import torch
from signatures import signatures

RELEASES = ("flashinfer-python-0.6.18.post1", "flashinfer-python-0.7.4")
TILE = 64
"""Rows, and keys, of a tile of the MLA kernels."""


def by_release():
    """Signatures by release and name: the recorded ones, and those of an installed FlashInfer."""
    found = {release: signatures(release) for release in RELEASES}
    if find_spec("flashinfer"):
        found["installed"] = {name: inspect.signature(resolve_name(name)) for name in found[RELEASES[0]]}
    return found


SIGNATURES = by_release()


def bind(name, *args, **options):
    """The arguments by name, where every version takes them."""
    for by_name in SIGNATURES.values():
        bound = by_name[f"flashinfer.{name}"].bind(*args, **options)
    return {k: v for k, v in bound.arguments.items() if k != "self"}


def refuse(problem, message):
    if problem:
        raise ValueError(message)


def kept(tensor, name, length=None):
    """A copy, as planning makes one on the device; an array of integers as kernels read them."""
    refuse(tensor.dtype != torch.int32, f"{name} is {tensor.dtype}, not int32")
    refuse(tensor.dim() != 1 or not tensor.is_contiguous(), f"{name} is no plain array")
    refuse(length is not None and len(tensor) != length, f"{name} has {len(tensor)} entries, not {length}")
    return tensor.clone()


def offsets(tensor, name, length=None):
    made = kept(tensor, name, length)
    refuse(int(made[0]) != 0, f"{name} does not begin with 0")
    refuse(bool((made.diff() < 0).any()), f"{name} decreases")
    return made


def attention(q, k, v, *, scale, cap=0.0, causal=False, window_left=-1):
    """q [n, heads, dim] over k and v [m, heads', dim]: outputs, and sums of weights as exponents of 2."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.float().repeat_interleave(group, dim=1) if group > 1 else t.float() for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    key, query = torch.arange(len(k)), torch.arange(len(k) - len(q), len(k))[:, None]
    hidden = torch.zeros(len(q), len(k), dtype=torch.bool)
    if causal:
        hidden |= key > query
    if window_left >= 0:
        hidden |= key < query - window_left
    scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v)
    return out.to(q.dtype), scores.logsumexp(dim=-1).T.contiguous() / math.log(2)


class Planned:
    """What the wrappers have in common: a buffer, and at most one plan."""

    name: str
    made = 0

    def __init__(self, *args, **options):
        given = bind(f"{self.name}.__init__", self, *args, **options)
        buffer = given["float_workspace_buffer"]
        refuse(buffer.data_ptr() % 16 or not buffer.is_contiguous(), "the buffer is not aligned")
        refuse(buffer.nbytes < 128 * 2**20, "the buffer is small")
        refuse(given.get("kv_layout", "NHD") != "NHD", "the stand-in knows one layout")
        refuse(given.get("use_cuda_graph", False), "the stand-in knows no graphs")
        refuse(given.get("backend", "auto") not in ("auto", "fa2", "fa3"), "unknown kernels")
        self.given = given
        self.planned = None
        type(self).made += 1

    def paged(self, given, *, q_lens=None):
        """Checks what lists pages, and keeps it."""
        requests = len(given["indptr"]) - 1
        indptr = offsets(given["indptr"], "indptr")
        last = kept(given["last"], "last_page_len", requests)
        pages = kept(given["indices"], "indices", int(indptr[-1]))
        size = given["page_size"]
        counts = indptr.diff()
        refuse(bool((counts < 1).any()), "a request reads nothing")
        refuse(bool(((last < 1) | (last > size)).any()), f"last_page_len is not in 1..{size}")
        heads, kv_heads = given["num_qo_heads"], given["num_kv_heads"]
        refuse(heads % kv_heads, f"{heads} heads over {kv_heads}")
        refuse(given["head_dim"] not in (64, 128, 256), f"no kernel for heads of {given['head_dim']}")
        refuse(given.get("window_left", -1) < -1, "window_left")
        dtypes = given["q_data_type"], given["kv_data_type"]
        refuse(len(set(dtypes)) != 1 or not isinstance(dtypes[0], torch.dtype), f"types {dtypes}")
        self.planned = given | {"indptr": indptr, "last": last, "indices": pages, "q_lens": q_lens}

    def runs(self, q, paged_kv_cache, return_lse):
        plan = self.planned
        refuse(plan is None, "not planned")
        k, v = paged_kv_cache
        refuse(q.dtype != plan["q_data_type"] or k.dtype != plan["kv_data_type"], "types are not those planned")
        refuse(q.shape[1:] != (plan["num_qo_heads"], plan["head_dim"]), f"queries of shape {tuple(q.shape)}")
        refuse(q.stride(2) != 1, "queries are read as they lie")
        for cache in (k, v):
            shape = plan["page_size"], plan["num_kv_heads"], plan["head_dim"]
            refuse(cache.shape[1:] != shape, f"pages of shape {tuple(cache.shape[1:])}, planned {shape}")
            pages = plan["indices"]
            refuse(bool(((pages < 0) | (pages >= len(cache))).any()), "pages that there are not")
        refuse(k.stride() != v.stride(), "K and V lie differently")
        q_lens = plan["q_lens"]
        refuse(len(q) != sum(q_lens), f"{len(q)} queries, planned {sum(q_lens)}")
        outs, sums = [], []
        scale = plan.get("sm_scale") or plan["head_dim"] ** -0.5
        for i, queries in enumerate(q.split(q_lens)):
            pages = plan["indices"][plan["indptr"][i] : plan["indptr"][i + 1]].long()
            length = (len(pages) - 1) * plan["page_size"] + int(plan["last"][i])
            read = [t[pages].flatten(0, 1)[:length] for t in (k, v)]
            out, some = attention(
                queries,
                *read,
                scale=scale,
                cap=plan.get("logits_soft_cap") or 0.0,
                causal=plan.get("causal", False),
                window_left=plan.get("window_left", -1),
            )
            outs.append(out)
            sums.append(some)
        return (torch.cat(outs), torch.cat(sums)) if return_lse else torch.cat(outs)


class BatchPrefillWithPagedKVCacheWrapper(Planned):
    name = "BatchPrefillWithPagedKVCacheWrapper"

    def plan(self, *args, **options):
        given = bind(f"{self.name}.plan", self, *args, **options)
        given |= {
            "indptr": given["paged_kv_indptr"],
            "indices": given["paged_kv_indices"],
            "last": given["paged_kv_last_page_len"],
            "head_dim": given["head_dim_qk"],
        }
        requests = len(given["indptr"]) - 1
        q_lens = offsets(given["qo_indptr"], "qo_indptr", requests + 1).diff().tolist()
        self.paged(given, q_lens=q_lens)

    def run(self, *args, **options):
        given = bind(f"{self.name}.run", self, *args, **options)
        return self.runs(given["q"], given["paged_kv_cache"], given.get("return_lse", False))


class BatchDecodeWithPagedKVCacheWrapper(Planned):
    name = "BatchDecodeWithPagedKVCacheWrapper"

    def plan(self, *args, **options):
        bind(f"{self.name}.plan", self, *args, **options)
        given = bind(f"{self.name}._plan_impl", self, *args, **options)
        group = given["num_qo_heads"] // given["num_kv_heads"]
        alone = not self.given.get("use_tensor_cores", False)
        refuse(alone and group not in (1, 2, 3, 4, 6, 8), f"no kernel without matrix units for a group of {group}")
        given["last"] = given["last_page_len"]
        self.paged(given, q_lens=[1] * len(given["last"]))

    def run(self, *args, **options):
        given = bind(f"{self.name}.run", self, *args, **options)
        return self.runs(given["q"], given["paged_kv_cache"], given.get("return_lse", False))


class BatchMLAPagedAttentionWrapper(Planned):
    name = "mla.BatchMLAPagedAttentionWrapper"

    def plan(self, *args, **options):
        given = bind(f"{self.name}.plan", self, *args, **options)
        refuse(args, "positional arguments are deprecated")
        requests = len(given["kv_len_arr"])
        given["q_lens"] = offsets(given["qo_indptr"], "qo_indptr", requests + 1).diff().tolist()
        given["indptr"] = offsets(given["kv_indptr"], "kv_indptr", requests + 1)
        given["lens"] = kept(given["kv_len_arr"], "kv_len_arr").tolist()
        given["pages"] = kept(given["kv_indices"], "kv_indices", int(given["indptr"][-1]))
        counts = [-(-length // given["page_size"]) for length in given["lens"]]
        refuse(given["indptr"].diff().tolist() != counts, "pages and lengths differ")
        refuse((given["head_dim_ckv"], given["head_dim_kpe"]) != (512, 64), "no kernel for such latents")
        refuse(given["q_data_type"] != given["kv_data_type"], "types differ")
        if given["causal"]:
            self.tiles(given)
        self.planned = given

    def tiles(self, given):
        """The causal kernels lose a key where two tiles share the heads of a query, as 0.7.4 says of them."""
        heads, q_lens = given["num_heads"], given["q_lens"]
        rows = TILE * (2 if sum(q_lens) * heads // len(q_lens) > TILE else 1)
        for q_len, kv_len in zip(q_lens, given["lens"], strict=True):
            for end in range(rows, q_len * heads, rows):
                query, shared = divmod(end, heads)
                refuse(shared and (kv_len - q_len + query) % TILE == 0, f"a tile of {rows} rows of {heads} heads")

    def run(self, *args, **options):
        given = bind(f"{self.name}.run", self, *args, **options)
        refuse(args, "positional arguments are deprecated")
        plan = self.planned
        refuse(plan is None, "not planned")
        q, cache = (given["q_nope"], given["q_pe"]), (given["ckv_cache"], given["kpe_cache"])
        for tensor, width in zip(q, (512, 64), strict=True):
            refuse(tensor.shape != (sum(plan["q_lens"]), plan["num_heads"], width), f"queries {tuple(tensor.shape)}")
            refuse(tensor.dtype != plan["q_data_type"] or tensor.stride(2) != 1, "queries")
        for tensor, width in zip(cache, (512, 64), strict=True):
            refuse(tensor.shape != (len(cache[0]), plan["page_size"], width), f"pages {tuple(tensor.shape)}")
            refuse(tensor.dtype != plan["kv_data_type"] or tensor.stride(2) != 1, "pages")
        refuse(bool(((plan["pages"] < 0) | (plan["pages"] >= len(cache[0]))).any()), "pages that there are not")
        outs, sums = [], []
        for i, (nope, rope) in enumerate(zip(*(t.split(plan["q_lens"]) for t in q), strict=True)):
            pages = plan["pages"][plan["indptr"][i] : plan["indptr"][i + 1]].long()
            ckv, kpe = (t[pages].flatten(0, 1)[: plan["lens"][i], None] for t in cache)
            out, some = latent_attention(nope, rope, ckv, kpe, scale=plan["sm_scale"], causal=plan["causal"])
            outs.append(out)
            sums.append(some)
        return (torch.cat(outs), torch.cat(sums)) if given.get("return_lse", False) else torch.cat(outs)


def latent_attention(nope, rope, ckv, kpe, **options):
    """One head of keys, whose first part is the value: queries of all heads follow one another."""
    q, heads = torch.cat([nope, rope], dim=2), nope.shape[1]
    k = torch.cat([ckv, kpe], dim=2).expand(-1, heads, -1)
    return attention(q, k, ckv.expand(-1, heads, -1), **options)


def merge_state(*args, **options):
    given = bind("merge_state", *args, **options)
    v_a, s_a, v_b, s_b = (given[name] for name in ("v_a", "s_a", "v_b", "s_b"))
    refuse(v_a.shape != v_b.shape or s_a.shape != s_b.shape or v_a.shape[:2] != s_a.shape, "shapes differ")
    refuse(not all(t.is_contiguous() for t in (v_a, s_a, v_b, s_b)), "not contiguous")
    refuse(v_a.dtype != v_b.dtype or {s_a.dtype, s_b.dtype} != {torch.float32}, "types differ")
    most = torch.maximum(s_a, s_b)
    a, b = (2 ** (s - most) for s in (s_a, s_b))
    merged = (v_a.float() * a[..., None] + v_b.float() * b[..., None]) / (a + b)[..., None]
    return merged.to(v_a.dtype), most + torch.log2(a + b)


def module():
    """The package and its submodule, by name, to put into `sys.modules`."""
    package, mla = ModuleType("flashinfer"), ModuleType("flashinfer.mla")
    package.__spec__, mla.__spec__ = ModuleSpec("flashinfer", None), ModuleSpec("flashinfer.mla", None)
    package.merge_state, package.mla = merge_state, mla
    for wrapper in (BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper):
        setattr(package, wrapper.__name__, wrapper)
    mla.BatchMLAPagedAttentionWrapper = BatchMLAPagedAttentionWrapper
    return {"flashinfer": package, "flashinfer.mla": mla}
