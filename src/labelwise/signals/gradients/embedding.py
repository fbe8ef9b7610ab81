"""Rule of embedding layers: each token of a row adds its gradient to one row of the table."""

from __future__ import annotations

from torch import nn

from labelwise.signals.gradients.pieces import Piece, Scattered
from labelwise.signals.gradients.rules import Call, Rule, register


def _pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
    assert isinstance(module, nn.Embedding)
    index, d = call.input(), call.gradient()
    index_BT, d_BTO = index.reshape(len(index), -1), d.reshape(len(d), -1, d.shape[-1])
    if module.padding_idx is not None:  # the padding row is not trained
        d_BTO = d_BTO * (index_BT != module.padding_idx)[:, :, None]
    return {"weight": Scattered(index_BT, d_BTO, module.num_embeddings)}


def _fits(module: nn.Module) -> bool:
    """Not with max_norm, which writes to the table, nor with scaling by frequency, which mixes the rows of a batch."""
    return isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq


register(nn.Embedding, rule=Rule(("weight",), _pieces, _fits))
