from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.features.columns import Column
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores import writer as store_writer
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import StoreWriter, write_store
from tests.units.bundle.features.readers import objects

N = 500


def _columns(first: int, stop: int) -> dict[str, Column]:
    rows = np.arange(first, stop)
    lengths = rows % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    bag = np.repeat(rows, lengths)
    return {
        "number": Column(rows * 3),
        "dense": Column(rows.astype(np.float32) / 4),
        "name": Column(objects(*(f"é{row}" for row in rows.tolist()))),
        "bag": Column(bag, offsets),
        "words": Column(objects(*map(str, bag.tolist())), offsets, (bag + 0.5).astype(np.float32)),
        "grid": Column(np.repeat(rows, 2)),
    }


def _attributes(first: int, stop: int) -> dict[str, Any]:
    rows = range(first, stop)
    return {
        "title": pa.array([None if row % 7 == 3 else f"t{row}" for row in rows], pa.string()),
        "year": pa.array([None if row < 100 else row for row in rows], pa.int32()),
        "seen": pa.array([None if row == 450 else row % 2 == 0 for row in rows]),
        "tags": pa.array(
            [None if row % 5 == 0 else ["a"] * (row % 3) for row in rows], pa.list_(pa.string())
        ),
    }


@pytest.mark.parametrize("ids", [np.arange(N) * 7 - 20, objects(*(f"i{row}" for row in range(N)))])
@pytest.mark.parametrize("cuts", [[300], [64, 65, 300], [99, 100, 450, 451]])
def test_store_of_several_batches_reads_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: Any, cuts: list[int]
) -> None:
    written = write_store(tmp_path / "one", ids, _columns(0, N), _attributes(0, N))
    monkeypatch.setattr(store_writer, "BATCH_BYTES", 1 << 10)
    with StoreWriter(tmp_path / "several") as writer:
        for first, stop in zip([0, *cuts], [*cuts, N], strict=True):
            writer.append(ids[first:stop], _columns(first, stop), _attributes(first, stop))
        assert writer.finish() == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "several"]
    assert len(arrow.open_mapped(tmp_path / "several").to_batches()) > 1

    single, several = (
        CandidateStore(tmp_path / name, Corpus(file="s", **vars(written)))
        for name in ("one", "several")
    )
    for positions in (
        np.random.default_rng(0).integers(0, N, 60),
        np.array([N - 1]),
        np.empty(0, np.int64),
    ):
        assert (
            several.ids(positions).tolist()
            == single.ids(positions).tolist()
            == ids[positions].tolist()
        )
        assert several.attributes(positions, [*written.attributes]) == single.attributes(
            positions, [*written.attributes]
        )
        actual, expected = (
            store.features(positions, written.features) for store in (several, single)
        )
        for name in written.features:
            for mine, theirs in zip(actual[name], expected[name], strict=True):
                np.testing.assert_array_equal(mine, theirs, strict=mine is not None)
