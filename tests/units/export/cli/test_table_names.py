"""Names that any program may have chosen: never a path, never a command to the terminal, never two
things at once.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)
from tests.units.export.commands import Command
from tests.units.export.movies_job import visible

VALUES = np.arange(40, dtype=np.float32).reshape(10, 4)
NAMES = [
    "a/b",
    "..",
    ".",
    "../../../outside",
    "/etc/x",
    "a\0b",
    "\x1b[31mred\x07",
    "[bold]b",
    "\u202eabc",
    "n\nl",
]
NAMES += [
    "\u00fcn\u00ef",
    "\u00e9" * 3000,
    "x" * 10_000,
    "",
    " ",
    "a b",
    "-rf",
    "~",
    "C:\\x",
    "%s{}",
]
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def write_tables(prefix: Path, names: list[str], values: np.ndarray[Any, Any] = VALUES) -> None:
    """An embedding object with tables of these names, whose keys are made of them too."""
    keys = [f"e/{name}{SUFFIX}" for name in names]
    row_counts = {name: 3 + 2 * number for number, name in enumerate(names)}
    nodes = [node({"e": 1}), node({"_variables": 2}), node(row_counts)]
    for number, key in enumerate(keys):
        nodes += [node({"parameters": 4 + 2 * number}), node(key=key)]
    write_bundle(prefix, {**dict.fromkeys(keys, values), GRAPH: object_graph(*nodes)})


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_inspect_prints_hostile_names_without_control_characters(
    command: Command, tmp_path: Path
) -> None:
    write_tables(tmp_path / "c/ckpt-1", NAMES)
    done = command("inspect", tmp_path / "c")
    assert done.code == 0
    assert not OBEYED.search(done.out)
    page = command("inspect", tmp_path / "c", "--json").json
    assert set(page["tables"]) == set(NAMES)
    assert {table["rows"] for table in page["tables"].values()} == {10}


@pytest.mark.parametrize("name", NAMES)
def test_table_whose_name_is_no_file_name_is_rejected_and_writes_nothing(
    command: Command, tmp_path: Path, name: str
) -> None:
    write_tables(tmp_path / "c/ckpt-1", [name])
    before = everything(tmp_path)
    done = command("tables", tmp_path / "c", tmp_path / "out")
    assert done.code == 4
    assert not OBEYED.search(done.message)
    # The middle of a long message is left out.
    assert "--table NAME=" in done.message or len(name) > 1000
    assert [path for path in everything(tmp_path) if path not in before] in ([], ["out"])


def test_table_of_a_hostile_key_is_exported_under_the_name_that_is_given(
    command: Command, tmp_path: Path
) -> None:
    for number, name in enumerate(table_name for table_name in NAMES if "\0" not in table_name):
        write_tables(tmp_path / f"{number}/ckpt-1", [name])
        done = command(
            "tables",
            tmp_path / f"{number}",
            tmp_path / "out",
            "--model",
            f"m{number}",
            "--table",
            f"t=e/{name}",
        )
        assert done.code == 0, done.err
        page = json.loads((tmp_path / f"out/m{number}/1/manifest.json").read_bytes())
        assert page["tables"]["t"]["source"]["key"] == f"e/{name}{SUFFIX}"
        rows = "1/tables/t/rows-00000-of-00001.bin"
        assert everything(tmp_path / f"out/m{number}") == [
            "1",
            "1/manifest.json",
            "1/tables",
            "1/tables/t",
            rows,
        ]
        assert (tmp_path / f"out/m{number}" / rows).read_bytes() == VALUES.tobytes()


@pytest.mark.parametrize("model", ["../m", "/m", ".", "", "a/b", "a\nb"])
def test_model_whose_name_is_no_file_name_exits_2(
    command: Command, tmp_path: Path, model: str
) -> None:
    write_tables(tmp_path / "c/ckpt-1", ["t"])
    assert command("tables", tmp_path / "c", tmp_path / "out", "--model", model).code == 2
    assert visible(tmp_path / "out") == []


def test_table_named_twice_exits_with_both_meanings(command: Command, tmp_path: Path) -> None:
    write_tables(tmp_path / "c/ckpt-1", ["a", "b"])
    done = command(
        "tables", tmp_path / "c", tmp_path / "out", "--table", "t=e/a", "--table", "t=e/b"
    )
    assert (done.code, "--table names 't' twice, as 'e/a' and 'e/b'" in done.message) == (2, True)
    done = command(
        "tables", tmp_path / "c", tmp_path / "out", "--table", "t=e/a", "--table", f"u=e/a{SUFFIX}"
    )
    assert (done.code, "tables 't' and 'u' are both stated to be 'e/a" in done.message) == (4, True)
    assert visible(tmp_path / "out") == []
    assert (
        command(
            "tables", tmp_path / "c", tmp_path / "out", "--table", "t=e/a", "--table", "t=e/a"
        ).code
        == 0
    )
