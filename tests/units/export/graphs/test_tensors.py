from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from export.graphs.loading import tf
from export.graphs.tensors import composed, input_spec, with_values
from export.recipe.schema import InputSection

BAGS = Column(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
"""Three examples: 7 and 8, none, 9."""


def part(kind: str, shape: tuple[int, ...] = (), dtype: str = "int64") -> InputSection:
    return InputSection.model_validate({"kind": kind, "shape": shape, "dtype": dtype})


def test_composed_bags_are_ragged_sparse_or_filled_up_with_padding() -> None:
    ragged = composed("bag", part("ragged"), BAGS, 3)
    assert ragged.to_list() == [[7, 8], [], [9]]
    sparse = composed("bag", part("sparse"), BAGS, 3)
    assert sparse.indices.numpy().tolist() == [[0, 0], [0, 1], [2, 0]]
    assert sparse.dense_shape.numpy().tolist() == [3, 2]
    dense = composed("bag", part("dense", (3,)), BAGS, 3, padding=-1)
    assert dense.numpy().tolist() == [[7, 8, -1], [-1, -1, -1], [9, -1, -1]]
    unpadded = composed("bag", part("dense", (2,)), BAGS, 3)
    assert unpadded.numpy().tolist() == [[7, 8], [0, 0], [9, 0]]


def test_composed_sparse_batch_of_empty_bags_has_a_column() -> None:
    empty = Column(np.array([], np.int64), np.array([0, 0, 0]))
    assert composed("bag", part("sparse"), empty, 2).dense_shape.numpy().tolist() == [2, 1]


def test_composed_numbers_for_an_input_of_strings_are_their_texts() -> None:
    texts = composed("name", part("dense", dtype="string"), Column(np.array([5, 12])), 2)
    assert texts.numpy().tolist() == [b"5", b"12"]


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_input_spec_takes_what_is_composed_for_any_batch(kind: str) -> None:
    declared = part(kind, (2,) if kind == "dense" else ())
    tensor = composed("bag", declared, BAGS, 3)
    assert input_spec(declared).is_compatible_with(tensor)


def test_with_values_keeps_the_structure_of_ids() -> None:
    def replaced(ids: Any) -> Any:
        return with_values(ids, tf.constant([1.0, 2.0, 3.0]))

    assert replaced(composed("bag", part("ragged"), BAGS, 3)).to_list() == [[1, 2], [], [3]]
    sparse = replaced(composed("bag", part("sparse"), BAGS, 3))
    assert tf.sparse.to_dense(sparse).numpy().tolist() == [[1, 2], [0, 0], [3, 0]]
    assert replaced(tf.constant([[7], [8], [9]])).numpy().tolist() == [[1], [2], [3]]
