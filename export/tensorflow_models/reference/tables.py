"""The tables of the reference model: rows are read from the checkpoint when the model asks for
them.

So memory holds what examples need, and the model's own id rules and combiners run as they are. An
embedding layer looks up the vectors alone, one for each id, as TensorFlow does: its ids are
replaced by the places of their vectors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.specs import TableFacts
from export.graphs.functions import bytes_of
from export.graphs.internals import variable_class
from export.graphs.loading import tf
from export.graphs.tensors import with_values
from export.graphs.walks import resource
from export.tensorflow_models.frameworks.hook_points import SPARSE_LOOKUPS
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.normalizations import restore_normalizations
from export.tensorflow_models.frameworks.placeholders import (
    answer_gathers,
    placeholder_class,
    restoring_up_to,
    tables_unallocated,
)
from export.tensorflow_models.lookups.embedding_layers import intercept_layers, original_lookup
from export.tensorflow_models.lookups.gathers import gather_in_keras_3
from export.tensorflow_models.lookups.ragged import look_up_ragged_by_row
from export.tensorflow_models.lookups.records import Lookup
from export.tensorflow_models.model.object_paths import object_paths

Rows = NDArray[np.int64]
ReadRows = Callable[[str, Rows], NDArray[Any]]
"""(name of a table, [m] ascending rows) -> [m, columns] values of the checkpoint; the first columns
are the table's.
"""


class ReferenceTables:
    """Answers every lookup of the reference model."""

    def __init__(
        self,
        tables: Mapping[str, TableFacts],
        read_rows: ReadRows,
        inline_bytes_max: int,
        inside: Collection[str] = (),
    ) -> None:
        """Takes what is known of the tables.

        Args:
          tables: those that left the towers, by name.
          read_rows: reads them from the checkpoint.
          inline_bytes_max: tables up to this size may be inside a tower, and are restored whole.
          inside: those whose ids callers send, by `config_name`.
        """
        self._tables = tables
        self._inside = inside
        self._read_rows = read_rows
        self._inline_bytes_max = inline_bytes_max
        self._of_layers: dict[int, TableFacts] = {}
        self._by_place = {table.config_name: name for name, table in tables.items()}
        self._names: dict[str, str | None] = {}
        self._root: Any = None
        self._paths: dict[str, tuple[str, Any]] = {}

    @contextlib.contextmanager
    def answering(self) -> Iterator[ReferenceTables]:
        """Answers lookups within the `with`, in which the model is built and called."""
        original = original_lookup()  # before it is replaced

        def answer(lookup: Lookup) -> Any:
            ids, table = self._placed(lookup)
            return original(ids, lookup.weights, {lookup.config.table: table}, lookup.config)

        with (
            tables_unallocated() as self._made,
            restoring_up_to(self._inline_bytes_max),
            Hooks() as hooks,
        ):
            intercept_layers(hooks, self._make_table, answer, tracked=False)
            answer_gathers(hooks, self._gather)
            hooks.set_attribute(placeholder_class(), "early", True)
            gather_in_keras_3(hooks)
            restore_normalizations(hooks, kept=False)
            look_up_ragged_by_row(hooks)
            for point in SPARSE_LOOKUPS:
                hooks.replace(point, _whole_batch)
            yield self

    def know(self, root: Any) -> None:
        """Tells the built model, in which tables have their places; those that left are not to be
        restored.
        """
        self._root = root
        placeholder_class().early = False
        for variable in self._made:
            variable.restored = (
                self._name(variable) is None and bytes_of(variable) <= self._inline_bytes_max
            )

    def _name(self, variable: Any) -> str | None:
        key = resource(variable.handle)
        if key not in self._names:
            self._names[key] = self._by_place.get(self._path(variable))
        return self._names[key]

    def _path(self, variable: Any) -> str:
        """Returns where a variable is in the model, or its own name if nothing tracks it."""
        key = resource(variable.handle)
        if key not in self._paths:  # it was made since
            self._paths = object_paths(self._root)
        path, _ = self._paths.get(key, ("", None))
        return path or variable.name.partition(":")[0]

    def _gather(self, variable: Any, ids: Any) -> Any:
        if self._root is None:
            ids = tf.convert_to_tensor(ids)
            dim = variable.shape.as_list()[1]
            rows = _random_rows(tf.concat([tf.shape(ids), [dim]], 0))
            return tf.cast(tf.ensure_shape(rows, [*ids.shape, dim]), variable.dtype)
        name = self._name(variable)
        if name is None and variable.restored is False:
            # No tower reads this table, but the call computes more than towers need.
            shape = tf.concat([tf.shape(ids), variable.shape.as_list()[1:]], 0)
            return tf.zeros(shape, variable.dtype)
        if name is None:
            return self._read_inside(variable, tf.convert_to_tensor(ids))
        rows = self._counted(variable, tf.convert_to_tensor(ids), self._tables[name].rows)
        return tf.cast(self._vectors(name, rows), variable.dtype)

    def _read_inside(self, variable: Any, ids: Any) -> Any:
        """Returns rows of a table that is in memory.

        Ids that callers send may be out of vocabulary: they read zeros, whatever the size of the
        table. Ids that the model computes are left to TensorFlow, which rejects them.
        """
        count = variable.shape.as_list()[0]
        rows = self._counted(variable, ids, count)
        gather = super(placeholder_class(), variable).sparse_read  # type: ignore[misc]
        if self._path(variable) not in self._inside:
            return gather(rows)
        is_row = (rows >= 0) & (rows < count)
        vectors = gather(tf.where(is_row, rows, tf.zeros_like(rows)))
        return tf.where(is_row[..., tf.newaxis], vectors, tf.zeros_like(vectors))

    @staticmethod
    def _counted(variable: Any, ids: Any, count: int) -> Any:
        # Source: Keras 3.15, src/backend/tensorflow/numpy.py (`take`).
        return tf.where(ids < 0, ids + count, ids) if variable.outside.from_end else ids

    def _vectors(self, name: str, ids: Any) -> Any:
        """Returns the float32 row of each id, zeros for one that is outside the table."""
        rows = self._tables[name].rows
        dim = self._tables[name].dim

        def read(wanted: NDArray[Any]) -> NDArray[np.float32]:
            inside = (wanted >= 0) & (wanted < rows)
            asked, place = np.unique(
                np.where(inside, wanted, -1).astype(np.int64), return_inverse=True
            )
            known = asked >= 0
            values = np.zeros((asked.size, dim), np.float32)
            values[known] = np.asarray(self._read_rows(name, asked[known]), np.float32)[:, :dim]
            return values[place.reshape(wanted.shape)]

        if tf.executing_eagerly():
            return tf.constant(read(ids.numpy()))
        return tf.ensure_shape(tf.numpy_function(read, [ids], tf.float32), [*ids.shape, dim])

    def _make_table(self, table: TableFacts) -> Any:
        """Makes a variable that is none of the model's, and holds nothing."""
        variable = variable_class()(shape=(1, table.dim), dtype=np.float32, name=table.config_name)
        variable.assign(np.zeros((1, table.dim), np.float32))
        self._of_layers[id(variable)] = table
        return variable

    def _placed(self, lookup: Lookup) -> tuple[Any, Any]:
        """Returns the ids of a lookup as places of their vectors, and the vectors, as a table."""
        (ids,) = lookup.ids
        table = self._of_layers.get(id(lookup.variable))
        if table is None:  # of the user's own
            if (
                isinstance(lookup.variable, placeholder_class())
                and lookup.table.name in self._tables
            ):
                self._names[resource(lookup.variable.handle)] = lookup.table.name
            return ids, lookup.variable
        flat = tf.reshape(getattr(ids, "values", ids), [-1])
        shape = [tf.size(flat), table.dim]
        if self._root is None:
            vectors = _random_rows(shape)
        elif table.name in self._tables:
            vectors = self._vectors(table.name, flat)
        else:
            vectors = tf.zeros(shape)
        return with_values(ids, tf.range(tf.size(flat, tf.int64))), as_table(vectors)


def _random_rows(shape: Any) -> Any:
    """Returns what is looked up while the model is built: other numbers each time, so that a result
    that depends on them is noticed. Training looked up rows that no checkpoint holds.
    """
    seed = np.random.default_rng().integers(1 << 31, size=2)
    return tf.random.stateless_uniform(shape, seed, 0.5, 1.5)


def as_table(vectors: Any) -> Any:
    """Returns gathered vectors as a table of a layer; behind them the row that TensorFlow fills
    empty examples with.
    """
    table = tf.concat([vectors, tf.zeros([1, vectors.shape[1]])], 0)
    table.read_value = lambda: table  # sequences are read from a variable
    return table


def _whole_batch(original: Callable[..., Any], **how: Any) -> Any:
    """Fills up what TensorFlow leaves out: rows of empty bags at the end of a batch."""
    found = original(**how)
    ids = how["sp_ids"]
    n = ids.nrows() if isinstance(ids, tf.RaggedTensor) else ids.dense_shape[0]

    def filled(rows: NDArray[Any], n: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([rows, np.zeros((int(n) - len(rows), *rows.shape[1:]), rows.dtype)])

    # One operation, where thousands of features have one.
    whole = tf.numpy_function(filled, [found, n], found.dtype)
    return tf.ensure_shape(whole, [None, *found.shape[1:]])
