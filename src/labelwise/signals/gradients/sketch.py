"""Sketches of gradients: a few hundred numbers whose inner products are, on average, those of whole gradients.

Entry (o, i) of a gradient is added, with a random sign, to one of W numbers: to number h(o) + h'(i) mod W with sign
s(o) s'(i) (TensorSketch, Pham and Pagh 2013). Numbers and signs are hashed from the seed, the parameter's name and the
index, so all rows share them. For two gradients g and g' of one parameter E[sketch(g) . sketch(g')] = g . g' over the
seeds: the signs of two different entries are independent with mean 0, so only equal entries remain. Signs of
different parameters are independent too, so the sketches of all parameters are added up. The variance of the inner
product is at most (2 + 9) / W |g|^2 |g'|^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.signals.exact_sum import add_at


@dataclass(frozen=True)
class Tables:
    """Hash tables for a parameter of O rows and I columns: the number and the sign of each entry."""

    width: int
    bucket_O: Tensor
    sign_O: Tensor
    bucket_I: Tensor
    sign_I: Tensor

    @staticmethod
    def of(key: Key, outputs: int, inputs: int, width: int, device: torch.device) -> Tables:
        """Tables for a parameter of shape (outputs, inputs), on `device`."""
        tables = []
        for side, count in (("out", outputs), ("in", inputs)):
            index = torch.arange(count)
            place = (key.fold(side, "place").uniform(index) * width).long()
            sign = (key.fold(side, "sign").uniform(index) < 0.5).float() * 2 - 1
            tables += [place.to(device), sign.to(device)]
        return Tables(width, *tables)

    def part(self, where: slice) -> Tables:
        """The tables for some rows of the parameter."""
        return Tables(self.width, self.bucket_O[where], self.sign_O[where], self.bucket_I, self.sign_I)

    def flat(self) -> tuple[Tensor, Tensor]:
        """Number and sign of every entry (O I,)."""
        bucket_OI = (self.bucket_O[:, None] + self.bucket_I) % self.width
        return bucket_OI.flatten(), (self.sign_O[:, None] * self.sign_I).flatten()

    def whole(self, g_BP: Tensor) -> Tensor:
        """The sketch (B, W) of gradients (B, P)."""
        bucket_P, sign_P = self.flat()
        out_BW = g_BP.new_zeros(len(g_BP), self.width)
        add_at(out_BW.T, bucket_P, (g_BP * sign_P).T)
        return out_BW

    def outer(self, a_BTI: Tensor, d_BTO: Tensor) -> Tensor:
        """The sketch (B, W) of sum_t d_t a_t^T: circular convolutions of the sketches of the factors, by FFT."""
        a_BTW, d_BTW = (x.new_zeros(*x.shape[:2], self.width) for x in (a_BTI, d_BTO))
        add_at(a_BTW.movedim(2, 0), self.bucket_I, (a_BTI * self.sign_I).movedim(2, 0))
        add_at(d_BTW.movedim(2, 0), self.bucket_O, (d_BTO * self.sign_O).movedim(2, 0))
        spectrum = (torch.fft.rfft(a_BTW) * torch.fft.rfft(d_BTW)).sum(1)
        sketch_BW: Tensor = torch.fft.irfft(spectrum, n=self.width)
        return sketch_BW
