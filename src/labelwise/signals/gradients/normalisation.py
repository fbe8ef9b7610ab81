"""Rules of normalisation layers in eval mode: the scale's gradient is the sum of d times the normalised input."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelwise.signals.gradients.pieces import Piece, Vector, row_slices
from labelwise.signals.gradients.rules import Call, MisfitError, Rule, fits_any, register


def _over_channels(x: Tensor) -> Tensor:
    """Sums (B, C) over all axes after the channels of (B, C, ...)."""
    return x.flatten(2).sum(2) if x.ndim > 2 else x


def _of_channels(normal: Callable[[nn.Module, Tensor], Tensor], least: int = 2) -> Callable[..., dict[str, Piece]]:
    """Pieces of layers with one scale and one shift for each channel."""

    def pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
        x, d = call.input(), call.gradient()
        if x.ndim < least:
            raise MisfitError("its input has no axis of rows")
        found: dict[str, Piece] = {}
        if "weight" in wanted:
            parts = row_slices(len(x), 8 * x[0].numel(), x.device)  # in slices that stay in the cache
            found["weight"] = Vector(
                torch.cat([_over_channels(normal(module, x[part]).mul_(d[part])) for part in parts])
            )
        if "bias" in wanted:
            found["bias"] = Vector(_over_channels(d))
        return found

    return pieces


def _batch_normal(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    mean_C, variance_C = module.running_mean, module.running_var
    assert mean_C is not None, "the rule fits layers with running statistics"
    assert variance_C is not None
    shape = (-1, *(1 for _ in x.shape[2:]))
    return (x - mean_C.view(shape)).mul_((variance_C + module.eps).rsqrt().to(x.dtype).view(shape))


def _instance_normal(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
    own_statistics = not module.track_running_stats
    mean_C, variance_C = (None if s is None else s.to(x.dtype) for s in (module.running_mean, module.running_var))
    return F.instance_norm(x, mean_C, variance_C, use_input_stats=own_statistics, eps=module.eps)


def _group_normal(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.GroupNorm)
    return F.group_norm(x, module.num_groups, eps=module.eps)


def _has_statistics(module: nn.Module) -> bool:
    """Without running statistics eval mode normalises by the batch, so a row has no gradient of its own."""
    return getattr(module, "running_mean", None) is not None


def _of_last_axes(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    x, d, shape = call.input(), call.gradient(), list(module.normalized_shape)
    if x.ndim <= len(shape):
        raise MisfitError("its input has no axis of rows")
    normal = F.layer_norm if isinstance(module, nn.LayerNorm) else F.rms_norm
    size = module.get_parameter("weight").numel()
    found: dict[str, Piece] = {}
    if "weight" in wanted:
        scaled = d * (normal(x, shape, eps=module.eps) if module.eps is not None else F.rms_norm(x, shape))
        found["weight"] = Vector(scaled.reshape(len(d), -1, size).sum(1))
    if "bias" in wanted:
        found["bias"] = Vector(d.reshape(len(d), -1, size).sum(1))
    return found


_BOTH = ("weight", "bias")
register(
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    rule=Rule(_BOTH, _of_channels(_batch_normal), _has_statistics),
)
register(nn.InstanceNorm1d, rule=Rule(_BOTH, _of_channels(_instance_normal, 3), fits_any))
register(nn.InstanceNorm2d, rule=Rule(_BOTH, _of_channels(_instance_normal, 4), fits_any))
register(nn.InstanceNorm3d, rule=Rule(_BOTH, _of_channels(_instance_normal, 5), fits_any))
register(nn.GroupNorm, rule=Rule(_BOTH, _of_channels(_group_normal)))
register(nn.LayerNorm, nn.RMSNorm, rule=Rule(_BOTH, _of_last_axes))
