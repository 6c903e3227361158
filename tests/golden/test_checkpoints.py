"""Checkpoints that TensorFlow itself wrote, read and copied without it: every table, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.checkpoint.recognition import recognise
from export.errors import CheckpointError
from export.plan import Writing, plan_tables
from export.tables import check_sources, copy_rows, manifest_table
from export.verify import verify_tables

CASES = (
    "mid_level_sgd",
    "mid_level_adagrad",
    "mid_level_adagrad_momentum",
    "mid_level_adam",
    "mid_level_ftrl",
    "mid_level_hosts",
    "tfrs_adagrad",
    "tfrs_adam",
    "keras_float32",
    "keras_bfloat16",
    "keras_float16",
    "sharded_float32",
    "sharded_float16",
    "size_limited",
    "name_based",
)


class Case(NamedTuple):
    directory: Path
    facts: dict[str, Any]
    bits: dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, written by TensorFlow in a process of its own."""
    root = tmp_path_factory.mktemp("checkpoints")
    script = Path(__file__).with_name("write_checkpoints.py")
    done = subprocess.run(
        [sys.executable, str(script), str(root)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, written: Path) -> Case:
    """One case and what it must be read as."""
    directory = written / request.param
    with np.load(directory / "values.npz") as file:
        bits = {name.replace("|", "/"): file[name] for name in file.files}
    return Case(directory, json.loads((directory / "facts.json").read_text()), bits)


def test_recognise_checkpoint_of_tensorflow_finds_tables_slots_and_step(case: Case) -> None:
    found = recognise(open_checkpoint(case.directory), case.facts.get("named"))
    assert {table.name: (table.rows, table.dim) for table in found.tables} == {
        name: each.shape for name, each in case.bits.items()
    }
    assert {table.name: [slot.name for slot in table.slots] for table in found.tables} == case.facts["slots"]
    assert {table.dtype for table in found.tables} == {case.facts.get("dtype", "float32")}
    assert {table.origin for table in found.tables} == {case.facts["origin"]}
    assert found.step == case.facts["step"]
    assert found.refused == ()


def test_copy_checkpoint_of_tensorflow_is_equal_bit_for_bit(case: Case, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(case.directory)
    recognised = recognise(checkpoint, case.facts.get("named"))
    # A name with a slash cannot be a table's in a bundle: its variable is given another.
    named = {table.name.replace("/", "_"): table.key for table in recognised.tables}
    inventory = recognise(checkpoint, named)
    plan = plan_tables(checkpoint, inventory, tmp_path, writing=dict.fromkeys(named, Writing(30)))
    receipts = [copy_rows(task) for task in plan.tasks]
    check_sources(plan, receipts)
    tables = {table.spec.name: manifest_table(table, receipts) for table in plan.tables}
    assert set(tables) == set(named)
    for name, bits in case.bits.items():
        table = tables[name.replace("/", "_")]
        copied = b"".join((tmp_path / shard.file).read_bytes() for shard in table.shards)
        assert copied == bits.tobytes()
    checks = verify_tables(checkpoint, tmp_path, tables, None)
    assert all(check.rows_compared == check.rows for check in checks.values())


def test_open_checkpoint_of_the_first_format_is_refused_by_name(written: Path) -> None:
    with pytest.raises(CheckpointError, match="V1 checkpoint"):
        open_checkpoint(written / "version_one")


def test_optimizer_state_of_keras_is_left_out_though_it_has_the_shape_of_tables(written: Path) -> None:
    found = recognise(open_checkpoint(written / "keras_float32"))
    shapes = [tuple(open_checkpoint(written / "keras_float32").entries[slot.key].shape) for slot in found.slots]
    assert shapes.count((101, 8)) == 2
    assert (101, 8) not in [entry.shape for entry in found.dense]


def test_size_limited_case_is_cut_irregularly_over_files(written: Path) -> None:
    """Guards the case itself: it must go on exercising many slices, several files and values at odd offsets."""
    entries = open_checkpoint(written / "size_limited").entries
    tables = [entry for entry in entries.values() if len(entry.shape) == 2]
    assert all(len(entry.slices) > 3 and entry.files > 3 for entry in tables)
    assert any(part.offset % 4 for entry in tables for part in entry.slices)
