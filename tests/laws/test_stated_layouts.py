"""Layouts that a file states: what training left in the padding of a stack never contradicts the
right layout, and contradicts wrong ones where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.format.manifest import PaddingCheck
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from export.verify.stated_layouts import check_padding
from tests.laws.stated_stacks import stated
from tests.laws.trained_stacks import DIM, dealt, packed
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
      positions: Where the rows of the first table are stored, and then where its padding is.
    """

    variables: dict[str, NDArray[Any]]
    layouts: dict[str, StatedTable]
    positions: NDArray[np.int64]

    def state(self, **wrong: int | None) -> StatedStack:
        """Changes what is stated of the first table."""
        self.layouts["t0"] = self.layouts["t0"].model_copy(update=wrong)
        return self

    def store(self, row: int, value: Any, variable: str = "stack") -> StatedStack:
        self.variables[variable][self.positions[row]] = value
        return self

    def checked(self) -> dict[str, PaddingCheck]:
        with TemporaryDirectory() as directory:
            write_bundle(Path(directory) / "ckpt", self.variables)
            checkpoint = open_checkpoint(Path(directory))
            inventory = recognize(checkpoint, Statements(layouts=self.layouts))
            names = [table.name for table in inventory.tables]
            return check_padding(checkpoint, inventory.tables, names)


def stack_of(*rows: int, fill: str = "random", slots: bool = True) -> StatedStack:
    """Stacks tables of random values, with an accumulator that changed in every row of a table."""
    random = np.random.default_rng(3)
    places = packed(rows, CORES, [2 * number % CORES for number in range(len(rows))])
    blocks = [
        dealt(random.standard_normal((count, DIM)), CORES, place.rotation, np.nan)
        for count, place in zip(rows, places, strict=True)
    ]
    stored = np.concatenate(blocks, axis=1).reshape(-1, DIM).astype(np.float32)
    accumulators = np.where(np.isnan(stored), 0.1, 0.1 + random.random(stored.shape))
    if fill != "nan":
        padding = np.zeros(stored.shape)
        if fill == "random":
            padding = random.standard_normal(stored.shape)
        stored = np.where(np.isnan(stored), padding, stored).astype(np.float32)
    variables = {"stack": stored}
    if slots:
        variables["stack/Adagrad"] = accumulators.astype(np.float32)
    layouts = {
        f"t{number}": stated(count, place)
        for number, (count, place) in enumerate(zip(rows, places, strict=True))
    }
    of_core = len(blocks[0][0])
    return StatedStack(variables, layouts, places[0].stored_rows(CORES * of_core))


@settings(max_examples=settings().max_examples // 2)
@given(st.sampled_from(FILLS), st.lists(st.integers(1, 500), min_size=1, max_size=3), st.booleans())
def test_right_layout_is_never_contradicted(fill: str, rows: list[int], slots: bool) -> None:
    stack_of(*rows, fill=fill, slots=slots).checked()


@pytest.mark.parametrize(
    ("fill", "rows", "slots", "compared"),
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
    fill: str, rows: int, slots: bool, compared: PaddingCheck
) -> None:
    assert stack_of(rows, fill=fill, slots=slots).checked() == {"t0": compared}


def untrained_rows() -> StatedStack:
    """Rows that training never saw have accumulators as padding has."""
    stack = stack_of(201)
    for row in range(0, 201, 3):
        stack.store(row, 0.1, "stack/Adagrad")
    return stack


def averages() -> StatedStack:
    """Moving averages differ where rows do."""
    stack = stack_of(201, slots=False)
    stack.variables["stack/ExponentialMovingAverage"] = stack.variables["stack"] * 0.5
    return stack


def half_nan() -> StatedStack:
    return stack_of(201, fill="zeros").store(200, [*[np.nan] * (DIM - 1), 0.5])


def repeated() -> StatedStack:
    stack = stack_of(236, slots=False)
    return stack.store(236, stack.variables["stack"][stack.positions[250]])


def left_out() -> StatedStack:
    stack = stack_of(100, 30, 9)
    del stack.layouts["t1"]
    return stack


def misplaced(fill: str, wrong: dict[str, int]) -> StatedStack:
    stack = stack_of(201, fill=fill, slots=fill == "random")
    return stack.state(core_rows=None, **wrong)


Make = Callable[[], StatedStack]
PLACES = ({"cores": 2}, {"cores": 4}, {"cores": 16}, {"rotation": 1}, {"rotation": 5})
CONTRADICTED: dict[str, Make] = {
    **{
        f"{wrong} beside padding of {fill}": partial(misplaced, fill, wrong)
        for wrong in (*PLACES, {"rows": 190})
        for fill in FILLS
    },
    "a single trained row in place of padding": lambda: stack_of(256).state(rows=255),
    "untrained rows by another number of cores": lambda: untrained_rows().state(
        core_rows=None, cores=4
    ),
    "a table that is left out of the stack": left_out,
    "padding of which two rows are alike": repeated,
    "nothing but NaN in the last row": lambda: stack_of(201, fill="zeros").store(200, np.nan),
    "nothing but NaN in the last row of a core": lambda: stack_of(201, fill="zeros").store(
        7 * 8, np.nan
    ),
}
# What docs/reference/layouts.md says of the limits of the check is among these.
UNCONTRADICTED: dict[str, Make] = {
    "untrained rows": untrained_rows,
    "moving averages": averages,
    "a row of which a value is a number": half_nan,
    "random padding without slot variables": lambda: stack_of(201, slots=False).state(
        core_rows=None, cores=4
    ),
    "a stack without padding": lambda: stack_of(128, slots=False).state(core_rows=None, cores=4),
    "cores of as many rows": lambda: stack_of(200, slots=False).state(rotation=3),
}


@pytest.mark.parametrize("name", CONTRADICTED)
def test_what_cannot_be_padding_contradicts_the_layout(name: str) -> None:
    with pytest.raises(NotConvertible, match="'t0'"):
        CONTRADICTED[name]().checked()


@pytest.mark.parametrize("name", UNCONTRADICTED)
def test_what_may_be_padding_contradicts_nothing(name: str) -> None:
    UNCONTRADICTED[name]().checked()
