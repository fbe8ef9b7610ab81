"""Rules of linear layers on vectors and sequences, of embedding layers, and of parameters added to the input."""

from __future__ import annotations

from torch import Tensor, nn

from labelwise.signals.gradients.pieces import Outer, Piece, Scattered, Vector
from labelwise.signals.gradients.rules import Call, MisfitError, Rule, register


def _linear_pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
    a, d = call.input(), call.gradient()
    if a.ndim < 2:
        raise MisfitError("its input is a single vector instead of one for each row")
    a_BTI, d_BTO = a.reshape(len(a), -1, a.shape[-1]), d.reshape(len(d), -1, d.shape[-1])
    found: dict[str, Piece] = {}
    if "weight" in wanted:
        found["weight"] = Outer(a_BTI, d_BTO)
    if "bias" in wanted:
        found["bias"] = Vector(d_BTO.sum(1))
    return found


def _embedding_pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
    assert isinstance(module, nn.Embedding)
    index, d = call.input(), call.gradient()
    index_BT, d_BTO = index.reshape(len(index), -1), d.reshape(len(d), -1, d.shape[-1])
    if module.padding_idx is not None:  # the padding row is not trained
        d_BTO = d_BTO * (index_BT != module.padding_idx)[:, :, None]
    return {"weight": Scattered(index_BT, d_BTO, module.num_embeddings)}


def _embedding_fits(module: nn.Module) -> bool:
    """Not with max_norm, which writes to the table, nor with scaling by frequency, which mixes the rows of a batch."""
    return isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq


def added(name: str) -> Rule:
    """The rule of a module whose output is its input plus its parameter `name`, broadcast over the missing axes.

    For your own modules: `register(Shift, rule=added("bias"))`.
    """

    def pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
        d, shape = call.gradient(), module.get_parameter(name).shape
        return {name: Vector(summed_to(d, tuple(shape)).reshape(len(d), -1))} if name in wanted else {}

    return Rule((name,), pieces)


def summed_to(d: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Each row's gradient of a parameter of this shape that was broadcast over the output (B, ...)."""
    if len(shape) > d.ndim or (len(shape) == d.ndim and shape[0] != 1):
        raise MisfitError(f"a parameter of shape {shape} is not broadcast over all rows of {tuple(d.shape)}")
    inner = shape[1:] if len(shape) == d.ndim else shape
    extra = d.ndim - 1 - len(inner)
    if extra:
        d = d.sum(tuple(range(1, 1 + extra)))
    ones = tuple(axis for axis, size in enumerate(inner, 1) if size == 1 and d.shape[axis] != 1)
    return d.sum(ones, keepdim=True) if ones else d


register(nn.Linear, rule=Rule(("weight", "bias"), _linear_pieces))
register(nn.Embedding, rule=Rule(("weight",), _embedding_pieces, _embedding_fits))
