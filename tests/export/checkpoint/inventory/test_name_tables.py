"""Tables that a name of TF1 tells, and what the user must say of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from tests.export.checkpoint.bundles import Box, write_bundle

TABLE = np.arange(27, dtype=np.float32).reshape(9, 3)


def inventory(directory: Path, variables: dict[str, Any], said: Statements | None = None, **how: Any) -> Inventory:
    write_bundle(directory / "model.ckpt-3", variables, **how)
    return recognise(open_checkpoint(directory), said)


def rows(*counts: int) -> list[Box]:
    return [[(sum(counts[:n]), count), (0, -1)] for n, count in enumerate(counts)]


@pytest.mark.parametrize(("counts", "what"), [((9,), r"1 row range \(9 rows\)"), ((2, 3, 4), r"\(2, 3, 4 rows\)")])
def test_mod_of_slices_that_it_never_makes_is_refused(tmp_path: Path, counts: tuple[int, ...], what: str) -> None:
    with pytest.raises(NotConvertible, match=what):
        inventory(tmp_path, {"emb": TABLE}, Statements({"items": "emb"}, ("items",)), boxes={"emb": rows(*counts)})


def test_layout_file_of_other_partitions_than_tf1_saved_is_refused(tmp_path: Path) -> None:
    said = Statements(layouts={"items": StatedTable(key="emb", kind="mod", partitions=7)})
    with pytest.raises(NotConvertible, match="7 partitions, and TF1 saved 'emb' in 3"):
        inventory(tmp_path, {"emb": TABLE}, said, boxes={"emb": rows(3, 3, 3)})


def test_mod_of_an_unknown_table_tells_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match=r"no table 'x'.*recognised: items"):
        inventory(tmp_path, {"emb": TABLE}, Statements({"items": "emb"}, ("x",)))
