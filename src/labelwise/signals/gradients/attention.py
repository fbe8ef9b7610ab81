"""Rule of multi-head attention: it is recomputed from the layer's inputs, for the gradients of the projections.

The four projections are linear layers on sequences. Hooks on the module do not see their output gradients, so the
attention between them is recomputed from projected queries, keys and values, and differentiated by itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelwise.signals.gradients.pieces import Outer, Piece, Stacked, Vector
from labelwise.signals.gradients.rules import Call, MisfitError, Rule, register

_SPLIT = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def _pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
    assert isinstance(module, nn.MultiheadAttention)
    inputs = [
        _by_row(module, call, call.given(position, name)) for position, name in enumerate(("query", "key", "value"))
    ]
    d_BTE = _by_row(module, call, call.d)
    heads_BTE, gradients = _recompute(module, inputs, _mask(module, call, inputs), d_BTE)
    found: dict[str, Piece] = {}
    outers = [Outer(x, g) for x, g in zip(inputs, gradients)]
    width = module.embed_dim
    if "in_proj_weight" in wanted:
        found["in_proj_weight"] = Stacked(outers, [width] * 3)
    for name, outer in zip(_SPLIT, outers):
        if name in wanted:
            found[name] = outer
    if "in_proj_bias" in wanted:
        found["in_proj_bias"] = Vector(torch.cat([g.sum(1) for g in gradients], 1))
    if "out_proj.weight" in wanted:
        found["out_proj.weight"] = Outer(heads_BTE, d_BTE)
    if "out_proj.bias" in wanted:
        found["out_proj.bias"] = Vector(d_BTE.sum(1))
    return found


def _by_row(module: nn.MultiheadAttention, call: Call, x: Any) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim != 3:
        raise MisfitError("its inputs are not sequences, one for each row")
    return call.by_row(x if module.batch_first else x.transpose(0, 1))


def _recompute(
    module: nn.MultiheadAttention, inputs: list[Tensor], mask: Tensor | None, d_BTE: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Outputs of the heads (B, T, E), and the gradients of projected queries, keys and values."""
    biases: Any = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.detach().chunk(3)
    if module.in_proj_weight is not None:
        weights: Any = module.in_proj_weight.detach().chunk(3)
    else:
        weights = [module.get_parameter(name).detach() for name in _SPLIT]
    with torch.enable_grad():
        parts = [
            F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype)).requires_grad_()
            for x, w, b in zip(inputs, weights, biases)
        ]
        split = [part.unflatten(2, (module.num_heads, -1)).transpose(1, 2) for part in parts]
        heads_BTE = F.scaled_dot_product_attention(split[0], split[1], split[2], mask).transpose(1, 2).flatten(2)
        inner_BTE = d_BTE @ module.out_proj.weight.detach().to(d_BTE.dtype)
        gradients = torch.autograd.grad(heads_BTE, parts, inner_BTE)
    return heads_BTE.detach(), list(gradients)


def _mask(module: nn.MultiheadAttention, call: Call, inputs: list[Tensor]) -> Tensor | None:
    """Both masks of a call as one that is added to the scores, (B, heads or 1, T, S)."""
    padding, attend = call.given(3, "key_padding_mask"), call.given(5, "attn_mask")
    rows, like, mask = call.rows, inputs[0], None
    if attend is not None:
        mask = _additive(attend, like)
        mask = mask.unflatten(0, (rows, module.num_heads)) if mask.ndim == 3 else mask[None, None]
    if padding is not None:
        padding_B11S = _additive(padding, like)[:, None, None, :]
        mask = padding_B11S if mask is None else mask + padding_B11S
    return mask


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(mask, -torch.inf)
    return mask.to(like.dtype)


def _fits(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) and module.bias_k is None and not module.add_zero_attn


register(
    nn.MultiheadAttention,
    rule=Rule(("in_proj_weight", *_SPLIT, "in_proj_bias", "out_proj.weight", "out_proj.bias"), _pieces, _fits),
)
