"""Arguments that are numbers: NumPy's are taken as Python's, flags and others are refused with what was expected."""

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.shards.ray import Ray
from labelwise.signals.spec import Basis
from labelwise.strategies import AcsFw, Ally, BatchBald, ProbCover, Sabal, TypiClust
from labelwise.weigh import Density

WHOLE = [
    (TypiClust, "neighbours"),
    (ProbCover, "classes"),
    (Ally, "clusters"),
    (AcsFw, "projections"),
    (BatchBald, "configurations"),
    (Sabal, "draws"),
    (Basis, "width"),
    (Ray, "workers"),
    (lambda **given: Density(TypiClust(), **given), "draws"),
    (lambda **given: lw.ensemble(lw.TorchLearner(torch.nn.Linear(2, 2)), **given), "members"),
]


@pytest.mark.parametrize(("make", "name"), WHOLE)
def test_whole_numbers_are_of_any_library_and_no_flags(make, name):
    found = getattr(make(**{name: np.int64(5)}), name)
    assert found == 5
    assert type(found) is int
    for wrong in (True, 0, 2.5, "5"):
        with pytest.raises(ArgumentError, match=rf"{name}.* is a whole number of at least \d"):
            make(**{name: wrong})


def test_none_passes_only_where_it_is_the_default():
    assert AcsFw(projections=None).projections is None
    with pytest.raises(ArgumentError, match=r"TypiClust\(neighbours=...\) is a whole number"):
        TypiClust(neighbours=None)


def test_flags_are_true_or_false():
    assert Sabal(bias=np.bool_(False)).bias is False
    with pytest.raises(ArgumentError, match=r"Sabal\(bias=...\) is True or False, not 1"):
        Sabal(bias=1)
