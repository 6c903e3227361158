"""The exporter's benchmark at a thousandth of its size, so that it never rots."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from benchmarks.exporter import contests
from benchmarks.exporter.big_checkpoints import DIM, crc_of_zeros, write_plain, write_stack
from bundle.storage.catalog import read_manifest
from export.checkpoint.reader import open_checkpoint
from tests.repository.benchmarks.conftest import printed_by, printed_rows

SIZE = 2 << 20


def test_crc_of_zeros_equals_the_crc_of_their_bytes() -> None:
    for count in (1, 5, 1000, 1 << 16, 123_457):
        assert crc_of_zeros(count) == google_crc32c.value(bytes(count))


def test_big_checkpoints_read_back(tmp_path: Path) -> None:
    plain = write_plain(tmp_path / "plain", SIZE)
    sliced = write_plain(tmp_path / "sliced", SIZE, slices=8)
    for table in (plain, sliced):
        values = open_checkpoint(table.directory).read_all("t")
        assert values.shape == (SIZE // 512, DIM)
        assert len(np.unique(values)) > SIZE // 64
    assert (
        not open_checkpoint(write_plain(tmp_path / "hole", SIZE, hole=True).directory)
        .read_all("t")
        .any()
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_contest_copies_measures_every_layout(tmp_path: Path) -> None:
    results = contests.contest_copies(tmp_path, SIZE, (8,), 1)
    assert set(results) == {"contiguous, one slice", "contiguous, 8 slices", "SparseCore, 8 cores"}
    assert all(found["ratio"] > 0 and found["peak"] > 10 << 20 for found in results.values())
    assert contests.copied(write_plain(tmp_path / "source", SIZE).data, tmp_path / "copy") > 0


@pytest.mark.nightly
@pytest.mark.slow
def test_terabyte_is_inspected_planned_and_linked_in_little_memory(tmp_path: Path) -> None:
    steps = contests.contest_sizes(tmp_path, {"1 TiB": 1 << 40})["1 TiB"]
    assert set(steps) == {"inspect", "plan", "link"}
    assert max(ran.peak_bytes for ran in steps.values()) <= 400 << 20
    assert json.loads(steps["inspect"].out)["dense"][0]["bytes"] == 1 << 40


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_contest_with_tensorflow_measures_every_exporter() -> None:
    options = ("--only", "tensorflow", "--gib", "0.0625", "--rounds", "1")
    rows = printed_rows(printed_by("benchmarks.exporter", *options))
    assert [row[0] for row in rows] == [
        "TensorFlow, tf.Variable(zeros)",
        "TensorFlow, UninitializedVariable",
        "rowcast-export tables",
        "rowcast-export tables --tables link",
    ]
    assert all(float(figure) > 0 for row in rows for figure in row[1:4])
    assert rows[2][2:4] == ["1.00", "1.00"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.needs("jax")
def test_whole_flax_model_and_its_next_version_are_measured() -> None:
    options = ("--gib", "0.0625", "--rounds", "1")
    figures = dict(printed_rows(printed_by("benchmarks.exporter.orbax_model", *options)))
    assert float(figures["cp / tables"]) > 0
    assert figures["rows changed"] == "1.3 MiB"
    # A segment of one table, not both tables.
    assert 1 < float(figures["bytes written / changed"]) < 32
    assert float(figures["time / that of the whole"]) > 0


def test_exported_stack_is_a_whole_bundle(tmp_path: Path) -> None:
    table = write_stack(tmp_path / "stack", SIZE, 8)
    contests.exported(table, tmp_path / "out", "--full")
    entry = read_manifest(tmp_path / "out" / "tables" / "1").tables["t"]
    assert (entry.rows, entry.source.layout, entry.source.cores) == (table.rows, "sparse_core", 8)
