"""The tables of the reference model: rows are read from the checkpoint when they are looked up.

So memory holds what examples need, and the model's own id rules and combiners run as they are. An
embedding layer looks up the vectors alone, one for each id, as TensorFlow does: its ids are
replaced by the positions of their vectors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.specs import TableFacts
from export.graphs.functions import bytes_of
from export.graphs.hooks import Hooks
from export.graphs.internals import variable_class
from export.graphs.loading import tf
from export.graphs.placeholders import (
    name_of,
    placeholder_class,
    redirect_gathers,
    restoring_up_to,
    tables_unallocated,
)
from export.graphs.tensors import with_values
from export.graphs.walks import resource
from export.partition.lookups.records import TracedLookup
from export.tensorflow_models.frameworks.hook_points import SPARSE_LOOKUPS
from export.tensorflow_models.frameworks.normalizations import restore_normalizations
from export.tensorflow_models.lookups.embedding_layers import intercept_layers, original_lookup
from export.tensorflow_models.lookups.keras_3_layers import gather_in_keras_3
from export.tensorflow_models.lookups.ragged import look_up_ragged_by_row
from export.tensorflow_models.model.object_paths import object_paths

Rows = NDArray[np.int64]
ReadRows = Callable[[str, Rows], NDArray[Any]]
"""(name of a table, [m] ascending rows) -> [m, columns] values of the checkpoint; the first columns
are the table's.
"""


class ReferenceTables:
    """Replaces every lookup of the reference model."""

    def __init__(
        self,
        tables: Mapping[str, TableFacts],
        read_rows: ReadRows,
        inline_bytes_max: int,
        inside: Collection[str] = (),
    ) -> None:
        """Takes what is known of the tables.

        Args:
          tables: The tables that left the towers, by name.
          read_rows: Reads rows of these tables from the checkpoint.
          inline_bytes_max: The size up to which a table may be inside a tower, and is restored
            whole.
          inside: The tables inside towers whose ids callers send, by `config_name`.
        """
        self._tables = tables
        self._inside = inside
        self._read_rows = read_rows
        self._inline_bytes_max = inline_bytes_max
        self._name_of_path = {table.config_name: name for name, table in tables.items()}
        self._layer_tables: dict[int, TableFacts] = {}
        """The tables of embedding layers, by the ids of their variables."""
        self._placeholders: list[Any] = []
        """The variables that the model has made, which may be tables."""
        self._root: Any = None
        """The built model; None while it is built."""
        self._names: dict[str, str | None] = {}
        """The name of the table that a variable is, by its resource; None: it is no such table."""
        self._paths: dict[str, tuple[str, Any]] = {}

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[ReferenceTables]:
        """Replaces lookups inside the `with` block, in which the model is built and called."""
        # A copy, before the lookup is replaced.
        original = original_lookup()

        def activation_of(lookup: TracedLookup) -> Any:
            ids, table = self._ids_and_table(lookup)
            return original(ids, lookup.weights, {lookup.config.table: table}, lookup.config)

        with (
            tables_unallocated() as self._placeholders,
            restoring_up_to(self._inline_bytes_max),
            Hooks() as hooks,
        ):
            intercept_layers(hooks, self._make_table, activation_of, tracked=False)
            redirect_gathers(hooks, self._gather)
            hooks.set_attribute(placeholder_class(), "early", True)
            gather_in_keras_3(hooks)
            restore_normalizations(hooks, keep_adapted=False)
            look_up_ragged_by_row(hooks)
            for point in SPARSE_LOOKUPS:
                hooks.replace(point, _whole_batch)
            yield self

    def use_model(self, root: Any) -> None:
        """Takes the built model, in which tables have their paths; those that left the towers are
        not restored.
        """
        self._root = root
        placeholder_class().early = False
        for variable in self._placeholders:
            is_small = bytes_of(variable) <= self._inline_bytes_max
            variable.restored = self._name(variable) is None and is_small

    def _name(self, variable: Any) -> str | None:
        """Returns the name of the table that a variable is; None if it did not leave the towers."""
        key = resource(variable.handle)
        if key not in self._names:
            self._names[key] = self._name_of_path.get(self._path(variable))
        return self._names[key]

    def _path(self, variable: Any) -> str:
        """Returns the path of a variable in the model, or its own name if nothing tracks it."""
        key = resource(variable.handle)
        # Calls may have made variables since the paths were found.
        if key not in self._paths:
            self._paths = object_paths(self._root)
        path, _ = self._paths.get(key, ("", None))
        return path or name_of(variable)

    def _gather(self, variable: Any, ids: Any) -> Any:
        """Returns the rows of a plain variable."""
        ids = tf.convert_to_tensor(ids)
        dim = variable.shape.as_list()[1]
        shape = tf.concat([tf.shape(ids), [dim]], 0)
        if self._root is None:
            rows = tf.ensure_shape(_random_rows(shape), [*ids.shape, dim])
            return tf.cast(rows, variable.dtype)

        name = self._name(variable)
        if name is not None:
            row_ids = self._row_ids(variable, ids, self._tables[name].rows)
            return tf.cast(self._vectors(name, row_ids), variable.dtype)
        if variable.restored is False:
            # No tower reads this table, but the call computes more than towers need.
            return tf.zeros(shape, variable.dtype)
        return self._read_inside(variable, ids)

    def _read_inside(self, variable: Any, ids: Any) -> Any:
        """Returns rows of a table that is in memory.

        Ids that callers send may be out of vocabulary: they read zeros, whatever the size of the
        table. Ids that the model computes are left to TensorFlow, which rejects them.
        """
        row_count = variable.shape.as_list()[0]
        row_ids = self._row_ids(variable, ids, row_count)
        # Past the hook for gathers, which calls this.
        gather = super(placeholder_class(), variable).sparse_read  # type: ignore[misc]
        if self._path(variable) not in self._inside:
            return gather(row_ids)
        is_row = (row_ids >= 0) & (row_ids < row_count)
        row_ids = tf.where(is_row, row_ids, tf.zeros_like(row_ids))
        vectors = gather(row_ids)
        return tf.where(is_row[..., tf.newaxis], vectors, tf.zeros_like(vectors))

    @staticmethod
    def _row_ids(variable: Any, ids: Any, row_count: int) -> Any:
        """Returns the rows of ids, which may count from the end of the table.

        Source: Keras 3.15, src/backend/tensorflow/numpy.py (`take`).
        """
        if not variable.outside.from_end:
            return ids
        return tf.where(ids < 0, ids + row_count, ids)

    def _vectors(self, name: str, ids: Any) -> Any:
        """Returns the float32 row of each id, zeros for one that is outside the table."""
        row_count = self._tables[name].rows
        dim = self._tables[name].dim

        def read(row_ids: NDArray[Any]) -> NDArray[np.float32]:
            is_inside = (row_ids >= 0) & (row_ids < row_count)
            rows = np.where(is_inside, row_ids, -1).astype(np.int64)
            unique_rows, positions = np.unique(rows, return_inverse=True)
            is_row = unique_rows >= 0
            stored = self._read_rows(name, unique_rows[is_row])
            values = np.zeros((unique_rows.size, dim), np.float32)
            values[is_row] = np.asarray(stored, np.float32)[:, :dim]
            return values[positions.reshape(row_ids.shape)]

        if tf.executing_eagerly():
            return tf.constant(read(ids.numpy()))
        # In a graph, as that of TF1 code, rows are read when it runs.
        vectors = tf.numpy_function(read, [ids], tf.float32)
        return tf.ensure_shape(vectors, [*ids.shape, dim])

    def _make_table(self, table: TableFacts) -> Any:
        """Makes a variable that is none of the model's, and holds nothing."""
        zeros = np.zeros((1, table.dim), np.float32)
        variable = variable_class()(shape=zeros.shape, dtype=zeros.dtype, name=table.config_name)
        variable.assign(zeros)
        self._layer_tables[id(variable)] = table
        return variable

    def _ids_and_table(self, lookup: TracedLookup) -> tuple[Any, Any]:
        """Returns the ids of a lookup as positions of their vectors, and the vectors as a table."""
        (ids,) = lookup.ids
        table = self._layer_tables.get(id(lookup.variable))
        if table is None:
            # A variable of the user's own, which `_gather` reads; the layer's config names it.
            is_placeholder = isinstance(lookup.variable, placeholder_class())
            if is_placeholder and lookup.table.config_name in self._name_of_path:
                name = self._name_of_path[lookup.table.config_name]
                self._names[resource(lookup.variable.handle)] = name
            return ids, lookup.variable
        flat = tf.reshape(getattr(ids, "values", ids), [-1])
        shape = [tf.size(flat), table.dim]
        if self._root is None:
            vectors = _random_rows(shape)
        elif table.config_name in self._name_of_path:
            vectors = self._vectors(self._name_of_path[table.config_name], flat)
        else:
            vectors = tf.zeros(shape)
        positions = tf.range(tf.size(flat, tf.int64))
        return with_values(ids, positions), as_table(vectors)


def _random_rows(shape: Any) -> Any:
    """Returns the rows that a model looks up while it is built: other numbers each time, so that a
    result that depends on them is noticed. Training looked up rows that no checkpoint holds.
    """
    seed = np.random.default_rng().integers(1 << 31, size=2)
    return tf.random.stateless_uniform(shape, seed, 0.5, 1.5)


def as_table(vectors: Any) -> Any:
    """Returns gathered vectors as a table of a layer; behind them the row that TensorFlow fills
    empty examples with.
    """
    dim = vectors.shape[1]
    table = tf.concat([vectors, tf.zeros([1, dim])], 0)
    # TensorFlow reads sequences from a variable.
    table.read_value = lambda: table
    return table


def _whole_batch(original: Callable[..., Any], **arguments: Any) -> Any:
    """Adds the rows that TensorFlow leaves out: those of empty bags at the end of a batch."""
    vectors = original(**arguments)
    ids = arguments["sp_ids"]
    if isinstance(ids, tf.RaggedTensor):
        n = ids.nrows()
    else:
        n = ids.dense_shape[0]

    def fill(vectors: NDArray[Any], n: NDArray[Any]) -> NDArray[Any]:
        missing_count = int(n) - len(vectors)
        zeros = np.zeros((missing_count, *vectors.shape[1:]), vectors.dtype)
        return np.concatenate([vectors, zeros])

    # A single operation, since a model may have thousands of features, each with its own.
    whole = tf.numpy_function(fill, [vectors, n], vectors.dtype)
    return tf.ensure_shape(whole, [None, *vectors.shape[1:]])
