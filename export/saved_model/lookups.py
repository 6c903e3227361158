"""Lookups inside the graph of a self-contained SavedModel: raw ids in, what the cut towers take
out.

Ids become rows by the features' entries in the manifest, rows become rows of the variable as the
checkpoint stores it (`export/checkpoint/layouts.py` has the formula; a stack is shared by its
tables), and the gathered vectors go through TensorFlow's own lookup, combiner and all: that of the
layer where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format import manifest
from export.checkpoint.inventory.specs import TableSpec
from export.errors import NotConvertible
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec
from export.graphs.loading import tf
from export.graphs.tensors import with_values
from export.id_graphs.tensorflow_operations import Vocabularies, crossed, joined, rows_of, words
from export.recipe.schema import ExportJob, HashRule, InputSection, KeyedRule

Gather = Callable[[str, Any], Any]
"""(name of a table, [m] int64 rows of the variable that stores it) -> [m, stored columns], in the
stored dtype.
"""


@dataclass(frozen=True)
class Lookups:
    """Answers the lookups of towers inside a graph.

    Attributes:
      job, traced, entries: the recipe, its model and the description of its features.
      tables: where the checkpoint stores each table.
      vocabularies: of the recipe and of the model.
      gather: reads rows as they are stored.
    """

    job: ExportJob
    traced: PartitionedModel
    entries: Mapping[str, manifest.Feature]
    tables: Mapping[str, TableSpec]
    vocabularies: Vocabularies
    gather: Gather

    def parts(self, tower: TracedTower) -> dict[str, InputSection]:
        """Returns the recipe's inputs that a tower needs, with the dtype of what a caller sends.

        Raises:
          NotConvertible: an input is read in ways that ask for different dtypes.
        """
        needed: dict[str, InputSection] = {}
        for tensor in tower.spec.inputs:
            spec = self.traced.spec.features[tensor.feature]
            for name in spec.reads:
                dtype = sent_dtype(name, self.traced.spec, self.job)
                needed[name] = self.job.inputs[name].model_copy(update={"dtype": dtype})
            if spec.weights is not None:
                needed[spec.weights] = self.job.inputs[spec.weights]
        return {name: needed[name] for name in self.job.inputs if name in needed}

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
                arguments.append(_padded(spec, inputs))
            else:
                arguments.append(_cast(inputs[spec.reads[0]], spec.entry.dtype))
        results = tower.function(*arguments)
        return {tensor.name: tf.identity(results[tensor.name]) for tensor in tower.spec.outputs}

    def _activation(self, spec: FeatureSpec, inputs: Mapping[str, Any]) -> Any:
        entry = spec.entry
        of_several = isinstance(entry.ids, manifest.MultiInputIds)
        if spec.encoding == "dense" and entry.kind != "bag" and not of_several:
            return self._of_dense_ids(spec, inputs[spec.reads[0]])
        ids, weights = self._ids(spec, inputs)
        rows = self._rows(spec, ids.values)
        if entry.kind == "bag":  # leaves unknown ids out; a sequence keeps their places
            known = rows >= 0
            ids = _retained(ids, known)
            weights = None if weights is None else _retained(weights, known)
            rows = tf.boolean_mask(rows, known)
        if spec.config is not None:
            vectors = self._vectors(spec, rows)
            return self.traced.original.combine(spec.config, ids, weights, vectors)
        if entry.kind == "single":  # of several inputs
            return self._vectors(spec, rows)
        if entry.kind == "sequence":
            whole = ids.with_values(self._vectors(spec, rows))
            # -1 stands for zeros.
            filler_row = tf.constant([_or_none(entry.filler_row)], tf.int64)
            filler = self._vectors(spec, filler_row)[0]
            return whole.to_tensor(filler, shape=[None, entry.length, whole.shape[-1]])
        return self._combined(spec, ids, rows, weights)

    def _of_dense_ids(self, spec: FeatureSpec, ids: Any) -> Any:
        """Returns the vectors of one id per example, or of a sequence of `length` ids."""
        entry = self._entry(spec)
        if entry.place is not None:
            ids = tf.reshape(ids, [-1, entry.places])[:, entry.place]
        values = tf.reshape(ids, [-1])
        rows = self._rows(spec, values)
        if entry.padding is not None:
            padded = values == tf.constant(entry.padding, values.dtype)
            rows = tf.where(padded, tf.constant(-1, tf.int64), rows)
        vectors = self._vectors(spec, rows)
        if entry.kind == "single":
            return vectors
        return tf.reshape(vectors, [-1, entry.length, vectors.shape[1]])

    def _ids(self, spec: FeatureSpec, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns ids, and weights beside them, as ragged or sparse tensors without padding; of
        several inputs rows.
        """
        entry = self._entry(spec)
        name = spec.reads[0]
        if isinstance(entry.ids, manifest.CrossedIds):
            each = [
                _unpadded(_ragged(inputs[key]), spec.padding_of(key), None)[0] for key in spec.reads
            ]
            return crossed(entry.ids, each, self.vocabularies), None
        if isinstance(entry.ids, manifest.JoinedIds):
            each = [_ragged(inputs[key]) for key in spec.reads]
            return each[0].with_values(
                joined(entry.ids, [key.values for key in each], self.vocabularies)
            ), None
        if isinstance(entry.ids, manifest.TextIds):
            texts = tf.reshape(inputs[name], [-1])
            return words(entry.ids, texts, self.vocabularies), None
        weights = None if spec.weights is None else inputs[spec.weights]
        if spec.config is not None:
            return inputs[name], weights
        ids = _ragged(inputs[name])
        if weights is not None:
            weights = ids.with_values(tf.reshape(getattr(weights, "values", weights), [-1]))
        return _unpadded(ids, entry.padding, weights)

    def _combined(self, spec: FeatureSpec, ids: Any, rows: Any, weights: Any) -> Any:
        """Combines a bag as `tf.nn.safe_embedding_lookup_sparse` does, or the plain one, which
        keeps every weight.
        """
        entry = spec.entry
        beside = None if weights is None else _sparse(weights)
        places = _sparse(with_values(ids, _places(rows) + 1))
        empty_row = tf.constant(_or_none(entry.empty_row), tf.int64)
        vectors = self._vectors(spec, tf.concat([[empty_row], rows], 0))
        how = {"combiner": entry.combiner, "max_norm": entry.max_norm}
        if spec.encoding != "ragged":
            empty = None if entry.empty_row is None else 0  # TensorFlow takes no tensor
            return tf.nn.safe_embedding_lookup_sparse(
                [vectors], places, beside, default_id=empty, **how
            )
        found = tf.nn.embedding_lookup_sparse([vectors], places, beside, **how)
        # Empty examples at the end.
        missing = tf.cast(places.dense_shape[0], tf.int32) - tf.shape(found)[0]
        return tf.pad(found, [[0, missing], [0, 0]])

    def _lengths(self, name: str, value: Any) -> Any:
        """Returns how many ids each example has; of a dense input, up to the last one that is no
        padding.
        """
        if isinstance(value, tf.Tensor):
            found = tf.reshape(value, [tf.shape(value)[0], -1])
            places = tf.range(1, tf.shape(found, tf.int64)[1] + 1)
            padding = self.traced.spec.padding_of(name)
            taken = (
                tf.ones_like(found, tf.bool)
                if padding is None
                else found != tf.constant(padding, found.dtype)
            )
            return tf.reduce_max(tf.where(taken, places, tf.zeros([], tf.int64)), 1)
        return tf.cast(_ragged(value).row_lengths(), tf.int64)

    def _rows(self, spec: FeatureSpec, values: Any) -> Any:
        """Returns rows of a table for flat ids, -1 where they stay unknown."""
        entry = self._entry(spec)
        rule = entry.ids
        if isinstance(rule, manifest.TextIds):
            rule = rule.ids
        if isinstance(rule, manifest.GraphIds):
            rows = rows_of(rule, values, self.vocabularies)
        else:
            # Several inputs have made rows: they are taken as they are.
            rows = tf.cast(values, tf.int64)
        count = self.traced.spec.rows_of(spec)
        rows = tf.where(rows < 0, rows + count, rows) if entry.from_end else rows
        known = (rows >= 0) & (rows < count)
        if entry.unknown.rule == "refuse":
            message = (
                f"feature {spec.name}: an id is not in table {spec.entry.table}, and the feature "
                "rejects unknown ids"
            )
            with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(known), [message])]):
                return tf.identity(rows)
        stands = -1 if entry.unknown.rule == "zeros" else entry.unknown.row or 0
        return tf.where(known, rows, tf.constant(stands, tf.int64))

    def _entry(self, spec: FeatureSpec) -> manifest.EmbeddedFeature:
        entry = self.entries[spec.name]
        # described from this very spec
        assert isinstance(entry, manifest.EmbeddedFeature)  # noqa: S101
        return entry

    def _vectors(self, spec: FeatureSpec, rows: Any) -> Any:
        """Returns [m, dim] float32 for [m] rows; zeros where a row is -1."""
        entry = spec.entry
        if entry.ordinal:
            return tf.cast(tf.maximum(rows, 0), tf.float32)[:, tf.newaxis]
        if entry.indicator is not None:
            return tf.one_hot(rows, entry.indicator)
        table = self.tables[entry.table]
        known = rows >= 0
        layout = table.layout
        within = tf.where(known, rows, tf.zeros([], tf.int64))
        stored = (
            tf.gather(tf.constant(layout.bases()), within % layout.lanes) + within // layout.lanes
        )
        vectors = tf.cast(self.gather(entry.table, stored)[:, : table.dim], tf.float32)
        return tf.where(known[:, tf.newaxis], vectors, tf.zeros([], tf.float32))


def sent_dtype(name: str, model: ModelSpec, job: ExportJob) -> str:
    """Returns the dtype of what callers send for an input.

    Raises:
      NotConvertible: it is read in ways that ask for different ones.
    """
    own = job.inputs[name].sent_dtype
    stated = {
        isinstance(spec, FeatureSpec) and spec.rule is None
        for spec in model.inputs[name]
        if isinstance(spec, FeatureSpec) or spec.entry.take in ("values", "padded")
    }
    asked = {_stated_dtype(name, job) if each else own for each in stated} or {own}
    if len(asked) > 1:
        raise NotConvertible(
            f"input {name!r} would be sent as {' and as '.join(sorted(asked))}: it is read by the "
            "recipe's rule "
            f"(features.{name}.ids) and otherwise, too, which a self-contained SavedModel does not "
            "do; write a bundle "
            '(output.tables = "copy" or "link")'
        )
    return asked.pop()


def _stated_dtype(name: str, job: ExportJob) -> str:
    """Returns the dtype of ids whose rule the recipe tells."""
    rule = job.features[name].ids if name in job.features else None
    if rule is None or isinstance(rule, manifest.IdentityIds | KeyedRule):
        return job.inputs[name].sent_dtype
    if isinstance(rule, HashRule):
        return rule.dtype
    return "float32" if rule.kind == "buckets" else job.vocabularies[rule.vocabulary].dtype


def _or_none(row: int | None) -> int:
    return -1 if row is None else row


def _places(rows: Any) -> Any:
    return tf.range(tf.size(rows, tf.int64))


def _ragged(value: Any) -> Any:
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


def _padded(spec: DenseSpec, inputs: Mapping[str, Any]) -> Any:
    """Returns [batch, most] of a bag that a tower takes itself, or of its weights; more are
    rejected.
    """
    (name,) = spec.reads
    (most,) = spec.entry.shape
    bags = _ragged(inputs[name])
    if spec.weights is not None:
        weights = inputs[spec.weights]
        bags = bags.with_values(tf.reshape(getattr(weights, "values", weights), [-1]))
    message = f"input {name} has more than the {most} values of an example that a tower takes"
    within = tf.reduce_all(bags.row_lengths() <= most)
    with tf.control_dependencies([tf.debugging.Assert(within, [message])]):
        return _cast(bags.to_tensor(shape=[None, most]), spec.entry.dtype)


def _cast(values: Any, dtype: str) -> Any:
    return values if dtype == "string" else tf.cast(values, dtype)


def _unpadded(ids: Any, padding: int | str | None, weights: Any) -> tuple[Any, Any]:
    if padding is None:
        return ids, weights
    held = ids.values != tf.constant(padding, ids.values.dtype)
    return _retained(ids, held), None if weights is None else _retained(weights, held)


def _retained(ids: Any, known: Any) -> Any:
    """Returns a bag without the values that are not known."""
    if isinstance(ids, tf.SparseTensor):
        return tf.sparse.retain(ids, known)
    return tf.ragged.boolean_mask(ids, ids.with_values(known))


def _sparse(ids: Any) -> Any:
    return ids if isinstance(ids, tf.SparseTensor) else ids.to_sparse()
