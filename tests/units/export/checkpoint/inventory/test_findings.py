"""What several rules find together: names, slot variables, the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.findings import Findings, table_spec
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Mod, Plain
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)

TABLE = np.zeros((8, 3), np.float32)
KEYS = [f"v{number}" for number in range(6)]


def findings(directory: Path, **more: Any) -> Findings:
    write_bundle(directory / "c", dict.fromkeys(KEYS, TABLE) | more)
    return Findings(open_checkpoint(directory))


def finding(findings: Findings, name: str, key: str, longer: str) -> tuple[TableSpec, str]:
    spec = table_spec(name, findings.checkpoint.entries[key], "Keras Embedding", "")
    return spec, longer


def names(findings: Findings) -> dict[str, str]:
    assert all(table.name == name for name, table in findings.tables.items())
    return {name: table.key for name, table in findings.tables.items()}


def test_tables_of_one_name_take_their_longer_names(tmp_path: Path) -> None:
    all_findings = findings(tmp_path)
    all_findings.add_tables(
        [finding(all_findings, "a", "v0", "x.a"), finding(all_findings, "b", "v1", "x.b")]
    )
    assert names(all_findings) == {"a": "v0", "b": "v1"}
    all_findings.add_tables(
        [finding(all_findings, "a", "v2", "y.a"), finding(all_findings, "c", "v3", "y.c")]
    )
    assert names(all_findings) == {"a": "v0", "b": "v1", "y.a": "v2", "c": "v3"}
    all_findings.add_tables(
        [finding(all_findings, "d", "v4", "y.d"), finding(all_findings, "d", "v5", "z.d")]
    )
    assert names(all_findings) == {
        "a": "v0", "b": "v1", "y.a": "v2", "c": "v3", "y.d": "v4", "z.d": "v5",
    }  # fmt: skip


def test_tables_of_a_name_that_is_taken_take_their_longer_names(tmp_path: Path) -> None:
    all_findings = findings(tmp_path)
    all_findings.add_tables([finding(all_findings, "a", "v0", "x.a")])
    all_findings.add_tables(
        [finding(all_findings, "a", "v1", "y.a"), finding(all_findings, "a", "v2", "z.a")]
    )
    assert names(all_findings) == {"a": "v0", "y.a": "v1", "z.a": "v2"}


def test_table_that_is_rejected_says_why(tmp_path: Path) -> None:
    all_findings = findings(tmp_path)
    all_findings.add_tables([finding(all_findings, "a", "v0", "x.a")])
    all_findings.reject("b", "v1", "for a reason")
    all_findings.reject("c", "v2", "for another")
    inventory = all_findings.inventory()
    assert inventory.table("a").key == "v0"
    with pytest.raises(NotConvertible) as error:
        inventory.table("c")
    assert str(error.value) == "table 'c' in checkpoint c cannot be exported: for another"
    with pytest.raises(NotConvertible, match="checkpoint c has no table 'd'"):
        inventory.table("d")


def test_table_never_takes_the_place_of_another(tmp_path: Path) -> None:
    all_findings = findings(tmp_path)
    all_findings.add_tables(
        [
            finding(all_findings, "a", "v0", "a"),
            finding(all_findings, "v2", "v1", "x"),
        ]
    )
    all_findings.add_tables([finding(all_findings, "a", "v3", "a")])
    assert names(all_findings) == {"a": "v0", "v2": "v1", "v3": "v3"}
    all_findings.add_tables([finding(all_findings, "a", "v2", "a")])
    assert names(all_findings) == {"a": "v0", "v2": "v1", "v3": "v3", "v2'": "v2"}


def test_inventory_sorts_what_was_found(tmp_path: Path) -> None:
    all_findings = findings(tmp_path, text=b"words", small=np.zeros(2, np.int64))
    all_findings.add_tables(
        [finding(all_findings, "z", "v0", "z"), finding(all_findings, "a", "v1", "a")]
    )
    all_findings.reject("y", "v2", "for a reason")
    all_findings.reject("b", "v5", "for another")
    all_findings.add_slot("m", "v4", "v0")
    all_findings.add_slot("gone", "none", "v0")
    all_findings.add_slot("l", "v3", "v0")
    sorted_out = all_findings.inventory(7)
    assert [table.name for table in sorted_out.tables] == ["a", "z"]
    assert [[slot.name for slot in table.slots] for table in sorted_out.tables] == [[], ["l", "m"]]
    assert [rejected_table.name for rejected_table in sorted_out.rejected] == ["b", "y"]
    assert [slot.key for slot in sorted_out.slots] == ["v3", "v4"]
    assert sorted_out.slot_bytes == 2 * TABLE.nbytes
    assert [entry.key for entry in sorted_out.dense] == ["small"]
    assert (sorted_out.step, sorted_out.objects, sorted_out.storage) == (7, False, "TensorFlow")
    assert all_findings.claimed_keys() == {"v0", "v1", "v2", "v3", "v4", "v5"}


def test_slot_variables_of_no_table_are_listed_alone(tmp_path: Path) -> None:
    all_findings = findings(tmp_path)
    all_findings.add_slot("m", "v4", "v0")
    sorted_out = all_findings.inventory()
    assert ([slot.trained_key for slot in sorted_out.slots], sorted_out.step) == (["v0"], None)
    assert [entry.key for entry in sorted_out.dense] == ["v0", "v1", "v2", "v3", "v5"]


def test_paths_are_those_of_the_object_graph(tmp_path: Path) -> None:
    all_findings = findings(tmp_path / "names")
    assert (all_findings.paths_by_key, all_findings.keys_by_path) == ({}, {})
    graph = object_graph(
        node({"a": 1, "b": 2, "long": 3}), node(key="k" + SUFFIX), node({"x": 1}), node(key="gone")
    )
    write_bundle(tmp_path / "objects/c", {"k" + SUFFIX: TABLE, GRAPH: graph})
    all_findings = Findings(open_checkpoint(tmp_path / "objects"))
    assert all_findings.paths_by_key["k" + SUFFIX] == "a"
    assert all_findings.keys_by_path == {"a": "k" + SUFFIX}
    assert all_findings.inventory().objects


def test_table_takes_the_whole_variable_unless_it_says_otherwise(tmp_path: Path) -> None:
    entry = findings(tmp_path).checkpoint.entries["v0"]
    whole = table_spec("a", entry, "named", "p")
    assert (whole.rows, whole.dim, whole.stored, whole.bytes) == (8, 3, (8, 3), 96)
    assert (whole.layout, whole.path, whole.slices, whole.files) == (Plain(), "p", 1, 1)
    part = table_spec("a", entry, "named", "", rows=5, dim=2, layout=Mod((0, 3)), note="n")
    assert (part.rows, part.dim, part.stored, part.bytes) == (5, 2, (8, 3), 40)
    assert (part.layout, part.note) == (Mod((0, 3)), "n")
