"""Tables that a name of TF1 tells, and what the user must say of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.layouts import Mod, Plain
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from tests.export.checkpoint.bundles import Box, write_bundle

TABLE = np.arange(27, dtype=np.float32).reshape(9, 3)
SCOPE = "dnn/input_layer"


def inventory(directory: Path, variables: dict[str, Any], said: Statements | None = None, **how: Any) -> Inventory:
    write_bundle(directory / "model.ckpt-3", variables, **how)
    return recognise(open_checkpoint(directory), said)


def rows(*counts: int) -> list[Box]:
    return [[(sum(counts[:n]), count), (0, -1)] for n, count in enumerate(counts)]


def test_feature_columns_and_keras_layers_are_told_by_their_names(tmp_path: Path) -> None:
    variables = {
        f"{SCOPE}/user_embedding/embedding_weights": TABLE,
        f"{SCOPE}/user_embedding/embedding_weights/Adagrad": TABLE,
        "linear/user_embedding/embedding_weights": TABLE,
        "tower/movie/embeddings": TABLE,
        "dense/kernel": TABLE,
        "global_step": np.array(5),
    }
    found = inventory(tmp_path, variables)
    assert {table.name: table.origin for table in found.tables} == {
        "dnn.input_layer.user_embedding": "feature column",
        "linear.user_embedding": "feature column",
        "movie": "Keras Embedding",
    }
    assert [entry.key for entry in found.candidates] == ["dense/kernel"]
    assert (found.step, found.objects) == (5, False)


def test_row_slices_are_read_as_div_with_a_note_until_the_user_says_mod(tmp_path: Path) -> None:
    boxes = {"scope/emb": rows(3, 2, 2, 2)}
    found = inventory(tmp_path, {"scope/emb": TABLE}, Statements({"items": "scope/emb"}), boxes=boxes)
    assert "--mod" in found.tables[0].note
    assert found.tables[0].layout == Plain()
    found = inventory(tmp_path, {"scope/emb": TABLE}, Statements({"items": "scope/emb"}, ("items",)), boxes=boxes)
    assert (found.tables[0].layout, found.tables[0].note) == (Mod((0, 3, 5, 7)), "")


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
