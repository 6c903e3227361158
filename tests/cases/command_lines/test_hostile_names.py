"""Names that any program may have chosen: never a path, never a command to the terminal, never two
things at once.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bundle.storage.catalog import read_manifest
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)
from tests.units.export.commands import Command

VALUES = np.arange(40, dtype=np.float32).reshape(10, 4)
NAMES = ["a/b", "..", ".", "../../../outside", "/etc/x", "a\0b", "\x1b[31mred\x07", "[bold]b"]
NAMES += ["\u202eabc", "n\nl", "\u00fcn\u00ef", "\u00e9" * 3000, "x" * 10_000, "", " ", "a b"]
NAMES += ["-rf", "~", "C:\\x", "%s{}"]
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def write_tables(prefix: Path, names: list[str]) -> None:
    """Writes an embedding object with tables of these names, whose keys are made of them too."""
    keys = [f"e/{name}{SUFFIX}" for name in names]
    children = {name: 3 + 2 * number for number, name in enumerate(names)}
    nodes = [node({"e": 1}), node({"_variables": 2}), node(children)]
    for number, key in enumerate(keys):
        nodes += [node({"parameters": 4 + 2 * number}), node(key=key)]
    write_bundle(prefix, {**dict.fromkeys(keys, VALUES), GRAPH: object_graph(*nodes)})


def everything(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_inspect_prints_hostile_names_without_control_characters(
    command: Command, tmp_path: Path
) -> None:
    write_tables(tmp_path / "c/ckpt-1", NAMES)
    done = command("inspect", tmp_path / "c")
    assert done.code == 0
    assert not OBEYED.search(done.out)
    page = command("inspect", tmp_path / "c", "--json").json
    assert {name: table["rows"] for name, table in page["tables"].items()} == dict.fromkeys(
        NAMES, 10
    )


@pytest.mark.parametrize("name", NAMES)
def test_table_of_a_hostile_name_is_written_under_another_one_or_not_at_all(
    command: Command, tmp_path: Path, name: str
) -> None:
    write_tables(tmp_path / "c/ckpt-1", [name])
    before = everything(tmp_path)
    tables = ("tables", tmp_path / "c", tmp_path / "out")
    done = command(*tables)
    assert done.code == 4
    assert not OBEYED.search(done.message)
    # The middle of a long message is left out.
    assert "--table NAME=" in done.message or len(name) > 1000
    assert everything(tmp_path) - before <= {"out"}
    if "\0" in name:
        return

    assert command(*tables, "--table", f"t=e/{name}").code == 0
    bundle = tmp_path / "out/tables/1"
    table = read_manifest(bundle).tables["t"]
    assert table.source.key == f"e/{name}{SUFFIX}"
    assert everything(bundle) == {"manifest.json", "tables", "tables/t", table.segments[0].file}
    assert (bundle / table.segments[0].file).read_bytes() == VALUES.tobytes()
