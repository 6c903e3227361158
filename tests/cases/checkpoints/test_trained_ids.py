"""What ids of training show of a layout, and what they cannot show; the law for any stack is in
tests/laws/test_layout_proofs.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cases.checkpoints.inspections import run
from tests.laws.trained_stacks import DIM, Stack, TrainedTable, packed, train
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle
from tests.units.export.commands import CommandResult

Counts = NDArray[np.int64]
RANDOM = np.random.default_rng(4)
ONCE: Counts = (RANDOM.random(200) < 0.4).astype(np.int64)
OTHERS: Counts = (RANDOM.random(300) < 0.4).astype(np.int64)
OFTEN: Counts = RANDOM.integers(1, 5, 256)
"""How often training read each row of a table."""


def trained(counts: Any, optimizer: str = "adagrad") -> TrainedTable:
    return train(np.random.default_rng(1), optimizer, np.asarray(counts, np.int64))


def write_stack(
    directory: Path, *tables: TrainedTable, optimizer: str = "adagrad", **changed: Any
) -> None:
    """Writes tables as a stack over 8 cores, in which each is turned by 2 cores more than the one
    before.
    """
    rows = [len(table.values) for table in tables]
    rotations = [2 * number for number in range(len(rows))]
    variables = Stack(optimizer, tables, packed(rows, 8, rotations)).variables()
    write_bundle(directory / "ckpt", variables | changed.get("variables", {}))


def planned(directory: Path, layouts: dict[str, Any], **ids: Any) -> CommandResult:
    """Plans an export of tables by layouts and by ids."""
    options = []
    for name, rows in ids.items():
        (directory / f"{name}.txt").write_text("\n".join(map(str, rows)))
        options.append(f"--trained-ids={name}={directory / f'{name}.txt'}")
    tables = {name: {"key": "stack", **layout} for name, layout in layouts.items()}
    if tables:
        (directory / "l.json").write_text(json.dumps({"tables": tables}))
        options += ["--layout", str(directory / "l.json")]
    return run("tables", directory, directory / "out", *options, "--plan", "--json")


def derived(**rows: int) -> dict[str, Any]:
    return {name: {"kind": "derive", "rows": count, "dim": DIM} for name, count in rows.items()}


def assert_rejected(done: CommandResult, *words: str) -> None:
    assert done.code == 4, done
    for expected in words:
        assert expected in done.message


def test_ids_tell_nothing_where_training_read_every_row(tmp_path: Path) -> None:
    write_stack(tmp_path, trained(OFTEN))
    done = planned(tmp_path, derived(t=256), t=range(256))
    assert_rejected(done, "'t'", "more than one layout", ": rows in order | mod over", "state")


def test_small_table_of_a_stack_is_derived_only_if_its_ids_leave_one_layout(
    tmp_path: Path,
) -> None:
    tables = [trained(np.ones(3)), trained(OTHERS)]
    write_stack(tmp_path, *tables)
    ids = {name: table.trained for name, table in zip("ab", tables, strict=True)}
    done = planned(tmp_path, derived(a=3, b=300), **ids)
    # The ids of the other table show the cores and the offset, and leave the rotation.
    assert_rejected(done, "'a'", "more than one layout", "of 3 read", ": 8 cores | 8 cores, rot")
    done = planned(tmp_path, derived(a=3, b=300), b=ids["b"])
    assert "offset 8, rotation 2" in done.json["tables"]["b"]["note"]


def test_table_that_no_ids_tell_is_left_out_of_a_derived_stack(tmp_path: Path) -> None:
    tables = [trained(ONCE), trained(OTHERS)]
    write_stack(tmp_path, *tables)
    done = planned(tmp_path, derived(a=200, b=300), b=tables[1].trained)
    assert list(done.json["tables"]) == ["b"]
    done = run("inspect", tmp_path, "--layout", tmp_path / "l.json", "--json")
    assert "without ids that occur" in done.json["rejected"][0]["reason"]


@pytest.mark.parametrize("mod", [True, False])
def test_ids_of_training_tell_mod_from_div(tmp_path: Path, mod: bool) -> None:
    table = trained(ONCE[:199])
    order = np.arange(199)
    if mod:
        order = np.concatenate([order[part::3] for part in range(3)])
    boxes: list[Box] = [[(0, 67), (0, -1)], [(67, 66), (0, -1)], [(133, 66), (0, -1)]]
    variables = {"stack": table.values[order], "stack/Adagrad": table.slots["Adagrad"][order]}
    write_bundle(tmp_path / "ckpt", variables, boxes=dict.fromkeys(variables, boxes))
    page = planned(tmp_path, {"t": {"kind": "derive"}}, t=table.trained).json["tables"]["t"]
    assert page["layout"]["kind"] == ("mod" if mod else "plain")
    for kind in ("mod", "plain"):
        done = planned(tmp_path, {"t": {"kind": kind}}, t=table.trained)
        if kind == page["layout"]["kind"]:
            assert done.json["tables"]["t"]["trained_ids"]["decisive"]
        else:
            assert_rejected(done, "contradicts the ids of training")


Ids = Callable[[TrainedTable], Any]
BAD_IDS: dict[str, tuple[Ids, str]] = {
    "of a larger table": (lambda table: [3, 200, 300], "such as row 200 of 200"),
    "of another feature": (lambda table: np.flatnonzero(OTHERS[:200]), "no layout"),
    "too few": (lambda table: table.trained[:3], "more than one layout"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_ids_that_cannot_be_those_of_training_are_rejected(case: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    table = trained((random.random(200) < 0.7) * random.integers(1, 50, 200))
    write_stack(tmp_path, table)
    wrong, words = BAD_IDS[case]
    assert_rejected(planned(tmp_path, derived(t=200), t=wrong(table)), "'t'", words)


def test_ids_are_compared_with_a_table_in_order_too(tmp_path: Path) -> None:
    table = trained(ONCE)
    variables = {"t/embeddings": table.values, "t/embeddings/Adagrad": table.slots["Adagrad"]}
    write_bundle(tmp_path / "ckpt", variables)
    page = planned(tmp_path, {}, t=table.trained).json["tables"]["t"]
    assert page["note"].startswith("its layout was compared with trained ids")
    assert_rejected(
        planned(tmp_path, {}, t=(table.trained + 1) % 200), "contradicts the ids of training"
    )


STACK = np.zeros((256, DIM), np.float32)
SLOTS_OF_ONE_VALUE = {"stack/Adagrad": STACK + np.float32(0.1)}
STATED = {"kind": "sparse_core", "rows": 200, "dim": DIM, "cores": 8}


@pytest.mark.parametrize(
    ("variables", "layouts", "words"),
    [
        ({"stack": STACK} | SLOTS_OF_ONE_VALUE, derived(t=200), "optimizer had been reset"),
        ({"stack": STACK}, derived(t=200), "no slot variables of 'stack'"),
        ({"stack": STACK}, {"t": STATED}, "no slot variables of 'stack'"),
    ],
)
def test_checkpoint_without_marks_of_training_proves_nothing(
    variables: dict[str, Any], layouts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "ckpt", variables)
    assert_rejected(planned(tmp_path, layouts, t=np.flatnonzero(ONCE)), words)


@pytest.mark.parametrize(
    ("layouts", "words"),
    [
        ({"a": {"kind": "derive", "rows": 100}, "b": {"kind": "derive"}}, "'rows' and 'dim'"),
        ({"a": {"kind": "derive", "rows": 100}, "b": {"kind": "plain"}}, "'b' is stated"),
        ({"a": {"kind": "derive", "rows": 300}}, "[300, 8]"),
        (derived(a=200, b=200), "cannot hold tables of 200, 200 rows"),
    ],
)
def test_layout_file_that_cannot_be_derived_is_rejected(
    tmp_path: Path, layouts: dict[str, Any], words: str
) -> None:
    write_stack(tmp_path, trained(ONCE))
    assert_rejected(planned(tmp_path, layouts, **{key: [1, 2] for key in layouts}), words)


def test_a_statement_that_ids_do_not_decide_is_neither_proved_nor_contradicted(
    tmp_path: Path,
) -> None:
    """Training read the first rows, whole rounds over the cores: any rotation explains them."""
    write_stack(tmp_path, trained(np.arange(256) < 64))
    for rotation in (0, 3):
        stated = {"t": STATED | {"rows": 256, "rotation": rotation}}
        table = planned(tmp_path, stated, t=range(64)).json["tables"]["t"]
        assert not table["trained_ids"]["decisive"]
        assert "does not decide it" in table["note"]
    assert_rejected(planned(tmp_path, derived(t=256), t=range(64)), "64 of 64")
