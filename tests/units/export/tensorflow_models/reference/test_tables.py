"""Tables of a reference model: rows come from the checkpoint when they are looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import FIRST_VALUE_BYTES
from export.tensorflow_models.reference.tables import ReferenceTables

ITEMS = TableFacts("items", "items", 4, 2)
ROWS = np.array([[1, 10, 99], [2, 20, 99], [3, 30, 99], [4, 40, 99]], np.float32)
"""A third column belongs to another table of the same stack."""
ZEROS = [0.0, 0.0]


class Model(tf.Module):  # type: ignore[misc]
    """Gathers rows of one table."""

    def __init__(self, rows: int = 4, dtype: Any = None) -> None:
        super().__init__()
        self.items = tf.Variable(tf.ones([rows, 2], dtype or tf.float32), name="variable")

    def __call__(self, ids: Any) -> Any:
        return tf.gather(self.items, ids)


def reference(inline_bytes_max: int = 0, **tables: TableFacts) -> tuple[ReferenceTables, list[Any]]:
    """Returns the tables of a reference model, and a list of the rows that were read."""
    read: list[Any] = []

    def rows(table: str, wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        read.append((table, wanted.tolist()))
        return ROWS[wanted].copy()

    return ReferenceTables(tables or {"items": ITEMS}, rows, inline_bytes_max), read


def test_gather_reads_rows_of_the_checkpoint_and_zeros_outside() -> None:
    tables, read = reference()
    with tables.intercepting():
        model = Model()
        tables.use_model(model)
        rows = model(tf.constant([[3, 0], [-1, 4], [3, 3]], tf.int64))
    assert rows.numpy().tolist() == [
        [[4, 40], [1, 10]],
        [ZEROS, ZEROS],
        [[4, 40], [4, 40]],
    ]
    assert read == [("items", [0, 3])]


def test_gather_of_a_table_in_half_precision_is_in_its_dtype() -> None:
    tables, _ = reference()
    with tables.intercepting():
        model = Model(dtype=tf.bfloat16)
        tables.use_model(model)
        rows = model(tf.constant([2]))
    assert rows.dtype == tf.bfloat16
    assert rows.numpy().tolist() == [[3, 30]]


def test_gather_while_the_model_is_built_gives_other_numbers_each_time() -> None:
    tables, read = reference()
    with tables.intercepting():
        model = Model(dtype=tf.bfloat16)
        first, second = (model(tf.constant([[3, 0]], tf.int64)) for _ in range(2))
    assert first.dtype == tf.bfloat16
    assert first.shape == second.shape == (1, 2, 2)
    assert not np.array_equal(first, second)
    assert not read


def test_gather_in_a_graph_reads_rows_when_it_runs() -> None:
    tables, read = reference()
    with tables.intercepting():
        model = Model()
        tables.use_model(model)
        shapes = []

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])  # type: ignore[untyped-decorator]
        def call(ids: Any) -> Any:
            rows = model(ids)
            shapes.append(rows.shape.as_list())
            return rows

        looked_up = call(tf.constant([[1, 9]], tf.int64))
    assert shapes == [[None, 2, 2]]
    assert looked_up.numpy().tolist() == [[[2, 20], ZEROS]]
    assert read == [("items", [1])]


def test_gather_in_a_graph_while_the_model_is_built_runs_without_a_table() -> None:
    tables, read = reference()
    with tables.intercepting():
        model = Model()
        spec = tf.TensorSpec([None], tf.int64)
        function = tf.function(model).get_concrete_function(spec)
        assert function.structured_outputs.shape.as_list() == [None, 2]
        assert function(tf.constant([3, 0, 2], tf.int64)).shape == (3, 2)
    assert not read


@pytest.mark.parametrize(("inline_bytes_max", "restored"), [(31, False), (32, True)])
def test_table_that_is_no_feature_is_restored_up_to_the_limit(
    inline_bytes_max: int, restored: bool
) -> None:
    tables, read = reference(inline_bytes_max, other=TableFacts("other", "other", 4, 2))
    with tables.intercepting():
        model = Model()  # 32 bytes
        tables.use_model(model)
        assert model.items.restored is restored
        model.items.assign(ROWS[:, :2])
        rows = model(tf.constant([[3], [0]]))
    assert rows.numpy().tolist() == ([[[4, 40]], [[1, 10]]] if restored else [[ZEROS], [ZEROS]])
    assert not read


def test_table_that_is_a_feature_is_not_restored_whatever_its_size() -> None:
    tables, _ = reference(FIRST_VALUE_BYTES)
    with tables.intercepting():
        model = Model()
        tables.use_model(model)
        assert model.items.restored is False


def test_table_is_found_by_its_path_or_the_name_of_its_variable() -> None:
    stored = TableFacts("things", "variable", 4, 2)
    tables, read = reference(things=stored)
    with tables.intercepting():
        model = Model()
        # No object of the model holds it.
        outside = tf.Variable(tf.ones([4, 2]), name="variable")
        tables.use_model(model)
        model(tf.constant([1]))
        rows = tf.gather(outside, tf.constant([2]))
    assert rows.numpy().tolist() == [[3, 30]]
    assert read == [("things", [2])]


def test_table_that_is_made_after_the_model_was_built_is_found() -> None:
    tables, read = reference()
    with tables.intercepting():
        model = tf.Module()
        tables.use_model(model)
        model.items = tf.Variable(tf.ones([4, 2]), name="later")
        rows = tf.gather(model.items, tf.constant([1]))
    assert rows.numpy().tolist() == [[2, 20]]
    assert read == [("items", [1])]


E = tf.tpu.experimental.embedding


class Layered(tf.Module):  # type: ignore[misc]
    """Looks ids up by the embedding layer of TensorFlow, as on a CPU."""

    def __init__(self, length: int = 0) -> None:
        super().__init__()
        table = E.TableConfig(4, 2, name="items", combiner="sum")
        self.config = E.FeatureConfig(table, max_sequence_length=length)
        self.embedding = E.TPUEmbeddingForServing({"item": self.config}, E.SGD())

    def __call__(self, ids: Any) -> Any:
        self.embedding.build()
        (table,) = self.embedding.embedding_tables.values()
        return E.serving_embedding_lookup(
            {"item": ids}, None, {self.config.table: table}, {"item": self.config}
        )["item"]


RAGGED = tf.ragged.constant([[3, 0], [], [1], []], dtype=tf.int64)


@pytest.mark.parametrize(
    ("ids", "length", "rows"),
    [
        pytest.param(tf.constant([3, 9], tf.int64), 0, [[4, 40], ZEROS], id="single"),
        pytest.param(RAGGED, 0, [[5, 50], ZEROS, [2, 20], ZEROS], id="ragged"),
        pytest.param(RAGGED.to_sparse(), 0, [[5, 50], ZEROS, [2, 20], ZEROS], id="sparse"),
        pytest.param(
            RAGGED,
            2,
            [[[4, 40], [1, 10]], [ZEROS, ZEROS], [[2, 20], ZEROS], [ZEROS, ZEROS]],
            id="sequence",
        ),
    ],
)
def test_embedding_layer_combines_rows_of_the_checkpoint_for_every_example(
    ids: Any, length: int, rows: Any
) -> None:
    tables, _ = reference()
    with tables.intercepting():
        model = Layered(length)
        built = model(ids)
        tables.use_model(model)
        looked_up = model(ids)
    assert built.shape == looked_up.shape
    assert not np.array_equal(built, looked_up)
    assert looked_up.numpy().tolist() == rows


def test_embedding_layer_of_a_table_that_no_tower_needs_gives_zeros() -> None:
    tables, read = reference(other=TableFacts("other", "other", 4, 2))
    with tables.intercepting():
        model = Layered()
        ids = tf.constant([3, 1], tf.int64)
        model(ids)
        tables.use_model(model)
        assert model(ids).numpy().tolist() == [ZEROS, ZEROS]
    assert not read


class OwnTable(tf.Module):  # type: ignore[misc]
    """Looks ids up by the function of embedding layers, in a variable of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = tf.Variable(tf.ones([4, 2]))
        self.config = E.FeatureConfig(E.TableConfig(4, 2, name="items", combiner="sum"))

    def __call__(self, ids: Any) -> Any:
        tables = {self.config.table: self.kept}
        return E.serving_embedding_lookup(ids, None, tables, self.config)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("items", [[5, 50], ZEROS, [2, 20], ZEROS]), ("other", [ZEROS] * 4)],
    ids=["a feature", "no feature"],
)
def test_lookup_in_a_variable_of_the_model_has_the_name_of_its_configuration(
    name: str, rows: Any
) -> None:
    facts: dict[str, Any] = {name: TableFacts(name, name, 4, 2)}
    tables, read = reference(**facts)
    with tables.intercepting():
        model = OwnTable()
        model(RAGGED)
        tables.use_model(model)
        assert model(RAGGED).numpy().tolist() == rows
    assert {table for table, _ in read} == ({"items"} if name == "items" else set())


@pytest.mark.parametrize(
    "look_up",
    [tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse],
    ids=["plain", "safe"],
)
def test_sparse_lookup_has_rows_of_empty_examples_at_the_end(look_up: Callable[..., Any]) -> None:
    tables, _ = reference()
    with tables.intercepting():
        model = Model()
        tables.use_model(model)
        bags = RAGGED.to_sparse()
        rows = look_up(model.items, bags, None, combiner="sum")
    assert rows.numpy().tolist() == [[5, 50], ZEROS, [2, 20], ZEROS]
