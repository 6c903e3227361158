"""Layouts that a file states: what training left in the padding of a stack never contradicts the
right layout, and contradicts wrong ones where it can.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.manifest import PaddingCheck
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.layouts import SparseCore, stored_rows
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from export.verify.stated_layouts import check_padding
from tests.units.export.checkpoint.tensor_bundles import write_bundle

CORES = 8
FILLS = ("nan", "zeros", "random")
"""What a training program leaves in rows that no table has."""


@dataclass
class StatedStack:
    """A stack as jax-tpu-embedding lays it out: padded to 8 rows a core, turned by 2 cores a table.

    Attributes:
      variables: The variables of a checkpoint.
      layouts: What a layout file says of the tables `t0`, `t1` and so on.
      layout: The layout of the first table.
    """

    variables: dict[str, NDArray[Any]]
    layouts: dict[str, StatedTable]
    layout: SparseCore

    def state(self, **wrong: int) -> None:
        """Changes what is stated of the first table."""
        self.layouts["t0"] = self.layouts["t0"].model_copy(update=wrong)

    def positions(self, *rows: int) -> NDArray[np.int64]:
        """Returns where rows of the first table are stored, or rows of padding behind them."""
        return stored_rows(self.layout, np.array(rows))

    def checked(self) -> dict[str, PaddingCheck]:
        with tempfile.TemporaryDirectory() as directory:
            write_bundle(Path(directory) / "ckpt", self.variables)
            checkpoint = open_checkpoint(Path(directory))
            inventory = recognize(checkpoint, Statements(layouts=self.layouts))
            names = [table.name for table in inventory.tables]
            return check_padding(checkpoint, inventory.tables, names)


def stack_of(fill: str, rows: list[int], *, accumulator: bool = False) -> StatedStack:
    random = np.random.default_rng(3)
    offsets = np.cumsum([0, *(ceil_div(count, 8 * CORES) * 8 for count in rows)]).tolist()
    core_rows = offsets[-1]
    shape = (CORES * core_rows, 8)
    stored = {"nan": np.full(shape, np.nan), "zeros": np.zeros(shape)}.get(fill)
    if stored is None:
        stored = random.standard_normal(shape)
    stored = stored.astype(np.float32)
    slots = np.full(shape, 0.1, np.float32)
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
    return StatedStack(variables, layouts, SparseCore(CORES, core_rows, 0, 0))


@given(st.sampled_from(FILLS), st.lists(st.integers(1, 500), min_size=1, max_size=3), st.booleans())
def test_right_layout_is_never_contradicted(fill: str, rows: list[int], accumulator: bool) -> None:
    stack_of(fill, rows, accumulator=accumulator).checked()


@given(
    st.sampled_from([("nan", False), ("zeros", False), ("random", True), ("nan", True)]),
    st.sampled_from(
        [{"cores": 2}, {"cores": 4}, {"cores": 16}, {"rotation": 1}, {"rotation": 5}, {"rows": 190}]
    ),
)
def test_wrong_layout_is_contradicted_by_what_training_left(
    filled: tuple[str, bool], wrong: dict[str, int]
) -> None:
    fill, accumulator = filled
    stack = stack_of(fill, [201], accumulator=accumulator)
    stack.state(**wrong)
    with pytest.raises(NotConvertible, match="'t0'"):
        stack.checked()


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
def test_report_counts_the_rows_that_could_have_contradicted(
    fill: str, rows: int, accumulator: bool, compared: PaddingCheck
) -> None:
    assert stack_of(fill, [rows], accumulator=accumulator).checked() == {"t0": compared}


def trained(rows: int, fill: str = "random", accumulator: bool = True) -> StatedStack:
    return stack_of(fill, [rows], accumulator=accumulator)


def untrained_rows() -> StatedStack:
    """Rows that training never saw have accumulators as padding has."""
    stack = trained(201)
    stack.variables["stack/Adagrad"][stack.positions(*range(0, 201, 3))] = 0.1
    return stack


def averages() -> StatedStack:
    """Moving averages differ where rows do."""
    stack = trained(201, accumulator=False)
    stack.variables["stack/ExponentialMovingAverage"] = stack.variables["stack"] * 0.5
    return stack


def half_nan() -> StatedStack:
    stack = trained(201, "zeros")
    stack.variables["stack"][stack.positions(200), :7] = np.nan
    return stack


def all_nan(row: int) -> StatedStack:
    """A row that a table is stated to have holds nothing but NaN, as padding does."""
    stack = trained(201, "zeros")
    stack.variables["stack"][stack.positions(row)] = np.nan
    return stack


def repeated() -> StatedStack:
    stack = trained(236, accumulator=False)
    first, second = stack.positions(236, 250)
    stack.variables["stack"][first] = stack.variables["stack"][second]
    return stack


def stated(stack: StatedStack, **wrong: int) -> StatedStack:
    stack.state(**wrong)
    return stack


def left_out() -> StatedStack:
    stack = stack_of("random", [100, 30, 9], accumulator=True)
    del stack.layouts["t1"]
    return stack


CONTRADICTED: dict[str, Callable[[], StatedStack]] = {
    "a single trained row in place of padding": lambda: stated(trained(256), rows=255),
    "untrained rows by another number of cores": lambda: stated(untrained_rows(), cores=4),
    "a table that is left out of the stack": left_out,
    "padding of which two rows are alike": repeated,
    "nothing but NaN in the last row": lambda: all_nan(200),
    "nothing but NaN in the last row of a core": lambda: all_nan(7 * 8),
}
# What docs/reference/checkpoints.md says of the limits of the check is among these.
UNCONTRADICTED: dict[str, Callable[[], StatedStack]] = {
    "untrained rows": untrained_rows,
    "moving averages": averages,
    "a row of which a value is a number": half_nan,
    "random padding without slot variables": lambda: stated(
        trained(201, accumulator=False), cores=4
    ),
    "a stack without padding": lambda: stated(trained(128, accumulator=False), cores=4),
    "cores of as many rows": lambda: stated(trained(200, accumulator=False), rotation=3),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_what_cannot_be_padding_contradicts_the_layout(name: str) -> None:
    with pytest.raises(NotConvertible, match="'t0'"):
        CONTRADICTED[name]().checked()


@pytest.mark.parametrize("name", UNCONTRADICTED)
def test_what_may_be_padding_contradicts_nothing(name: str) -> None:
    UNCONTRADICTED[name]().checked()


def test_padding_of_many_cores_is_read_at_both_ends_of_some() -> None:
    """Of 40 cores, 16 are looked at, evenly spread, and those where the last round of rows ends."""
    cores = 40
    core_rows = 200
    rows = 3 * cores + 21  # 21 cores hold 4 rows, the others 3
    layout = SparseCore(cores, core_rows, 0, 0)
    stored = np.zeros((cores * core_rows, 2), np.float32)
    values = np.random.default_rng(3).standard_normal((rows, 2))
    stored[stored_rows(layout, np.arange(rows))] = values
    statement = StatedTable(key="stack", kind="sparse_core", rows=rows, dim=2, cores=cores)

    def with_row(core: int, offset: int) -> StatedStack:
        changed = stored.copy()
        changed[core * core_rows + offset] = 7
        return StatedStack({"stack": changed}, {"t": statement}, layout)

    for core, offset in ((20, 4), (21, 3), (39, core_rows - 1), (0, 4 + 31)):
        with pytest.raises(NotConvertible):
            with_row(core, offset).checked()
    for core, offset in ((1, 4), (20, 4 + 32), (20, core_rows - 33)):
        with_row(core, offset).checked()
