"""Exit code 3: a checkpoint that is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from tests.laws.stored_arrays import StoredArray
from tests.laws.stored_formats import FORMATS
from tests.units.export.commands import Command, rejected
from tests.units.export.movies_job import (
    Recipe,
    changed,
    visible,
    write_project,
)
from tests.units.export.traced_models import TracedCheckpoint

DATA = "ckpt-3.data-00000-of-00001"
INDEX = "ckpt-3.index"


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "expected_text"),
    [
        (INDEX, Path.unlink, "has data files but no ckpt-3.index"),
        (INDEX, cut_short, "cut short"),
        (INDEX, lambda path: flipped(path, 40), "does not match its checksum"),
        (DATA, Path.unlink, "No such file"),
        (DATA, cut_short, "it was cut short; copy it anew"),
    ],
)
@pytest.mark.parametrize("subcommand", ["inspect", "tables", "run"])
def test_damaged_checkpoint_exits_3_and_names_the_file(
    command: Command,
    recipe: Recipe,
    movies: TracedCheckpoint,
    tmp_path: Path,
    subcommand: str,
    file: str,
    damage: Callable[[Path], None],
    expected_text: str,
) -> None:
    for name in (INDEX, DATA):
        shutil.copy(movies.prefix.parent / name, tmp_path)
    damage(tmp_path / file)
    project = write_project(tmp_path, changed(recipe, "checkpoint.path", "ckpt-3"))
    arguments = {
        "inspect": [tmp_path / "ckpt-3"],
        "tables": [tmp_path / "ckpt-3", tmp_path / "bundles"],
    }
    done = command(subcommand, *arguments.get(subcommand, [project]), "--json")
    assert done.code == 3
    assert done.out == "" or file == DATA  # `inspect` lists what it could read
    assert expected_text in done.message
    assert "ckpt-3" in done.message
    assert visible(tmp_path / "bundles") == []


@pytest.mark.parametrize(
    "variable", ["embedding/_tpu_embedding/users", "query_tower/layer_with_weights-0/kernel"]
)
def test_bit_flip_in_a_stored_variable_exits_3_and_names_it(
    command: Command, recipe: Recipe, movies: TracedCheckpoint, tmp_path: Path, variable: str
) -> None:
    for name in (INDEX, DATA):
        shutil.copy(movies.prefix.parent / name, tmp_path)
    stored_values = (
        open_checkpoint(movies.prefix)
        .read_all(f"model/{variable}/.ATTRIBUTES/VARIABLE_VALUE")
        .tobytes()
    )
    flipped(tmp_path / DATA, (tmp_path / DATA).read_bytes().index(stored_values) + 5)
    project = write_project(tmp_path, changed(recipe, "checkpoint.path", "ckpt-3"))
    rejected(command, project, 3, variable.rpartition("/")[2], "copy it anew")


STORED = {
    "zarr": (FORMATS["zarr 2"], "users/0"),
    "OCDBT": (FORMATS["zarr 2 in OCDBT"], "manifest.ocdbt"),
    "safetensors": (FORMATS["safetensors"], "a.safetensors"),
}


@pytest.mark.parametrize("name", STORED)
def test_inspect_of_a_directory_with_a_fifo_exits_3_and_names_it(
    command: Command, tmp_path: Path, name: str
) -> None:
    stored_format, file = STORED[name]
    array = StoredArray(np.ones(4, np.float32), (((0, 4),),), (4,), "raw")
    stored_format.write(tmp_path, {"users": array})
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    done = command("inspect", tmp_path)
    assert done.code == 3
    assert f"{file} is a FIFO; a regular file was expected" in done.message
