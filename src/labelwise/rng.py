"""Key: a seed that is split by name, and random numbers for each row that depend on (key, row id) alone.

No generator is advanced in place: code that needs chance folds a key by purpose (`key.fold("select", 3)`) and draws
from it. The random number of a row is a hash of its id, so it does not depend on the order of the rows, on the block
they are read in, or on the device or machine that holds them. Ties between rows are broken in the same way, by lot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError

_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Key:
    """A 64-bit seed. `fold` splits it by purpose; the other methods draw from it.

    Args:
        seed: any whole number; it is cut to 64 bits.

    >>> Key(0).fold("select", 3) == Key(0).fold("select", 3)
    True
    >>> Key(0).fold("select", 3) == Key(0).fold("select", 4)
    False
    """

    seed: int

    def fold(self, *names: str | int) -> Key:
        """Return the key for the purpose `names`; equal names give equal keys.

        Args:
            names: texts and whole numbers, such as a purpose and a round.

        Returns:
            A new key.
        """
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

        Args:
            ids: (n,) int64 ids.

        Returns:
            A tensor (n,) in float64.

        >>> Key(0).uniform(torch.tensor([5, 7])).flip(0).equal(Key(0).uniform(torch.tensor([7, 5])))
        True
        """
        # 52 bits and a half: the largest value is the float64 just below 1.
        return (_right(self._bits(ids), 12).to(torch.float64) + 0.5) * 2.0**-52

    def lots(self, ids: Tensor) -> Tensor:
        """Return one int64 for each id (n,), a function of (key, id) alone: of tied rows the smallest lot wins.

        Distinct ids have distinct lots, and every order of the lots is equally likely, whatever the ids are.

        Args:
            ids: (n,) int64 ids.

        Returns:
            A tensor (n,) in int64.

        >>> Key(0).lots(torch.tensor([5, 7])).flip(0).equal(Key(0).lots(torch.tensor([7, 5])))
        True
        """
        return self.fold("lots")._bits(ids)

    def _bits(self, ids: Tensor) -> Tensor:
        """64 random bits for each id; distinct ids have distinct bits."""
        offset = _signed((self.seed + 1) * 0x9E3779B97F4A7C15)  # + 1: the mixing leaves zero where it is
        return _mix(_mix(ids.to(torch.int64) ^ _signed(self.seed)).add_(offset))

    def exponential(self, ids: Tensor) -> Tensor:
        """Return one standard exponential in float64 for each id (n,).

        Args:
            ids: (n,) int64 ids.

        Returns:
            A tensor (n,) in float64.
        """
        return -torch.log(self.uniform(ids))

    def gumbel(self, ids: Tensor) -> Tensor:
        """Return one standard Gumbel in float64 for each id (n,); argmax of log weight + gumbel draws by weight.

        Args:
            ids: (n,) int64 ids.

        Returns:
            A tensor (n,) in float64.
        """
        return -torch.log(self.exponential(ids))


def key_of(seed: int) -> Key:
    """The key of a run, from the user's seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ArgumentError(f"seed must be an integer of at least 0, found {seed!r}")
    return Key(int(seed))


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
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of 64-bit integers that spreads every input bit over the output.

    It works in place, which saves memory and time where rows are many.
    """
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x.bitwise_xor_(_right(x, bits)).mul_(_signed(factor))
    return x.bitwise_xor_(_right(x, 31))
