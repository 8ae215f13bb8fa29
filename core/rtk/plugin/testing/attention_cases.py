"""The batches that the contract suite of attention backends computes, as data."""

from dataclasses import dataclass, replace

from rtk.plugin.attention import DTYPE_BYTES, KVShape

GQA = KVShape(layers=1, kv_heads=2, head_dim=16, v_head_dim=16, q_heads=6)
MLA = KVShape(layers=1, kv_heads=1, head_dim=576, v_head_dim=512, q_heads=16, mla=True)
"""As DeepSeek's models have it; some kernels take no other."""
MIXED = ((1, 1), (1, 40), (7, 7), (5, 23), (1, 3), (1, 39), (30, 75), (1, 64))
"""Rows as (q_len, kv_len): decoding, cold prefill and later chunks, in no order."""

Told = tuple[tuple[tuple[int, ...], int, int], ...]
"""Runs as (rows, start, stop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch for one layer."""

    name: str
    rows: tuple[tuple[int, int], ...] = MIXED
    shape: KVShape | None = None
    """None: the usual one of the backend's kind."""
    page_size: int = 1
    about_pages: bool = False
    """False: a backend without this page size gets the nearest that it has."""
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    scaling: float | None = None
    """None: the usual one of the head_dim."""
    scattered: bool = True
    """False: the slots of a row follow one another."""
    stray: bool = False
    """True: the second page of a row lies elsewhere, though its ends look as if the slots followed one another."""
    shared: int = 0
    """Tokens, in whole pages, that every row begins with, in the same slots: one cached prefix."""
    told: Told = ()
    """What of it the backend is told: these rows share these positions (`BatchView.shared`)."""
    dtype: str | None = None
    """None: the most precise type that the backend declares."""

    @property
    def features(self) -> set[str]:
        """What a backend must declare for this case."""
        asked = {"sliding_window": self.window, "softcap": self.softcap, "sinks": self.sinks}
        return {name for name, value in asked.items() if value}

    def visible(self, row: int) -> range:
        """Positions of a row that at least one of its queries sees."""
        q_len, kv_len = self.rows[row]
        first = 0 if self.window is None else max(0, kv_len - q_len - self.window + 1)
        return range(first, kv_len)


CASES = (
    *(Case(name=f"page {p}", page_size=p, about_pages=True) for p in (1, 16, 64)),
    Case(name="decode only", rows=tuple((1, n) for n in (5, 5, 5, 300, 301, 290, 17, 2, 1))),
    Case(name="long decode", rows=tuple((1, n) for n in (3000, 2700, 2900, 2800))),
    Case(name="one row", rows=((1, 50),)),
    Case(name="one row, slots in order", rows=((1, 50),), scattered=False),
    Case(name="mixed, slots in order", scattered=False, page_size=16),
    Case(name="one row, a slot elsewhere", rows=((1, 50),), scattered=False, stray=True),
    Case(name="mixed, a page elsewhere", scattered=False, stray=True, page_size=16),
    Case(name="one cold prompt", rows=((40, 40),), page_size=16),
    Case(name="long chunk", rows=((300, 700), (1, 600))),
    Case(name="mha", shape=replace(GQA, kv_heads=4, q_heads=4)),
    Case(name="mqa", shape=replace(GQA, kv_heads=1, q_heads=8)),
    Case(name="narrow values", shape=replace(GQA, head_dim=24, v_head_dim=16), page_size=16),
    Case(name="scaling of its own", scaling=0.5),
    Case(name="window", window=8),
    Case(name="window, page 16", window=20, page_size=16),
    Case(name="window 1", window=1),
    Case(name="window, long chunk", rows=((600, 900), (1, 600)), window=100),
    Case(name="softcap", softcap=5.0),
    Case(name="sinks", sinks=True, page_size=16),
    Case(name="window, softcap and sinks", window=8, softcap=5.0, sinks=True, page_size=64),
    *(
        Case(name=f"a shared prefix, page {p}", rows=((1, 70), (5, 100), (1, 66), (30, 140)), shared=64, page_size=p)
        for p in (1, 64)
    ),
    Case(name="a told prefix", rows=((1, 300), (1, 290), (1, 310), (1, 280)), shared=256, told=(((0, 1, 2), 0, 256),)),
    Case(
        name="a told prefix of longer rows",
        rows=((1, 70), (5, 100), (9, 90), (30, 140)),
        shared=64,
        told=(((0, 1, 3), 0, 64),),
        page_size=16,
    ),
    Case(
        name="a told tree",
        rows=((1, 200), (1, 199), (1, 180), (1, 181), (1, 190)),
        shared=128,
        told=(((0, 1, 2, 3), 0, 64), ((0, 2), 64, 128), ((1, 3), 64, 112)),
        page_size=16,
    ),
    Case(
        name="told, but hidden by a window",
        rows=((1, 100), (1, 150), (1, 110), (7, 120)),
        shared=96,
        told=(((0, 1, 2, 3), 0, 96),),
        window=40,
    ),
    Case(
        name="told with gaps, and sinks",
        rows=((1, 120), (1, 130), (6, 140), (1, 110)),
        shared=96,
        told=(((0, 1, 2, 3), 0, 32), ((0, 2), 48, 96), ((1, 3), 64, 80)),
        sinks=True,
        page_size=16,
    ),
    Case(
        name="told and long, slots in order",
        rows=((1, 700), (1, 1400), (300, 950), (1, 690), (2, 660)),
        shared=640,
        told=(((0, 1, 2, 3, 4), 0, 300), ((1, 2, 4), 300, 640)),
        scattered=False,
    ),
    *(Case(name=f"in {dtype}", dtype=dtype) for dtype in DTYPE_BYTES),
    *(
        Case(name=f"mla, page {p}", rows=((1, 1), (1, 70), (7, 7), (30, 75)), shape=MLA, page_size=p, about_pages=True)
        for p in (1, 64)
    ),
    Case(name="mla, decode only", shape=MLA, rows=((1, 5), (1, 130), (1, 300), (1, 1)), page_size=64),
    Case(name="mla, long decode", shape=MLA, rows=((1, 700), (1, 600))),
    Case(name="mla, one cold prompt", shape=MLA, rows=((40, 40),), scattered=False, page_size=64),
    Case(name="mla, long chunk", shape=MLA, rows=((150, 400), (1, 300)), page_size=64),
    Case(name="mla, 64 heads", shape=replace(MLA, q_heads=64), rows=((1, 70), (1, 50)), page_size=64),
    Case(name="mla, scaling of its own", shape=MLA, rows=((1, 20), (5, 30)), scaling=0.1),
    *(
        Case(
            name=f"mla, a told prefix, page {p}",
            shape=MLA,
            rows=((1, 150), (1, 140), (5, 135), (1, 160)),
            shared=128,
            told=(((0, 1, 3), 0, 128),),
            page_size=p,
        )
        for p in (1, 64)
    ),
    *(
        Case(name=f"mla in {dtype}", shape=MLA, rows=((1, 40), (7, 20)), dtype=dtype)
        for dtype in ("bfloat16", "float16")
    ),
)
