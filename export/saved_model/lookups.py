"""Lookups inside the graph of a self-contained SavedModel: raw ids in, the inputs of the cut towers
out.

Ids become rows by the features' entries in the manifest, rows become rows of the variable as the
checkpoint stores it (`export/checkpoint/layouts.py` has the formula; a stack is shared by its
tables), and the gathered vectors go through TensorFlow's own lookup with its combiner, or through
the lookup of the layer where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format import manifest
from export.checkpoint.inventory.specs import TableSpec
from export.errors import NotConvertible
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, embedded_entry
from export.graphs.loading import tf
from export.graphs.tensors import with_values
from export.id_graphs.tensorflow_operations import Vocabularies, crossed, rows_of, words
from export.recipe.schema import ExportJob, HashRule, IdentityRule, InputSection, KeyedRule

Gather = Callable[[str, Any], Any]
"""(name of a table, [m] int64 rows of the variable that stores it) -> [m, stored columns], in the
stored dtype.
"""


@dataclass(frozen=True)
class InlineLookups:
    """Runs towers on raw inputs, with their lookups inside the graph.

    Attributes:
      job, traced, entries: The recipe, its model and the description of its features.
      tables: The checkpoint's specification of each table.
      vocabularies: Lookup tables of the recipe's and the model's vocabularies, by name.
      gather: A function that reads rows as they are stored.
    """

    job: ExportJob
    traced: PartitionedModel
    entries: Mapping[str, manifest.Feature]
    tables: Mapping[str, TableSpec]
    vocabularies: Vocabularies
    gather: Gather

    def inputs_of(self, tower: TracedTower) -> dict[str, InputSection]:
        """Returns the recipe's inputs that a tower needs, with the dtype of what a caller sends.

        Raises:
          NotConvertible: An input is read in ways that require different dtypes.
        """
        needed_inputs: dict[str, InputSection] = {}
        for tensor in tower.spec.inputs:
            spec = self.traced.spec.features[tensor.feature]
            for name in spec.reads:
                dtype = sent_dtype(name, self.traced.spec, self.job)
                needed_inputs[name] = self.job.inputs[name].model_copy(update={"dtype": dtype})
            if spec.weights is not None:
                needed_inputs[spec.weights] = self.job.inputs[spec.weights]
        # Signatures list their inputs in the order of the recipe, whatever the order of the tower.
        return {name: needed_inputs[name] for name in self.job.inputs if name in needed_inputs}

    def run(self, tower: TracedTower, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a tower's results for raw inputs."""
        arguments = []
        for tensor in tower.spec.inputs:
            spec = self.traced.spec.features[tensor.feature]
            if isinstance(spec, FeatureSpec):
                arguments.append(self._activation(spec, inputs))
            elif spec.entry.take == "lengths":
                arguments.append(self._lengths(spec.reads[0], inputs[spec.reads[0]]))
            elif spec.entry.take != "values":
                arguments.append(_pad_bags(spec, inputs))
            else:
                arguments.append(_cast(inputs[spec.reads[0]], spec.entry.dtype))
        results = tower.function(*arguments)
        return {tensor.name: tf.identity(results[tensor.name]) for tensor in tower.spec.outputs}

    def _activation(self, spec: FeatureSpec, inputs: Mapping[str, Any]) -> Any:
        """Returns the input of a tower that a lookup computes from raw inputs."""
        entry = spec.entry
        if spec.encoding == "dense" and entry.kind != "bag" and entry.joint is None:
            return self._dense_vectors(spec, inputs[spec.reads[0]])

        ids, weights = self._ids(spec, inputs)
        rows = self._rows(spec, ids.values)
        # A bag leaves unknown ids out; a sequence keeps their positions, as zeros.
        if entry.kind == "bag":
            has_row = rows >= 0
            ids = _retain(ids, has_row)
            if weights is not None:
                weights = _retain(weights, has_row)
            rows = tf.boolean_mask(rows, has_row)

        combine = self.traced.combine
        if spec.config is not None and combine is not None:
            return combine(spec.config, ids, weights, self._vectors(spec, rows))
        # Here a single id is computed from several inputs: one id of one input is dense.
        if entry.kind == "single":
            return self._vectors(spec, rows)
        if entry.kind == "sequence":
            sequences = ids.with_values(self._vectors(spec, rows))
            filler_row = tf.constant([_row_or_zeros(entry.filler_row)], tf.int64)
            filler = self._vectors(spec, filler_row)[0]
            return sequences.to_tensor(filler, shape=[None, entry.length, sequences.shape[-1]])
        return self._combine(spec, ids, rows, weights)

    def _dense_vectors(self, spec: FeatureSpec, ids: Any) -> Any:
        """Returns the vectors of one id per example, or of a sequence of `length` ids."""
        entry = embedded_entry(self.entries, spec)
        # The feature reads one column of a matrix of ids.
        if entry.place is not None:
            ids = tf.reshape(ids, [-1, entry.places])[:, entry.place]
        values = tf.reshape(ids, [-1])
        rows = self._rows(spec, values)

        # Padding may be the id of a row: it becomes zeros whatever that row holds.
        if entry.padding is not None:
            is_padding = values == tf.constant(entry.padding, values.dtype)
            rows = tf.where(is_padding, tf.constant(-1, tf.int64), rows)
        vectors = self._vectors(spec, rows)
        if entry.kind == "single":
            return vectors
        return tf.reshape(vectors, [-1, entry.length, vectors.shape[1]])

    def _ids(self, spec: FeatureSpec, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns the ids of a feature and their weights, if it has any, as ragged or sparse
        tensors without padding. A feature of several inputs has rows in the place of ids.
        """
        entry = embedded_entry(self.entries, spec)
        name = spec.reads[0]
        if isinstance(entry.ids, manifest.GraphIds) and entry.joint is not None:
            return self._joint_rows(spec, entry.ids, inputs), None
        if isinstance(entry.ids, manifest.GraphIds) and entry.ids.split is not None:
            texts = tf.reshape(inputs[name], [-1])
            return words(entry.ids, entry.ids.split, texts, self.vocabularies), None

        weights = None if spec.weights is None else inputs[spec.weights]
        # The layer's own lookup takes padding out itself.
        if spec.config is not None:
            return inputs[name], weights
        ids = _to_ragged(inputs[name])
        if weights is not None:
            weights = ids.with_values(tf.reshape(getattr(weights, "values", weights), [-1]))
        return _remove_padding(ids, entry.padding, weights)

    def _joint_rows(
        self, spec: FeatureSpec, graph: manifest.GraphIds, inputs: Mapping[str, Any]
    ) -> Any:
        """Returns the rows that a graph computes of several inputs, by example."""
        joint = []
        for name in spec.reads:
            values, _ = _remove_padding(_to_ragged(inputs[name]), spec.padding_of(name), None)
            joint.append(values)
        if graph.cross is not None:
            return crossed(graph, graph.cross, joint, self.vocabularies)
        # Every input has one value per example, so that the rows have the shape of any of them.
        rows = rows_of(graph, self.vocabularies, *(values.values for values in joint))
        return joint[0].with_values(rows)

    def _combine(self, spec: FeatureSpec, ids: Any, rows: Any, weights: Any) -> Any:
        """Combines a bag as `tf.nn.safe_embedding_lookup_sparse` does; a ragged one as
        `tf.nn.embedding_lookup_sparse` does, which keeps every weight.
        """
        entry = spec.entry
        sparse_weights = None if weights is None else _to_sparse(weights)
        # TensorFlow's lookup reads a matrix of this call's vectors: row 0 is the vector of an empty
        # example, and the vectors of the bags follow.
        positions = _to_sparse(with_values(ids, tf.range(tf.size(rows, tf.int64)) + 1))
        empty_row = tf.constant(_row_or_zeros(entry.empty_row), tf.int64)
        vectors = self._vectors(spec, tf.concat([[empty_row], rows], 0))
        options = {"combiner": entry.combiner, "max_norm": entry.max_norm}
        if spec.encoding != "ragged":
            # A Python integer: TensorFlow takes no tensor here.
            default_id = None if entry.empty_row is None else 0
            return tf.nn.safe_embedding_lookup_sparse(
                [vectors], positions, sparse_weights, default_id=default_id, **options
            )

        combined = tf.nn.embedding_lookup_sparse([vectors], positions, sparse_weights, **options)
        # The lookup knows no empty examples after the last id of the batch.
        missing_count = tf.cast(positions.dense_shape[0], tf.int32) - tf.shape(combined)[0]
        return tf.pad(combined, [[0, missing_count], [0, 0]])

    def _lengths(self, name: str, value: Any) -> Any:
        """Returns how many ids each example has; for a dense input, the ids up to the last one that
        is no padding.
        """
        if not isinstance(value, tf.Tensor):
            return tf.cast(_to_ragged(value).row_lengths(), tf.int64)

        ids = tf.reshape(value, [tf.shape(value)[0], -1])
        padding = self.traced.spec.padding_of(name)
        if padding is None:
            is_id = tf.ones_like(ids, tf.bool)
        else:
            is_id = ids != tf.constant(padding, ids.dtype)
        lengths = tf.range(1, tf.shape(ids, tf.int64)[1] + 1)
        return tf.reduce_max(tf.where(is_id, lengths, tf.zeros([], tf.int64)), 1)

    def _rows(self, spec: FeatureSpec, values: Any) -> Any:
        """Returns rows of a table for flat ids, -1 where they stay unknown."""
        entry = embedded_entry(self.entries, spec)
        rule = entry.ids
        if isinstance(rule, manifest.GraphIds) and entry.joint is None:
            if entry.split:
                rule = rule.of_word
            rows = rows_of(rule, self.vocabularies, values)
        else:
            # Rows of several inputs are computed already.
            rows = tf.cast(values, tf.int64)
        row_count = self.traced.spec.rows_of(spec)
        if entry.from_end:
            rows = tf.where(rows < 0, rows + row_count, rows)

        in_table = (rows >= 0) & (rows < row_count)
        if entry.unknown.rule == "refuse":
            message = (
                f"feature {spec.name}: an id is not in table {spec.entry.table}, and the feature "
                "rejects unknown ids"
            )
            assertion = tf.debugging.Assert(tf.reduce_all(in_table), [message])
            with tf.control_dependencies([assertion]):
                return tf.identity(rows)
        # The vector of row -1 is zeros.
        unknown_row = -1
        if entry.unknown.rule != "zeros":
            unknown_row = entry.unknown.row or 0
        return tf.where(in_table, rows, tf.constant(unknown_row, tf.int64))

    def _vectors(self, spec: FeatureSpec, rows: Any) -> Any:
        """Returns [m, dim] float32 for [m] rows; zeros where a row is -1."""
        entry = spec.entry
        if entry.ordinal:
            return tf.cast(tf.maximum(rows, 0), tf.float32)[:, tf.newaxis]
        if entry.indicator is not None:
            return tf.one_hot(rows, entry.indicator)

        table = self.tables[entry.table]
        layout = table.layout
        has_row = rows >= 0
        # A gather of row -1 would fail: row 0 is read, and its vector replaced.
        rows = tf.where(has_row, rows, tf.zeros([], tf.int64))
        bases = tf.gather(tf.constant(layout.bases()), rows % layout.lanes)
        stored_rows = bases + rows // layout.lanes
        # Stored rows may be wider than the table: the columns behind it are padding.
        stored_vectors = self.gather(entry.table, stored_rows)
        vectors = tf.cast(stored_vectors[:, : table.dim], tf.float32)
        return tf.where(has_row[:, tf.newaxis], vectors, tf.zeros([], tf.float32))


def sent_dtype(name: str, model: ModelSpec, job: ExportJob) -> str:
    """Returns the dtype of what callers send for an input.

    Raises:
      NotConvertible: The input is read in ways that require different dtypes.
    """
    input_dtype = job.inputs[name].sent_dtype
    # The recipe's rule reads ids in a dtype of its own; the model's operations, and towers that
    # read the values themselves, in the dtype of the input. Lengths have no dtype.
    dtypes = set()
    for spec in model.inputs[name]:
        if isinstance(spec, FeatureSpec):
            dtypes.add(_stated_dtype(name, job) if spec.rule is None else input_dtype)
        elif spec.entry.take in ("values", "padded"):
            dtypes.add(input_dtype)
    if len(dtypes) > 1:
        raise NotConvertible(
            f"input {name!r} would be sent as {' and as '.join(sorted(dtypes))}: it is read by the "
            f"recipe's rule (features.{name}.ids) and otherwise, too, which a self-contained "
            "SavedModel does not do; write a bundle "
            '(output.tables = "copy" or "link")'
        )
    # An input of lengths alone has no such reader.
    if not dtypes:
        return input_dtype
    return dtypes.pop()


def _stated_dtype(name: str, job: ExportJob) -> str:
    """Returns the dtype of ids whose rule the recipe states."""
    if name not in job.features:
        return job.inputs[name].sent_dtype
    rule = job.features[name].ids
    if isinstance(rule, IdentityRule | KeyedRule):
        return job.inputs[name].sent_dtype
    if isinstance(rule, HashRule):
        return rule.dtype
    if rule.kind == "buckets":
        return "float32"
    return job.vocabularies[rule.vocabulary].dtype


def _row_or_zeros(row: int | None) -> int:
    """Returns the row of a vector; -1, whose vector is zeros, for None."""
    return -1 if row is None else row


def _to_ragged(value: Any) -> Any:
    """Returns ids by example, in their order."""
    if isinstance(value, tf.RaggedTensor):
        return value
    if isinstance(value, tf.SparseTensor):
        return tf.RaggedTensor.from_value_rowids(
            value.values, value.indices[:, 0], value.dense_shape[0]
        )
    flat = tf.reshape(value, [tf.shape(value)[0], -1])
    return tf.RaggedTensor.from_uniform_row_length(
        tf.reshape(flat, [-1]), tf.shape(flat, tf.int64)[1]
    )


def _pad_bags(spec: DenseSpec, inputs: Mapping[str, Any]) -> Any:
    """Returns [batch, values_max] values of a bag that a tower reads itself, or of its weights; a
    longer bag fails.
    """
    (name,) = spec.reads
    (values_max,) = spec.entry.shape
    bags = _to_ragged(inputs[name])
    if spec.weights is not None:
        weights = inputs[spec.weights]
        bags = bags.with_values(tf.reshape(getattr(weights, "values", weights), [-1]))
    message = f"input {name} has more than the {values_max} values of an example that a tower takes"
    all_fit = tf.reduce_all(bags.row_lengths() <= values_max)
    with tf.control_dependencies([tf.debugging.Assert(all_fit, [message])]):
        return _cast(bags.to_tensor(shape=[None, values_max]), spec.entry.dtype)


def _cast(values: Any, dtype: str) -> Any:
    return values if dtype == "string" else tf.cast(values, dtype)


def _remove_padding(ids: Any, padding: int | str | None, weights: Any) -> tuple[Any, Any]:
    """Returns ids and their weights, if they have any, without padding."""
    if padding is None:
        return ids, weights
    is_id = ids.values != tf.constant(padding, ids.values.dtype)
    if weights is not None:
        weights = _retain(weights, is_id)
    return _retain(ids, is_id), weights


def _retain(bags: Any, mask: Any) -> Any:
    """Returns bags with only those of their values that a mask selects."""
    if isinstance(bags, tf.SparseTensor):
        return tf.sparse.retain(bags, mask)
    return tf.ragged.boolean_mask(bags, bags.with_values(mask))


def _to_sparse(ids: Any) -> Any:
    return ids if isinstance(ids, tf.SparseTensor) else ids.to_sparse()
