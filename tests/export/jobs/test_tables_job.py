"""`tables` and `inspect` with what the user says of a checkpoint, and of one that cannot be exported in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.storage import staging
from bundle.tables.reader import TableReader
from tests.export.checkpoint.bundles import GRAPH, SUFFIX, Box, node, object_graph, write_bundle
from tests.export.commands import Command
from tests.export.exporting import visible

TABLE = np.arange(70, dtype=np.float32).reshape(10, 7)
ROWS: list[Box] = [[(0, 4), (0, -1)], [(4, 3), (0, -1)], [(7, 3), (0, -1)]]
BY_MOD = np.concatenate([np.arange(0, 10, 3), np.arange(1, 10, 3), np.arange(2, 10, 3)])
"""The table's row in each stored row, where three partitions were dealt the rows."""


def bundle(root: Path) -> dict[str, Any]:
    """What a service would read: rows of every table, features."""
    directory = root / "tables/1"
    page = staging.read_manifest(directory)
    rows = {name: TableReader(directory, table).gather(np.arange(table.rows)) for name, table in page.tables.items()}
    return {"rows": rows, "features": set(page.features)}


def test_tables_with_slots_keeps_them_beside_their_table(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": TABLE, "user/embeddings/Adagrad": TABLE + 1, "k": TABLE})
    command("tables", tmp_path / "c", tmp_path / "out", "--with-slots", "--json").page  # noqa: B018
    written = bundle(tmp_path / "out")
    np.testing.assert_array_equal(written["rows"]["user"], TABLE)
    np.testing.assert_array_equal(written["rows"]["user.slot.Adagrad"], TABLE + 1)
    assert written["features"] == {"user"}


def test_tables_with_slots_where_none_is_known_says_so(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": TABLE})
    page = command("tables", tmp_path / "c", tmp_path / "out", "--with-slots", "--plan", "--json").page
    assert page["notes"] == ["no slot variables are kept: the checkpoint tells none that belongs to a table"]


@pytest.mark.parametrize("how", ["--mod", "--layout"])
def test_tables_of_partitions_come_out_in_order_when_the_user_says_mod(
    command: Command, tmp_path: Path, how: str
) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": TABLE[BY_MOD]}, boxes={"user/embeddings": ROWS})
    layout = tmp_path / "layout.toml"
    layout.write_text('[tables.user]\nkey = "user/embeddings"\nkind = "mod"\n')
    said = {"--mod": "user", "--layout": layout}[how]
    command("tables", tmp_path / "c", tmp_path / "out", how, said, "--json").page  # noqa: B018
    np.testing.assert_array_equal(bundle(tmp_path / "out")["rows"]["user"], TABLE)
    page = command("inspect", tmp_path / "c", how, said, "--json").page
    assert page["tables"]["user"]["layout"] == {"kind": "mod", "starts": [0, 4, 7]}


def test_tables_exports_what_it_can_and_tells_the_rest(command: Command, tmp_path: Path) -> None:
    nodes = [
        node({"e": 1}),
        node({"_variables": 2}),
        node({"items": 3, "lost": 4, "a/b": 5}),
        *(node({"parameters": number}) for number in (6, 7, 8)),
        *(node(key=f"e/{name}{SUFFIX}") for name in ("items", "lost", "a.Sb")),
    ]
    variables: dict[str, Any] = {f"e/{name}{SUFFIX}": TABLE for name in ("items", "a.Sb")}
    write_bundle(tmp_path / "c", {**variables, "n/embeddings": TABLE, GRAPH: object_graph(*nodes)})
    notes = command("tables", tmp_path / "c", tmp_path / "out", "--json").page["notes"]
    assert set(bundle(tmp_path / "out")["rows"]) == {"items"}
    assert any("'lost' is not exported: its variable was not saved" in note for note in notes)
    assert any("'a/b' cannot be called so" in note and "--table NAME=a/b" in note for note in notes)
    command("tables", tmp_path / "c", tmp_path / "other", "--table", "ab=a/b", "--json").page  # noqa: B018
    assert set(bundle(tmp_path / "other")["rows"]) == {"items", "ab"}


def test_tables_of_nothing_that_is_identified_exits_4_with_the_candidates(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"k": TABLE})
    done = command("tables", tmp_path / "c", tmp_path / "out")
    assert done.code == 4
    assert "no table is identified" in done.told
    assert "k [10, 7] float32" in done.told
    assert visible(tmp_path / "out") == []


def test_tables_named_by_the_user_that_cannot_be_exported_exits_4(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": TABLE, "k": TABLE.astype(np.int64)})
    done = command("tables", tmp_path / "c", tmp_path / "out", "--table", "k=k")
    assert done.code == 4
    assert "'k' holds int64 values" in done.told


def test_inspect_of_a_checkpoint_that_lacks_a_file_tells_what_it_holds_and_exits_3(
    command: Command, tmp_path: Path
) -> None:
    variables: dict[str, Any] = {"user/embeddings": TABLE, "item/embeddings": TABLE, "global_step": np.array(5)}
    write_bundle(tmp_path / "c", variables, files=3)
    whole = command("inspect", tmp_path / "c", "--json").page
    assert (whole["complete"], whole["problems"], whole["step"]) == (True, [], 5)
    (tmp_path / "c.data-00000-of-00003").unlink()
    done = command("inspect", tmp_path / "c", "--json")
    page = json.loads(done.out)
    assert (done.code, page["complete"], set(page["tables"])) == (3, False, {"user", "item"})
    assert "c.data-00000-of-00003 cannot be read: No such file" in done.told
    assert "incomplete: data file" in command("inspect", tmp_path / "c").out


def test_inspect_of_a_stored_layout_names_its_parameters(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"stack": np.zeros((64, 8), np.float32)})
    layout = tmp_path / "layout.json"
    stated = {"key": "stack", "kind": "sparse_core", "rows": 50, "dim": 5, "cores": 4, "rotation": 1}
    layout.write_text(json.dumps({"tables": {"users": stated}}))
    done = command("inspect", tmp_path / "c", "--layout", layout)
    assert "sparse core 4 x 16, offset 0, rotation 1" in done.out


def test_tables_that_are_linked_are_verified_in_full_or_not_at_all(command: Command, tmp_path: Path) -> None:
    """Their rows lie in the checkpoint's own file: to compare some of them would tell nothing."""
    large = np.arange(5000 * 4, dtype=np.float32).reshape(5000, 4)
    write_bundle(tmp_path / "c", {"user/embeddings": large})
    done = command("tables", tmp_path / "c", tmp_path / "out", "--tables", "link")
    assert (done.code, "linked, not verified" in done.out) == (0, True), done.err
    full = command("tables", tmp_path / "c", tmp_path / "out", "--tables", "link", "--full", "--json")
    assert full.code == 0, full.err
    checks = [staging.read_manifest(tmp_path / f"out/tables/{version}").verification.tables for version in (1, 2)]
    assert [check["user"].rows_compared for check in checks] == [0, 5000]
