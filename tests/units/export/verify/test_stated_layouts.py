"""Layouts that a file states: the padding after training contradicts wrong layouts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.arithmetic import ceil_div
from bundle.format.manifest import (
    PaddingCheck,
    TableCheck,
)
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.layouts import SparseCore, stored_rows
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible, VerificationFailed
from export.front_end.specs import ModelSpec, TableFacts
from export.verify.stated_layouts import (
    StatedLayout,
    check_padding,
    judge_layouts,
    judge_recipe,
    with_layouts,
)
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.verify.small_reference import job_of

Values = np.ndarray[Any, Any]
CORES = 8
FILLS = ("nan", "zeros", "random")


def stack_of(fill: str, rows: list[int], *, accumulator: bool) -> tuple[dict[str, Values], Any]:
    """A stack as jax-tpu-embedding lays it out: padded to 8 rows a core, turned by 2 cores a table.

    Returns:
      Its variables, and what a layout file says of its tables.
    """
    random = np.random.default_rng(3)
    offsets = np.cumsum([0, *(ceil_div(count, 8 * CORES) * 8 for count in rows)]).tolist()
    core_rows = offsets[-1]
    fills = {
        "nan": np.full((CORES * core_rows, 8), np.nan),
        "zeros": np.zeros((CORES * core_rows, 8)),
        "random": random.standard_normal((CORES * core_rows, 8)),
    }
    stored = fills[fill].astype(np.float32)
    slots = np.full(stored.shape, 0.1, np.float32)
    layouts = {}
    for number, count in enumerate(rows):
        layout = SparseCore(CORES, core_rows, offsets[number], number * 2 % CORES)
        positions = stored_rows(layout, np.arange(count))
        stored[positions] = random.standard_normal((count, 8))
        slots[positions] += random.random((count, 8))  # training saw every row
        layouts[f"t{number}"] = StatedTable(
            key="stack",
            kind="sparse_core",
            rows=count,
            dim=8,
            cores=CORES,
            offset=layout.offset,
            rotation=layout.rotation,
        )
    variables = {"stack": stored}
    if accumulator:
        variables["stack/Adagrad"] = slots
    return variables, layouts


def checked(directory: Path, variables: dict[str, Values], layouts: Any) -> dict[str, PaddingCheck]:
    write_bundle(directory / "ckpt", variables)
    checkpoint = open_checkpoint(directory)
    inventory = recognize(checkpoint, Statements(layouts=layouts))
    return check_padding(checkpoint, inventory.tables, [table.name for table in inventory.tables])


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("accumulator", [False, True])
@pytest.mark.parametrize("rows", [[200], [100, 30, 9], [1], [64, 128], [500, 3]])
def test_check_padding_right_layout_is_never_contradicted(
    tmp_path: Path, fill: str, accumulator: bool, rows: list[int]
) -> None:
    checked(tmp_path, *stack_of(fill, rows, accumulator=accumulator))


@pytest.mark.parametrize(
    ("fill", "accumulator"), [("nan", False), ("zeros", False), ("random", True), ("nan", True)]
)
@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ("t0", {"cores": 4}),
        ("t0", {"cores": 2}),
        ("t0", {"cores": 16}),
        ("t0", {"rotation": 1}),
        ("t0", {"rotation": 5}),
        ("t0", {"rows": 190}),
    ],
)
def test_check_padding_wrong_layout_is_contradicted_by_what_training_left(
    tmp_path: Path, fill: str, accumulator: bool, table: str, wrong: dict[str, int]
) -> None:
    variables, layouts = stack_of(fill, [201], accumulator=accumulator)
    layouts[table] = layouts[table].model_copy(update=wrong)
    with pytest.raises(NotConvertible, match=r"'t0': the layout file gives it .* correct cores"):
        checked(tmp_path, variables, layouts)


def test_check_padding_a_single_trained_row_is_no_padding(tmp_path: Path) -> None:
    """It is like itself, but its accumulators are not alike."""
    variables, layouts = stack_of("random", [256], accumulator=True)
    layouts["t0"] = layouts["t0"].model_copy(update={"rows": 255})
    with pytest.raises(NotConvertible, match=r"'Adagrad' differ from one another there, so it was"):
        checked(tmp_path, variables, layouts)


def test_check_padding_rows_that_training_never_saw_contradict_nothing(tmp_path: Path) -> None:
    """Their accumulators are as they began, which is where the padding of a wrong layout is not."""
    variables, layouts = stack_of("random", [201], accumulator=True)
    layout = SparseCore(CORES, len(variables["stack"]) // CORES, 0, 0)
    unseen = stored_rows(layout, np.arange(0, 201, 3))
    variables["stack/Adagrad"][unseen] = 0.1
    compared = PaddingCheck(rows=55, slots=("Adagrad",))
    assert checked(tmp_path, variables, layouts) == {"t0": compared}
    layouts["t0"] = layouts["t0"].model_copy(update={"cores": 4})
    with pytest.raises(NotConvertible, match="'Adagrad' differ from one another, so they were"):
        checked(tmp_path, variables, layouts)


@pytest.mark.parametrize(
    ("fill", "rows", "accumulator", "compared"),
    [
        ("zeros", 201, True, PaddingCheck(rows=55, slots=("Adagrad",))),
        ("nan", 201, False, PaddingCheck(rows=55)),
        ("random", 255, True, PaddingCheck(rows=1, slots=("Adagrad",))),
        ("random", 201, False, PaddingCheck(rows=0)),  # it looks like rows of a table
        ("zeros", 255, False, PaddingCheck(rows=0)),  # so does a single row
        ("zeros", 256, True, PaddingCheck(rows=0)),  # there is no padding
    ],
)
def test_check_padding_counts_the_rows_that_could_have_contradicted(
    tmp_path: Path, fill: str, rows: int, accumulator: bool, compared: PaddingCheck
) -> None:
    stack = stack_of(fill, [rows], accumulator=accumulator)
    assert checked(tmp_path, *stack) == {"t0": compared}


def test_check_padding_tables_that_are_left_out_of_a_stack_are_no_padding(tmp_path: Path) -> None:
    variables, layouts = stack_of("random", [100, 30, 9], accumulator=True)
    del layouts["t1"]
    with pytest.raises(NotConvertible, match=r"'t0': .*list every table of the stack"):
        checked(tmp_path, variables, layouts)


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([201], {"cores": 4}),  # without slot variables, random padding looks like a table
        ([128], {"cores": 4}),  # there is no padding
        ([200], {"rotation": 3}),  # every core holds as many rows
    ],
)
def test_check_padding_cannot_contradict_every_wrong_layout(
    tmp_path: Path, rows: list[int], wrong: dict[str, int]
) -> None:
    """What docs/reference/checkpoints.md says of the check's limits."""
    variables, layouts = stack_of("random", rows, accumulator=False)
    layouts["t0"] = layouts["t0"].model_copy(update=wrong)
    checked(tmp_path, variables, layouts)


def test_check_padding_moving_averages_may_differ_where_rows_do(tmp_path: Path) -> None:
    variables, layouts = stack_of("random", [201], accumulator=False)
    variables["stack/ExponentialMovingAverage"] = variables["stack"] * 0.5
    checked(tmp_path, variables, layouts)


@pytest.mark.parametrize(
    ("recorded", "accepted", "judged"),
    [((), True, "accepted"), (("t0",), False, "expected"), (("t0",), True, "expected")],
)
def test_judge_layouts_stated_layout_is_published_if_it_is_verified_or_accepted(
    tmp_path: Path, recorded: tuple[str, ...], accepted: bool, judged: str
) -> None:
    variables, layouts = stack_of("zeros", [200], accumulator=False)
    write_bundle(tmp_path / "ckpt", variables | {"other": np.zeros((3, 4), np.float32)})
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognize(checkpoint, Statements({"other": "other"}, layouts=layouts))
    names = ["t0", "other"]
    judged_layouts = judge_layouts(checkpoint, inventory, names, recorded, accepted, "do this")
    assert judged_layouts == {"t0": (judged, PaddingCheck(rows=56), None)}
    assert judge_layouts(checkpoint, inventory, ["other"], (), False, "do this") == {}
    with pytest.raises(VerificationFailed, match=r"'t0': the layout .* is stated.*do this"):
        judge_layouts(checkpoint, inventory, names, ("other",), False, "do this")


@pytest.mark.parametrize(
    ("count", "expected_text"),
    [
        (1, "table 't0': the layout of the rows is stated, and nothing in the checkpoint "),
        (2, "tables 't0', 't1': the layouts of the rows are stated, and nothing in the che"),
        (8, "tables 't0', 't1', 't2', 't3', 't4', 't5', 't6', 't7': the layouts of the"),
        (9, "tables 't0', 't1', 't2', 't3', 't4', 't5', 't6', 't7', ...: the layouts of the"),
    ],
)
def test_judge_layouts_lists_some_of_the_tables_that_nothing_verifies(
    tmp_path: Path, count: int, expected_text: str
) -> None:
    variables, layouts = stack_of("zeros", [9] * count, accumulator=False)
    write_bundle(tmp_path / "ckpt", variables)
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognize(checkpoint, Statements(layouts=layouts))
    with pytest.raises(VerificationFailed) as failure:
        judge_layouts(checkpoint, inventory, list(layouts), (), False, "do this")
    assert str(failure.value).startswith(expected_text)
    assert str(failure.value).endswith("finds it; do this; nothing is published")


def test_layouts_are_told_with_what_was_compared_of_each_table() -> None:
    checks = {name: TableCheck(rows_compared=5, rows=9) for name in ("stated", "recorded")}
    padding = PaddingCheck(rows=3)
    complete_checks = with_layouts(checks, {"stated": StatedLayout("accepted", padding)})
    update = {"stated_layout": "accepted", "padding": padding, "trained_ids": None}
    assert complete_checks == {
        "stated": checks["stated"].model_copy(update=update),
        "recorded": checks["recorded"],
    }


def test_check_padding_of_cores_is_read_at_both_ends_of_some(tmp_path: Path) -> None:
    """Of 40 cores, 16 are looked at, evenly spread, and those where the last round of rows ends."""
    cores = 40
    core_rows = 200
    rows = 3 * cores + 21  # 21 cores hold 4 rows, the others 3
    layout = SparseCore(cores, core_rows, 0, 0)
    positions = stored_rows(layout, np.arange(rows))
    stored = np.zeros((cores * core_rows, 2), np.float32)
    stored[positions] = np.random.default_rng(3).standard_normal((rows, 2))
    stated = StatedTable(key="stack", kind="sparse_core", rows=rows, dim=2, cores=cores)
    check = checked(tmp_path, {"stack": stored}, {"t": stated})
    looked_at = {int(core) for core in np.linspace(0, 39, 16)} | {20, 21}
    assert check == {"t": PaddingCheck(rows=64 * len(looked_at))}

    for lane, offset in ((20, 4), (21, 3), (39, core_rows - 1), (0, 4 + 31)):
        trained = stored.copy()
        trained[lane * core_rows + offset] = 7
        with pytest.raises(NotConvertible, match=rf"of {64 * len(looked_at)} of these rows, "):
            checked(tmp_path, {"stack": trained}, {"t": stated})
    for lane, offset in ((1, 4), (20, 4 + 32), (20, core_rows - 33)):
        trained = stored.copy()
        trained[lane * core_rows + offset] = 7
        checked(tmp_path, {"stack": trained}, {"t": stated})


def test_check_padding_that_repeats_a_single_row_is_contradicted(tmp_path: Path) -> None:
    variables, layouts = stack_of("random", [236], accumulator=False)
    assert checked(tmp_path, variables, layouts) == {"t0": PaddingCheck(rows=0)}
    layout = SparseCore(CORES, len(variables["stack"]) // CORES, 0, 0)
    first, second = stored_rows(layout, np.array([236, 250]))
    variables["stack"][first] = variables["stack"][second]
    with pytest.raises(NotConvertible, match="of 20 of these rows, 2 are alike and the others"):
        checked(tmp_path, variables, layouts)


@pytest.mark.parametrize("row", [200, 7 * 8])
def test_check_padding_rows_of_nothing_but_nan_at_the_end_of_a_table_are_contradicted(
    tmp_path: Path, row: int
) -> None:
    variables, layouts = stack_of("zeros", [201], accumulator=True)
    layout = SparseCore(CORES, len(variables["stack"]) // CORES, 0, 0)
    (position,) = stored_rows(layout, np.array([row]))
    variables["stack"][position, :7] = np.nan
    checked(tmp_path, variables, layouts)
    variables["stack"][position] = np.nan
    with pytest.raises(NotConvertible, match="rows before them hold nothing but NaN, as padding"):
        checked(tmp_path, variables, layouts)


def test_judge_recipe_takes_a_stated_layout_that_the_recipe_accepts(tmp_path: Path) -> None:
    variables, layouts = stack_of("zeros", [200], accumulator=False)
    write_bundle(tmp_path / "ckpt", variables)
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognize(checkpoint, Statements(layouts=layouts))
    model = ModelSpec({"t0": TableFacts("t0", "t0", 200, 8)}, {}, {})

    def judged(policy: str) -> dict[str, StatedLayout]:
        job = job_of(verify={"stated_layouts": policy})
        return judge_recipe(job, checkpoint, inventory, model, {})

    assert judged("accept") == {"t0": StatedLayout("accepted", PaddingCheck(rows=56))}
    with pytest.raises(VerificationFailed, match=r"accept the statement with verify\.stated_lay"):
        judged("verify")
