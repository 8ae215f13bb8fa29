"""Models of latent attention (MLA), served by their latents: one a token, in place of keys and values for every head.

A layer makes a latent c and a rotated part r of each token, and of them the K/V of head h: k = [U c, r], v = W c. Since
q · U c = (Uᵀ q) · c, U can as well be applied to the query, and W to what attention answers: it then runs over [c, r],
of which c is the value, with one K/V head for all query heads. transformers' modules make K/V in a method of its own,
right before attention, so there is nothing else to replace.
"""

import torch
from torch import nn

CLOSE = 0.05
"""Largest relative difference of scores and values: half types stay well below, weights in another order do not."""


class Latent:
    """Stands for the `expand_kv` of an attention module. Holds views of its weights, and not the module."""

    def __init__(self, projection: nn.Linear, nope: int, v_head_dim: int) -> None:
        weight = projection.weight.detach().view(-1, nope + v_head_dim, projection.in_features)
        self.keys, self.values = weight[:, :nope], weight[:, nope:]

    def __call__(self, latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """c [1, 1, T, rank] and r [1, 1, T, rope] as K/V of one head."""
        return torch.cat([latent, rotated], dim=-1), latent

    def query(self, q: torch.Tensor) -> torch.Tensor:
        """q [heads, T, head_dim] as queries of latents [heads, T, rank + rope]."""
        nope = self.keys.shape[1]
        return torch.cat([q[..., :nope] @ self.keys, q[..., nope:]], dim=-1)

    def answer(self, out: torch.Tensor) -> torch.Tensor:
        """What attention over latents answers, [heads, T, rank], as [heads, T, v_head_dim]."""
        return out @ self.values.transpose(1, 2)


@torch.inference_mode()
def use_latents(model: nn.Module) -> bool:
    """Let attention work on latents, in every layer or in none; returns whether it does.

    Layers stay as they are where a weight is not a plain one, or where their scores and values would not be the same.
    """
    found = {}
    drop_latents(model)
    for module in model.modules():
        if hasattr(module, "expand_kv"):
            found[module] = _latent(module)
    made = {module: latent for module, latent in found.items() if latent is not None and _agree(module, latent)}
    if len(made) < len(found):
        return False
    for module, latent in made.items():
        module.expand_kv = latent  # type: ignore[assignment]
    return bool(made)


def drop_latents(model: nn.Module) -> None:
    """Let attention work on K/V of every head again."""
    for module in model.modules():
        if isinstance(getattr(module, "expand_kv", None), Latent):
            del module.expand_kv


def _latent(module: nn.Module) -> Latent | None:
    projection = getattr(module, "kv_b_proj", None)
    if type(projection) is not nn.Linear or projection.bias is not None:
        return None
    return Latent(projection, module.qk_nope_head_dim, module.v_head_dim)


def _agree(module: nn.Module, latent: Latent) -> bool:
    """Whether a few random tokens have the same scores and values either way."""
    heads, nope, rank = latent.keys.shape
    rope: int = module.qk_rope_head_dim  # type: ignore[assignment]
    random = torch.Generator().manual_seed(0)
    c, r, q = (
        torch.randn(shape, generator=random).to(latent.keys)
        for shape in ((1, 1, 4, rank), (1, 1, 4, rope), (1, heads, 4, nope + rope))
    )
    k, v = module.expand_kv(c, r)  # type: ignore[operator]
    wanted = torch.cat([q @ k.transpose(-1, -2), v], dim=-1)
    shared, value = latent(c, r)
    scores = latent.query(q[0])[None] @ shared.transpose(-1, -2)
    got = torch.cat([scores, latent.answer(value[0].expand(heads, -1, -1))[None]], dim=-1)
    return got.shape == wanted.shape and bool((got - wanted).norm() <= CLOSE * wanted.norm())
