"""Features of tables: the same from every kind of file, and in every command."""

from __future__ import annotations

import csv
import datetime
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelwise.bench.data.own_table import read_own
from labelwise.errors import SourceError
from labelwise.io.encode_table import block_scale, fit_table, mixed_column, standard_features
from labelwise.io.tables import Table
from labelwise.pool import Pool
from labelwise.project.data.encoders import encoder_of
from labelwise.project.data.features import compute, pool_of
from labelwise.project.data.source import open_data
from labelwise.project.settings import Settings

N = 130
FEATURES = ("size", "rooms", "built", "town", "garden", "note", "id", "code")


def tricky() -> dict[str, list]:
    """Numbers, dates, categories, missing values, free text, ids, and numbers with texts among them."""
    rng = np.random.default_rng(0)
    first = datetime.date(2020, 1, 1)
    return {
        "size": [None if at % 11 == 3 else round(float(value), 3) for at, value in enumerate(rng.normal(80, 20, N))],
        "rooms": rng.integers(1, 6, N).tolist(),
        "built": [first + datetime.timedelta(int(days)) for days in rng.integers(0, 40, N)],
        "town": [None if at % 13 == 5 else town for at, town in enumerate(rng.choice(["Bonn", "Köln", "Ulm"], N))],
        "garden": rng.choice(["yes", "no"], N).tolist(),
        "note": [f'a house, number {at}, "quoted"\nand a line' for at in range(N)],
        "id": list(range(1000, 1000 + N)),
        "code": [*map(str, rng.integers(0, 9, N - 2)), "n/k", "?"],
        "price": rng.normal(size=N).round(4).tolist(),
    }


def written(folder: Path, ending: str) -> Path:
    path, columns = folder / f"houses{ending}", tricky()
    if ending == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    opened = gzip.open if ending.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        writer = csv.writer(file, delimiter="\t" if ".tsv" in ending else ",")
        writer.writerow(columns)
        writer.writerows(zip(*(["" if value is None else value for value in column] for column in columns.values())))
    return path


def labelling(path: Path, folder: Path) -> Pool:
    """The pool of a project, as `labelwise label` makes it."""
    settings = Settings(name="x", kind="table", source=str(path), columns=FEATURES)
    data = open_data(settings, folder)
    compute(folder / "features", data, encoder_of("auto", "table", data), "", lambda *_: None)
    return pool_of(folder / "features", {})


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet"])
def test_both_commands_make_the_same_features_of_every_kind_of_file(tmp_path: Path, ending: str):
    path = written(tmp_path, ending)
    pool = labelling(path, tmp_path)
    own = read_own(path, "price", features=FEATURES)
    simulated = own.features(np.arange(N))
    assert pool.ids.tolist() == own.rows.tolist() == list(range(N))
    assert np.array_equal(pool.inputs(pool.ids).numpy(), simulated)
    (tmp_path / "other").mkdir()
    plain = read_own(written(tmp_path / "other", ".csv"), "price", features=FEATURES)
    assert np.array_equal(simulated, plain.features(np.arange(N)))


def test_a_comparison_learns_the_encoding_from_the_rows_to_choose_from(tmp_path: Path):
    own = read_own(written(tmp_path, ".csv"), "price", features=FEATURES)
    data = own.data(0, 0.2)
    pool, test = data.pool.ids.numpy(), data.test.ids.numpy()
    expected = own.features(pool)
    assert np.array_equal(data.pool.inputs(data.pool.ids).numpy(), expected[pool])
    assert np.array_equal(data.test_inputs.numpy(), expected[test])
    assert expected.shape != own.features(np.arange(N)).shape or not np.array_equal(
        expected, own.features(np.arange(N))
    )


def test_what_was_not_seen_is_another_category_or_none():
    table = Table.of({"town": ["a", "b", "a", "new"], "x": np.array([1.0, 2, 3, np.nan])})
    encoder = fit_table(table, np.arange(3))
    found = encoder.encode(table)
    assert encoder.blocks == (2, 9)
    assert found[3, :2].tolist() == [0, 0]
    assert found[3, 2] == 0.5  # the median
    many = Table.of({"town": [f"town {at:02}" for at in range(60)]})
    rare = fit_table(many).encode(many)
    assert rare.shape == (60, 51)
    assert rare[:, 50].tolist() == [0] * 50 + [1] * 10


def test_constant_columns_give_no_feature():
    table = Table.of({"x": np.array([1.0, 2]), "same": ["a", "a"], "none": ["", "?"]})
    assert fit_table(table).blocks == (9,)
    with pytest.raises(SourceError, match="the columns same, none hold the same in every row"):
        fit_table(table.subset(np.arange(2), ["same", "none"]))


def test_each_block_has_the_same_variance():
    x_ND = np.random.default_rng(0).normal(size=(50, 5)) * [1, 100, 3, 0, 7] + 5
    mean_D, scale_D = block_scale(x_ND, np.arange(40), (2, 1, 1, 1))
    y_ND = (x_ND[:40] - mean_D) / scale_D
    variance = y_ND.var(0)
    assert [variance[:2].sum(), variance[2], variance[4]] == pytest.approx([1 / 3] * 3, rel=1e-4)


def test_a_column_that_is_nearly_numbers_has_a_note():
    assert "column a holds 3 numbers, but also 'x'" in mixed_column("a", ["1", "2", "x", "", "3"])
    assert mixed_column("a", ["red", "green", "1"]) == mixed_column("a", ["1", ""]) == ""


def test_the_benchmarks_own_features_are_learnt_on_train_alone():
    columns = {"n": np.array([1.0, 3, 100]), "c": ["a", "b", "new"], "k": np.array([5.0, 5, 9])}
    rows = standard_features(columns, (), np.array([0, 1]))
    assert rows.tolist() == [[-1, 1, 0, 0], [1, 0, 1, 0], [98, 0, 0, 0]]
    assert rows.dtype == np.float32
