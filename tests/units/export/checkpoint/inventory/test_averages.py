"""Moving averages that the object graph ties to their variables, or that cannot be tied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.averages import find_averages
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.cases.checkpoints.written import TABLE, Leaf, Slots, objects
from tests.units.export.checkpoint.tensor_bundles import SUFFIX

A, B, X, Y = (Leaf(name) for name in "abxy")


def averages(directory: Path, *slots: tuple[Leaf, str, Leaf]) -> dict[str, str]:
    actual = find_averages(open_checkpoint(objects({"optimizer": Slots({}, slots)})(directory)))
    return {owner.removesuffix(SUFFIX): key.removesuffix(SUFFIX) for owner, key in actual.items()}


def test_averages_are_found_by_their_variables(tmp_path: Path) -> None:
    slots = [(A, "average", X), (B, "average", Y), (A, "m", Leaf("z")), (A, "average", X)]
    assert averages(tmp_path, *slots) == {"a": "x", "b": "y"}


@pytest.mark.parametrize("values", [None, TABLE[:4], TABLE.astype(np.float64), TABLE[0]])
def test_average_of_no_variable_of_its_shape_and_dtype_is_an_error(
    tmp_path: Path, values: object
) -> None:
    with pytest.raises(CheckpointError, match=r"'x/.*finalize_variable_values"):
        averages(tmp_path, (Leaf("a", values=values), "average", X))


def test_variable_with_two_averages_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'a/.*two moving averages"):
        averages(tmp_path, (A, "average", X), (A, "average", Y))
