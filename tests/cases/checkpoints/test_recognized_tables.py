"""What `inspect` lists of a checkpoint, by metadata alone: tables, states of optimizers, the step;
odd checkpoints too. tests/differential/test_checkpoints.py has those of the programs themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases.checkpoints.inspections import inspected
from tests.cases.checkpoints.recognized_tables import (
    LAYERS,
    LEAVES,
    MODULES,
    NAMES,
    OBJECTS,
    Found,
)
from tests.units.export.checkpoint.tensor_bundles import SUFFIX

FOUND: dict[str, dict[str, Found]] = {
    "names": NAMES,
    "objects": OBJECTS,
    "leaves": LEAVES,
    "layers": LAYERS,
    "modules": MODULES,
}
"""By what shows what a variable is."""
CASES = [(shown_by, case) for shown_by, cases in FOUND.items() for case in cases]


def without_suffix(value: Any) -> Any:
    """Returns a JSON value whose keys have no suffix."""
    if isinstance(value, dict):
        return {key: without_suffix(part) for key, part in value.items()}
    if isinstance(value, list):
        return list(map(without_suffix, value))
    return value.removesuffix(SUFFIX) if isinstance(value, str) else value


@pytest.mark.parametrize(("shown_by", "case"), CASES)
def test_variables_are_recognized_by_what_their_program_recorded(
    shown_by: str, case: str, tmp_path: Path
) -> None:
    expected = FOUND[shown_by][case]
    page = without_suffix(inspected(expected.write(tmp_path)))
    assert {name: table["key"] for name, table in page["tables"].items()} == expected.tables
    assert page["step"] == expected.step
    slots = {slot["key"]: (slot["name"], slot["of"]) for slot in page["slots"]}
    assert expected.slots in (None, slots)
    reasons = {table["name"]: table["reason"] for table in page["rejected"]}
    assert reasons.keys() == expected.rejected.keys()
    assert all(words in reasons[name] for name, words in expected.rejected.items())
    assert page["duplicates"] == []
    if expected.candidates is not None:
        assert page["candidates"] == expected.candidates.split()
    for name, table in page["tables"].items():
        assert expected.origin in table["origin"], name
        assert expected.note in (table["note"] or ""), name
        # Every slot variable of a table is listed with it.
        assert table["slots"] == sorted(
            slot for slot, owner in slots.values() if owner == table["key"]
        )
