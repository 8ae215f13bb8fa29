"""Runs a model on a few tokens with dense attention that writes down how the model asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from rtk.model.bridge import Rule, cached_logits, flat_logits
from rtk.model.loader import LoadedModel
from rtk.plugin import LayerCall

LENGTHS = (5, 7)
"""Lengths of the sequences that are recorded; short, since a large model computes them too."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one attention layer asked for."""

    module: torch.nn.Module
    call: LayerCall
    kv_heads: int
    head_dim: int
    v_head_dim: int
    q_heads: int
    dtype: str
    extras: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, int, int, int, str]:
        """What all layers of a model must have in common."""
        return self.kv_heads, self.head_dim, self.v_head_dim, self.q_heads, self.dtype


@dataclass(slots=True)
class Recorder:
    """Causal attention within sequences over the K/V of one forward."""

    sequence: torch.Tensor
    """[T] which sequence each token belongs to."""
    position: torch.Tensor
    """[T] its position there."""
    calls: list[Recorded] = field(default_factory=list)
    masks: list[tuple[torch.Tensor, Rule]] = field(default_factory=list)

    def built(self, mask: torch.Tensor, rule: Rule) -> None:
        self.masks.append((mask, rule))

    def rule(self, mask: torch.Tensor) -> Rule | None:
        """What a mask that came with a call hides; None where the model made it of its own or changed it."""
        address = mask.untyped_storage().data_ptr()
        return next((rule for own, rule in self.masks if own.untyped_storage().data_ptr() == address), None)

    def attend(
        self,
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        call: LayerCall,
        extras: Mapping[str, Any],
    ) -> torch.Tensor:
        dtype = str(k.dtype).removeprefix("torch.")
        self.calls.append(Recorded(module, call, k.shape[1], k.shape[2], v.shape[2], q.shape[1], dtype, extras))
        exact = torch.promote_types(q.dtype, torch.float32)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1).to(exact) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.to(exact), k) * call.scaling
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        seen = visible(self.position[:, None] - self.position, call.sliding_window)
        scores = scores.masked_fill(~(seen & (self.sequence[:, None] == self.sequence)), -torch.inf)
        if call.sinks is not None:
            sinks = call.sinks.to(exact)[:, None, None].expand(-1, len(q), 1)
            scores = torch.cat([scores, sinks], dim=-1)
        return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1)[..., : len(k)], v).to(q.dtype)


def visible(behind: torch.Tensor, window: int | None) -> torch.Tensor:
    """Whether a token sees one that lies so many positions behind it, by the contract of `LayerCall`."""
    seen = behind >= 0
    return seen if window is None else seen & (behind < window)


def record(loaded: LoadedModel, lengths: Sequence[int] = LENGTHS) -> tuple[Recorder, torch.Tensor]:
    """Compute sequences of these (different) lengths in one batch; also returns each one's last logits [n, vocab].

    The tokens of the sequences are interleaved, and the longer one lies at the end of the context: what mixes
    neighbouring tokens, counts positions by itself, or looks at the positions of the whole batch, then shows in the
    logits. Equal lengths give equal tokens in every call.
    """
    columns = zip_longest(*([(length, i) for i in range(length)] for length in lengths))
    tokens = [entry for column in columns for entry in column if entry is not None]
    device = loaded.device
    sequence = torch.tensor([length for length, _ in tokens], device=device)
    position = torch.tensor([_start(loaded, length) + i for length, i in tokens], device=device)
    ids = torch.tensor([_token(loaded, length, i) for length, i in tokens], device=device)
    last = torch.tensor([tokens.index((length, length - 1)) for length in lengths], device=device)
    recorder = Recorder(sequence, position)
    return recorder, flat_logits(loaded.model, recorder, ids, position, last)


def record_cached(loaded: LoadedModel) -> tuple[Recorder, torch.Tensor]:
    """What `record` computes of the longest sequence, as transformers' own `generate` would: with masks and a cache."""
    length = max(LENGTHS)
    start = _start(loaded, length)
    ids = torch.tensor([_token(loaded, length, i) for i in range(length)], device=loaded.device)
    recorder = Recorder(torch.zeros_like(ids), torch.arange(start, start + length, device=loaded.device))
    return recorder, cached_logits(loaded.model, recorder, ids, start)


def _start(loaded: LoadedModel, length: int) -> int:
    """Position of a sequence's first token."""
    context = loaded.facts.context_length or 0
    return max(0, context - length) if length == max(LENGTHS) else 0


def _token(loaded: LoadedModel, length: int, i: int) -> int:
    return (length * 31 + i * 7) % loaded.facts.vocab_size
