"""What inspect tells: to people on a terminal, to programs as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import open_checkpoint
from export.cli.inspect import inventory_json, inventory_table, plan_table
from export.tables.plan import plan_tables
from tests.export.checkpoint.bundles import GRAPH, SUFFIX, node, object_graph, write_bundle

TABLE = np.zeros((8, 3), np.float32)


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    graph = object_graph(
        node({"e": 1, "w": 6}),
        node({"_variables": 2}),
        node({"items[1]": 3}),
        node({"parameters": 4, "accumulators": 5}),
        node(key="e/t" + SUFFIX),
        node(key="e/t.Sa" + SUFFIX),
        node(key="w" + SUFFIX),
    )
    variables: dict[str, np.ndarray[Any, Any] | bytes] = {
        "e/t" + SUFFIX: TABLE,
        "e/t.Sa" + SUFFIX: TABLE,
        "w" + SUFFIX: TABLE,
        GRAPH: graph,
    }
    write_bundle(tmp_path / "ckpt-7", variables)
    return recognise(open_checkpoint(tmp_path))


def shown(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_inventory_json_holds_every_variable_once(inventory: Inventory) -> None:
    page = json.loads(json.dumps(inventory_json(inventory)))
    keys = [each["key"] for part in (page["tables"].values(), page["slots"], page["dense"]) for each in part]
    assert sorted(keys) == sorted(["e/t" + SUFFIX, "e/t.Sa" + SUFFIX, "w" + SUFFIX])
    assert page["tables"]["items[1]"] | {"slots": ["accumulators"], "bytes": 96} == page["tables"]["items[1]"]
    assert page["candidates"] == ["w" + SUFFIX]
    assert page["slot_bytes"] == 96


def test_inventory_table_shows_tables_what_is_left_out_and_the_rest(inventory: Inventory) -> None:
    text = shown(inventory_table(inventory))
    for part in (
        "ckpt-7",
        "items[1]",
        "TPUEmbedding",
        "plain",
        "left out: 1 optimizer variable, which saves 96 B",
        "might be tables (1)",
        "w/.ATTR",
    ):
        assert part in text


def test_inventory_table_checkpoint_saved_by_name_says_what_to_do(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"emb": TABLE})
    assert "--table NAME=KEY" in shown(inventory_table(recognise(open_checkpoint(tmp_path))))


def test_plan_table_shows_bytes_files_and_memory(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"emb": TABLE})
    checkpoint = open_checkpoint(tmp_path)
    text = shown(plan_table(plan_tables(checkpoint, recognise(checkpoint, {"items": "emb"}), tmp_path)))
    assert "96 B read, 96 B written, 1 file, 1 task" in text
