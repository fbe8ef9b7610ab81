import hashlib
import math

import numpy as np
import pytest
import torch
from scipy.stats import expon, gumbel_r, kstest

from labelwise.rng import Key
from labelwise.verify.chi_square import chi_square_p

ALARM = 1e-7  # seeds are fixed, so a test that passes once passes always; this is the chance of a false alarm


def _unmix(x: int) -> int:
    """The inverse of the splitmix64 finaliser, to build ids whose draw is extreme."""

    def unshift(y: int, bits: int) -> int:
        x = y
        for _ in range(64 // bits + 1):
            x = y ^ (x >> bits)
        return x

    mask = (1 << 64) - 1
    x = unshift(x, 31)
    x = unshift(x * pow(0x94D049BB133111EB, -1, 1 << 64) & mask, 27)
    return unshift(x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask, 30)


def _id_whose_bits_are(bits: int, seed: int) -> int:
    mask = (1 << 64) - 1
    inner = (_unmix(bits) - seed * 0x9E3779B97F4A7C15) & mask
    value = (_unmix(inner) ^ seed) & mask
    return value - (1 << 64) if value >> 63 else value


def test_golden_values():
    """A change of the hash changes every pick of every user: it has to be noticed."""
    u = Key(7).uniform(torch.tensor([0, 1, 2, 1 << 62, -1]))
    assert u.tolist() == [
        0.6046974383364349,
        0.10524225768376316,
        0.7615409246988966,
        0.683011513678628,
        0.03713176084782088,
    ]
    assert Key(0).fold("select", 3).seed == int.from_bytes(
        hashlib.blake2b(b"(0, 'select', 3)", digest_size=8).digest(), "little"
    )
    assert Key(0).fold("select", 3).seed == 17650821542563033010


@pytest.mark.parametrize("seed", [0, 1, 12345, (1 << 64) - 1])
def test_draws_follow_their_laws(seed: int):
    ids = torch.arange(20_000)
    key = Key(seed)
    assert kstest(key.uniform(ids).numpy(), "uniform").pvalue > ALARM
    assert kstest(key.exponential(ids).numpy(), expon.cdf).pvalue > ALARM
    assert kstest(key.gumbel(ids).numpy(), gumbel_r.cdf).pvalue > ALARM


@pytest.mark.parametrize("stride", [1, 2, 1 << 20, 1 << 40])
def test_strided_ids_are_uniform(stride: int):
    ids = torch.arange(10_000) * stride
    assert kstest(Key(3).uniform(ids).numpy(), "uniform").pvalue > ALARM


@pytest.mark.slow
def test_one_id_over_many_seeds_is_uniform():
    """Users count seeds 0, 1, 2, ...: the draws of one row over them must be uniform too."""
    for row in (0, 1, 999):
        draws = [float(Key(seed).uniform(torch.tensor([row]))) for seed in range(4000)]
        assert kstest(draws, "uniform").pvalue > ALARM


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Key(0), Key(1)),
        (Key(5), Key(5).fold("x")),
        (Key(5).fold("list", 0), Key(5).fold("list", 1)),
        (Key(5).fold("keep", 0), Key(5).fold("wait", 0)),
    ],
)
def test_draws_of_two_keys_are_independent(a: Key, b: Key):
    ids = torch.arange(40_000)
    cells = (a.uniform(ids) * 10).long() * 10 + (b.uniform(ids) * 10).long()
    counts = torch.bincount(cells, minlength=100).numpy()
    assert chi_square_p(counts, np.full(100, 0.01)) > ALARM


def test_draws_of_neighbouring_ids_are_independent():
    u = Key(11).uniform(torch.arange(40_001))
    cells = (u[:-1] * 10).long() * 10 + (u[1:] * 10).long()
    assert chi_square_p(torch.bincount(cells, minlength=100).numpy(), np.full(100, 0.01)) > ALARM


def test_every_bit_of_the_id_matters():
    key = Key(1)
    base = key.uniform(torch.tensor([12345]))
    for bit in range(63):
        assert key.uniform(torch.tensor([12345 ^ (1 << bit)])) != base


def test_random_subsets_of_two_are_equally_likely():
    """The two highest draws of five rows: each of the ten pairs has chance 1/10."""
    ids = torch.arange(5)
    pairs: dict[tuple[int, ...], int] = {}
    for seed in range(5000):
        top = tuple(sorted(Key(seed).uniform(ids).topk(2).indices.tolist()))
        pairs[top] = pairs.get(top, 0) + 1
    assert len(pairs) == 10
    assert chi_square_p(list(pairs.values()), np.full(10, 0.1)) > ALARM


def test_draws_do_not_depend_on_order_block_or_width():
    ids = torch.randperm(5000, generator=torch.Generator().manual_seed(0)) - 2500
    key = Key(9).fold("any")
    whole = key.uniform(ids)
    assert torch.equal(torch.cat([key.uniform(part) for part in ids.split(7)]), whole)
    back = ids.argsort()
    assert torch.equal(key.uniform(ids[back]), whole[back])
    assert torch.equal(key.uniform(ids.to(torch.int32)), whole)
    assert whole.dtype == torch.float64


@pytest.mark.parametrize("value", [0, 1, -1, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63)])
def test_extreme_ids(value: int):
    ids = torch.tensor([value])
    for seed in (0, 1, (1 << 64) - 1, 1 << 80):
        key = Key(seed)
        assert 0 < float(key.uniform(ids)) < 1
        assert math.isfinite(float(key.gumbel(ids)))
        assert math.isfinite(float(key.exponential(ids)))


@pytest.mark.parametrize("seed", [0, 1, 987654321])
@pytest.mark.parametrize("bits", [0, (1 << 64) - 1, (1 << 63) - 1, 1 << 63])
def test_draws_are_strictly_inside_zero_and_one_for_the_extreme_hashes(seed: int, bits: int):
    """Ids are built so that the hash is all zeros or all ones: uniform in (0, 1), the others finite."""
    ids = torch.tensor([_id_whose_bits_are(bits, seed)])
    key = Key(seed)
    assert 0 < float(key.uniform(ids)) < 1
    assert float(key.exponential(ids)) > 0
    assert math.isfinite(float(key.gumbel(ids)))


def test_row_zero_under_seed_zero_is_no_special_case():
    """The default id under the default seed: 0 must not be a fixed point of the hash, or row 0 is always last."""
    assert 1e-6 < float(Key(0).uniform(torch.tensor([0]))) < 1 - 1e-6


def test_fold_is_injective_on_many_names():
    names: list[tuple[str | int, ...]] = [()]
    names += [(i,) for i in range(200)] + [(str(i),) for i in range(200)]
    names += [(a, b) for a in ("select", "list", "keep", "", "a", "a'", 'a"', "1, 2", "('") for b in range(50)]
    names += [("ab", "c"), ("a", "bc"), ("abc",), ("a", "b", "c"), ("a, b", "c"), ("a', 'b",), (1, 2), ("1", 2)]
    names += [(-1,), (1 << 70,)]
    assert len(set(names)) == len(names)
    for seed in (0, 1):
        assert len({Key(seed).fold(*name).seed for name in names}) == len(names)
    assert Key(0).fold("a") != Key(1).fold("a")
    assert Key(12).fold("a") != Key(1).fold(2, "a")


def test_fold_takes_numpy_integers_as_integers():
    """A step counted by NumPy must give the chance of the same step counted by Python."""
    assert Key(0).fold("select", np.int64(3)) == Key(0).fold("select", 3)  # type: ignore[arg-type]


def test_fold_and_generators_fit_their_ranges():
    for seed in (0, 5, (1 << 64) - 1):
        key = Key(seed).fold("x")
        assert 0 <= key.seed < 1 << 64
        assert 0 <= key.small() < 1 << 31
        assert torch.equal(torch.rand(3, generator=key.generator()), torch.rand(3, generator=key.generator()))
        assert np.array_equal(key.numpy().random(3), key.numpy().random(3))
    assert float(Key(0).fold("x").numpy().random()) != float(Key(0).fold("y").numpy().random())


def test_draws_leave_the_global_generators_alone():
    torch.manual_seed(0)
    before, state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    key = Key(0)
    key.gumbel(torch.arange(10))
    torch.rand(2, generator=key.generator())
    key.numpy().random()
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002
