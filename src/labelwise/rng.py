"""Key: a seed that is split by name, and random numbers for each row that depend on (key, row id) alone.

No generator is advanced in place: code that needs chance folds a key by purpose (`key.fold("select", 3)`) and draws
from it. The random number of a row is a hash of its id, so it does not depend on the order of the rows, on the block
they are read in, or on the device or machine that holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Key:
    """A 64-bit seed. `fold` splits it by purpose; the other methods draw from it.

    >>> Key(0).fold("select", 3) == Key(0).fold("select", 3)
    True
    >>> Key(0).fold("select", 3) == Key(0).fold("select", 4)
    False
    """

    seed: int

    def fold(self, *names: str | int) -> Key:
        """Return the key for the purpose `names`; equal names give equal keys."""
        plain = [name if isinstance(name, str) else int(name) for name in names]  # NumPy's integers print otherwise
        digest = hashlib.blake2b(repr((self.seed, *plain)).encode(), digest_size=8).digest()
        return Key(int.from_bytes(digest, "little"))

    def generator(self) -> torch.Generator:
        """Return a new CPU generator. Draw on the CPU and move, so that every device sees the same numbers."""
        return torch.Generator().manual_seed(self.seed & _MASK_64 >> 1)

    def numpy(self) -> np.random.Generator:
        """Return a new NumPy generator."""
        return np.random.default_rng(self.seed)

    def small(self) -> int:
        """Return the seed cut to 31 bits, for libraries that take no more."""
        return self.seed & 0x7FFFFFFF

    def uniform(self, ids: Tensor) -> Tensor:
        """Return one float64 in (0, 1) for each id (n,), a function of (key, id) alone.

        >>> Key(0).uniform(torch.tensor([5, 7])).flip(0).equal(Key(0).uniform(torch.tensor([7, 5])))
        True
        """
        offset = _signed((self.seed + 1) * 0x9E3779B97F4A7C15)  # + 1: the mixing leaves zero where it is
        bits = _mix(_mix(ids.to(torch.int64) ^ _signed(self.seed)) + offset)
        # 52 bits and a half: the largest value is the float64 just below 1.
        return (_right(bits, 12).to(torch.float64) + 0.5) * 2.0**-52

    def exponential(self, ids: Tensor) -> Tensor:
        """Return one standard exponential in float64 for each id (n,)."""
        return -torch.log(self.uniform(ids))

    def gumbel(self, ids: Tensor) -> Tensor:
        """Return one standard Gumbel in float64 for each id (n,); argmax of log weight + gumbel draws by weight."""
        return -torch.log(self.exponential(ids))


def uniforms(keys: Sequence[Key], ids: Tensor) -> Tensor:
    """Return `uniform` of several keys at once, (keys, n), in as many operations on a device as for one."""
    seeds = torch.tensor([[_signed(key.seed), _signed((key.seed + 1) * 0x9E3779B97F4A7C15)] for key in keys])
    seed_K1, offset_K1 = seeds.to(ids.device).T[:, :, None]
    bits = _mix(_mix(ids.to(torch.int64)[None] ^ seed_K1) + offset_K1)
    return (_right(bits, 12).to(torch.float64) + 0.5) * 2.0**-52


def _signed(value: int) -> int:
    """The low 64 bits as a two's complement number, as int64 tensors hold them."""
    value &= _MASK_64
    return value - (1 << 64) if value >> 63 else value


def _right(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right (torch shifts int64 arithmetically)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of 64-bit integers that spreads every input bit over the output."""
    x = (x ^ _right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _right(x, 31)
