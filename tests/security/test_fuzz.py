"""Damaged files and odd arguments, a fixed number from a seed: each is read, or refused with a sentence.

`benchmarks/fuzz.py` is the long form; what it found is kept in `test_finds.py`.
"""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import fuzz
from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_whole

QUICK = {"arrays": 60, "tables": 60, "records": 60, "embeddings": 40, "select": 150, "session": 30}
MORE = {
    "suites": 150,
    "exports": 100,
    "models": 150,
    "sessions": 200,
    "checkpoints": 150,
    "stores": 60,
    "projects": 60,
    "page": 100,
}
MORE |= {"select": 1000, "tables": 300, "arrays": 200}


def checked(name, count, start):
    found = fuzz.run(name, seed=1, count=count, start=start)
    assert not found.raw, found.examples
    assert found.inputs == count
    assert found.refused > 0
    assert found.read + found.refused == count


@pytest.mark.parametrize("name", QUICK)
def test_a_few_inputs(name):
    checked(name, QUICK[name], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_inputs(name):
    checked(name, MORE[name], 1000)


def test_a_raw_exception_is_seen_and_its_place_is_named():
    def call():
        raise KeyError("x")

    assert fuzz.tried(call) == ("outside: KeyError", "'x'")
    result, _ = fuzz.tried(lambda: check_whole("k", 1, "x"))
    assert result.startswith("io/arguments.py:")
    assert result.endswith("check_whole: TypeError")

    def refused():
        raise ArgumentError("a sentence")

    assert fuzz.tried(refused) == ("refused", "a sentence")
    assert fuzz.tried(lambda: None) == ("read", "")


def test_inputs_follow_from_the_seed_and_differ():
    data = b'{"a": [1, 2, {"b": "text"}], "c": null}'
    made = [fuzz.mutated(data, random.Random(f"{n}"), "x.json") for n in range(60)]
    assert made == [fuzz.mutated(data, random.Random(f"{n}"), "x.json") for n in range(60)]
    assert len(set(made)) > 50
