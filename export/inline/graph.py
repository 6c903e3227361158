"""The graph of a self-contained SavedModel: raw ids in, the towers' results out, lookups inside, no table's value.

Each tower becomes one signature. Ids become rows by the recipe's rules, rows become rows of the variable as the
checkpoint stores it (`export/checkpoint/layouts.py` has the formula; a stack is shared by its tables), and the gathered
vectors go through TensorFlow's own lookup of the layer, combiner and all, into the tower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle import manifest
from export.calling import input_spec
from export.checkpoint.specs import TableSpec
from export.cuts.embedding_layers import original_lookup
from export.errors import DestinationError, NotConvertible, UsageError
from export.frameworks import load_tensorflow
from export.origins import distinct_identifiers, resource
from export.pruning import TracedTower
from export.renumbering import renumber
from export.settings import ExportJob, HashRule, InputPart, KeyedRule
from export.towers import SIGNATURE, DenseSpec, FeatureSpec
from export.tracing import TracedModel

Gather = Callable[[str, Any], Any]
"""(name of a table, [m] int64 rows of the variable that stores it) -> [m, stored columns], in the stored dtype."""


@dataclass(frozen=True)
class InlineGraph:
    """What was traced, before it is written.

    Attributes:
      module: what TensorFlow saves.
      signatures: by their names.
      inputs: signature -> input of the recipe -> names of the tensors that carry it.
      tables: the variable of each stored table, by its attribute.
      weights: the towers' own variables, by their attributes.
    """

    module: Any
    signatures: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, tuple[str, ...]]]
    tables: Mapping[str, str]
    weights: Mapping[str, Any]


class Lookups:
    """Answers the lookups of towers inside a graph."""

    def __init__(
        self,
        job: ExportJob,
        traced: TracedModel,
        pages: Mapping[str, manifest.Feature],
        tables: Mapping[str, TableSpec],
        vocabularies: Mapping[str, Any],
        gather: Gather,
    ) -> None:
        """Takes what decides an answer.

        Args:
          job, traced, pages: the recipe, its model and the description of its features.
          tables: where the checkpoint stores each table.
          vocabularies: key -> position, as TensorFlow's lookup tables.
          gather: reads rows as they are stored.
        """
        self._job, self._traced, self._pages, self._tables = job, traced, pages, tables
        self._vocabularies, self._gather = vocabularies, gather
        self._original = original_lookup()

    def parts(self, tower: TracedTower) -> dict[str, InputPart]:
        """Returns the recipe's inputs that a tower needs, with the dtype of what a caller sends."""
        needed: dict[str, InputPart] = {}
        for tensor in tower.spec.inputs:
            name = tensor.feature
            spec, part = self._traced.spec.features[name], self._job.inputs[name]
            needed[name] = part
            if isinstance(spec, FeatureSpec):
                needed[name] = part.model_copy(update={"dtype": raw_dtype(name, self._job)})
                if spec.weights is not None:
                    needed[spec.weights] = self._job.inputs[spec.weights]
        return {name: needed[name] for name in self._job.inputs if name in needed}

    def run(self, tower: TracedTower, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a tower's results for raw inputs."""
        tf = load_tensorflow()
        arguments = []
        for tensor in tower.spec.inputs:
            spec = self._traced.spec.features[tensor.feature]
            value = inputs[tensor.feature]
            if isinstance(spec, FeatureSpec):
                value = self._activation(spec, value, inputs[spec.weights] if spec.weights else None)
            arguments.append(value)
        results = tower.function(*arguments)
        return {tensor.name: tf.identity(results[tensor.name]) for tensor in tower.spec.outputs}

    def _activation(self, spec: FeatureSpec, ids: Any, weights: Any) -> Any:
        tf = load_tensorflow()
        if spec.encoding == "dense":
            vectors = self._vectors(spec, self._rows(spec, tf.reshape(ids, [-1])))
            return vectors if spec.kind == "single" else tf.reshape(vectors, [-1, spec.length, vectors.shape[1]])
        rows = self._rows(spec, ids.values)
        beside = None if weights is None else weights.values
        if spec.kind == "bag":  # leaves unknown ids out; a sequence keeps their places
            known = rows >= 0
            ids = _retained(ids, known)
            rows = tf.boolean_mask(rows, known)
            beside = None if beside is None else tf.boolean_mask(beside, known)
        # The layer's own lookup runs on the gathered vectors alone, one for each id, whatever dtype and order the table
        # is stored in; the row behind them is what TensorFlow fills empty examples with before it zeroes them.
        vectors = self._vectors(spec, rows)
        vectors = tf.concat([vectors, tf.zeros([1, vectors.shape[1]])], 0)
        vectors.read_value = lambda: vectors  # sequences are read from a variable
        places = _with_values(ids, tf.range(tf.size(rows, tf.int64)))
        config = self._traced.configs[spec.name]
        weighted = None if beside is None else _with_values(ids, beside)
        return self._original(places, weighted, {config.table: vectors}, config)

    def _rows(self, spec: FeatureSpec, values: Any) -> Any:
        """Returns rows of a table for flat ids, -1 where they stay unknown."""
        tf = load_tensorflow()
        page = self._pages[spec.name]
        assert isinstance(page, manifest.EmbeddedFeature)  # noqa: S101 - described from this very spec
        rows = self._by_rule(page.ids, values)
        count = self._traced.spec.tables[spec.table].rows
        known = (rows >= 0) & (rows < count)
        if page.unknown.rule == "refuse":
            told = f"feature {spec.name}: an id is not in table {spec.table}, and the feature refuses unknown ids"
            with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(known), [told])]):
                return tf.identity(rows)
        stands = -1 if page.unknown.rule == "zeros" else page.unknown.row or 0
        return tf.where(known, rows, tf.constant(stands, tf.int64))

    def _by_rule(self, rule: manifest.IdRule, values: Any) -> Any:
        tf = load_tensorflow()
        if isinstance(rule, manifest.HashIds):
            return _hashed(values, rule.buckets) + rule.first_row
        if isinstance(rule, manifest.BucketIds):
            boundaries = [float(each) for each in rule.boundaries]
            return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=boundaries), tf.int64)
        if isinstance(rule, manifest.VocabularyIds):
            position = self._vocabularies[rule.vocabulary].lookup(values)
            beyond = position
            if rule.oov_buckets:
                modulo = rule.oov_hash == "modulo" and values.dtype != tf.string
                beyond = values % rule.oov_buckets if modulo else _hashed(values, rule.oov_buckets)
                beyond = tf.cast(beyond, tf.int64) + rule.oov_first_row
            rows = tf.where(position < 0, beyond, position + rule.first_row)
            return rows if rule.mask is None else tf.where(values == rule.mask, tf.zeros([], tf.int64), rows)
        return tf.cast(values, tf.int64)

    def _vectors(self, spec: FeatureSpec, rows: Any) -> Any:
        """Returns [m, dim] float32 for [m] rows; zeros where a row is -1."""
        tf = load_tensorflow()
        table = self._tables[spec.table]
        known = rows >= 0
        layout = table.layout
        within = tf.where(known, rows, tf.zeros([], tf.int64))
        stored = tf.gather(tf.constant(layout.bases()), within % layout.lanes) + within // layout.lanes
        vectors = tf.cast(self._gather(spec.table, stored)[:, : table.dim], tf.float32)
        return tf.where(known[:, tf.newaxis], vectors, tf.zeros([], tf.float32))


def _hashed(values: Any, buckets: int) -> Any:
    tf = load_tensorflow()
    texts = values if values.dtype == tf.string else tf.strings.as_string(values)
    return tf.strings.to_hash_bucket_fast(texts, buckets)


def raw_dtype(feature: str, job: ExportJob) -> str:
    """Returns the dtype of the ids that callers send for a feature that reads a table."""
    rule = job.features[feature].ids if feature in job.features else None
    if rule is None or isinstance(rule, manifest.IdentityIds | KeyedRule):
        return job.inputs[feature].dtype
    if isinstance(rule, HashRule):
        return rule.dtype
    return "float32" if rule.kind == "buckets" else job.vocabularies[rule.vocabulary].dtype


def build_graph(
    job: ExportJob,
    traced: TracedModel,
    pages: Mapping[str, manifest.Feature],
    tables: Mapping[str, TableSpec],
    vocabularies: Mapping[str, Path],
) -> InlineGraph:
    """Traces one signature for each tower; allocates no table.

    Args:
      job, traced, pages: the recipe, its model and the description of its features.
      tables: where the checkpoint stores each table.
      vocabularies: the file of each vocabulary, one key a line.
    Raises:
      UsageError: inputs of the recipe cannot be told apart in a signature.
      NotConvertible: the model does to its inputs what only a bundle holds.
    """
    tf = load_tensorflow()
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    _refuse_unknown(traced)
    module = tf.Module(name=job.model)
    stored: dict[str, Any] = {}
    for spec in tables.values():
        if spec.key not in stored:
            attribute = f"table_{len(stored)}"
            shape, dtype = spec.stored, tf.as_dtype(spec.dtype)
            stored[spec.key] = UninitializedVariable(shape=shape, dtype=dtype, trainable=False, name=attribute)
            setattr(module, attribute, stored[spec.key])
    weights: dict[str, Any] = {}
    for variable in _distinct(traced.towers):
        weights[f"weight_{len(weights)}"] = variable
        setattr(module, f"weight_{len(weights) - 1}", variable)
    used = {
        page.ids.vocabulary
        for page in pages.values()
        if isinstance(page, manifest.EmbeddedFeature) and isinstance(page.ids, manifest.VocabularyIds)
    }
    known = {name: open_vocabulary(vocabularies[name], job.vocabularies[name].dtype) for name in sorted(used)}
    module.vocabularies = list(known.values())

    def gather(table: str, rows: Any) -> Any:
        return tf.gather(stored[tables[table].key], rows)

    lookups = Lookups(job, traced, pages, tables, known, gather)
    signatures, inputs = {}, {}
    for tower in traced.towers:
        name = tower.spec.name
        signatures[name], inputs[name] = _signature(tower, lookups)
    default = job.output.serving_default or next(iter(signatures))
    if default not in signatures:
        raise UsageError(f"output.serving_default is {default!r}; the recipe's towers: {', '.join(signatures)}")
    signatures[SIGNATURE], inputs[SIGNATURE] = signatures[default], inputs[default]
    attributes = {f"table_{number}": key for number, key in enumerate(stored)}
    return InlineGraph(module, signatures, inputs, attributes, weights)


def _refuse_unknown(traced: TracedModel) -> None:
    for name, spec in traced.spec.features.items():
        alone = spec.reads == (name,)
        rule = spec.rule if isinstance(spec, FeatureSpec) else None
        known = rule is None or isinstance(rule, manifest.BucketIds) or rule == manifest.HashIds(buckets=_buckets(rule))
        lengths = isinstance(spec, DenseSpec) and spec.take == "lengths"
        if not alone or lengths or not known or (isinstance(spec, FeatureSpec) and name not in traced.configs):
            what = "is read by several features" if not alone else "is not looked up by an embedding layer as it is"
            raise NotConvertible(
                f"input {spec.reads[0]!r} {what} (feature {name!r}), which a self-contained SavedModel does not do; "
                'write a bundle (output.tables = "copy" or "link")'
            )


def _buckets(rule: manifest.IdRule) -> int:
    return rule.buckets if isinstance(rule, manifest.HashIds) else 1


def write_graph(graph: InlineGraph, directory: Path) -> bytes:
    """Writes `saved_model.pb` and `assets/`, and no variable.

    Returns:
      The object graph that the variables' checkpoint must hold, a TrackableObjectGraph.
    Raises:
      DestinationError: the directory cannot be written.
    """
    tf = load_tensorflow()
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
    from tensorflow.python.saved_model.save import save_and_return_nodes

    try:
        save_and_return_nodes(
            graph.module, str(directory), signatures=dict(graph.signatures), experimental_skip_checkpoint=True
        )
        renumber(directory)
    except (OSError, tf.errors.OpError) as problem:
        raise DestinationError(f"the SavedModel cannot be written to {directory}: {problem}") from problem
    objects = TrackableObjectGraph()
    root = objects.nodes.add()
    for attribute in (*graph.tables, *graph.weights):
        root.children.add(node_id=len(objects.nodes), local_name=attribute)
        variable = objects.nodes.add()
        variable.attributes.add(name="VARIABLE_VALUE", full_name=attribute, checkpoint_key=variable_key(attribute))
    return bytes(objects.SerializeToString(deterministic=True))


def variable_key(attribute: str) -> str:
    """Returns the key of a variable that is an attribute of the module."""
    return f"{attribute}/.ATTRIBUTES/VARIABLE_VALUE"


def open_vocabulary(path: Path, dtype: str) -> Any:
    """Returns TensorFlow's lookup table over a file of keys, one a line: key -> position, -1 if unknown."""
    lookup = load_tensorflow().lookup
    tf = load_tensorflow()
    lines = lookup.TextFileInitializer(
        str(path), tf.as_dtype(dtype), lookup.TextFileIndex.WHOLE_LINE, tf.int64, lookup.TextFileIndex.LINE_NUMBER
    )
    return lookup.StaticHashTable(lines, -1)


def _signature(tower: TracedTower, lookups: Lookups) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Traces one tower on raw inputs; a ragged or sparse one is several tensors, called as TensorFlow calls them."""
    tf = load_tensorflow()
    parts = lookups.parts(tower)
    names = distinct_identifiers(parts)
    specs = {names[name]: input_spec(part) for name, part in parts.items()}
    inputs = {name: _tensor_names(names[name], part) for name, part in parts.items()}
    taken = [each for tensors in inputs.values() for each in tensors]
    if len(set(taken)) < len(taken):
        twice = next(each for each in taken if taken.count(each) > 1)
        raise UsageError(
            f"tower {tower.spec.name!r}: two inputs need a tensor {twice!r} (a ragged input NAME is sent as NAME and "
            "NAME_1, a sparse one as NAME, NAME_1 and NAME_2); rename one in the model and the recipe"
        )

    def serve(**inputs: Any) -> dict[str, Any]:
        return lookups.run(tower, {name: inputs[names[name]] for name in parts})

    return tf.function(serve, autograph=False).get_concrete_function(**specs), inputs


def _tensor_names(name: str, part: InputPart) -> tuple[str, ...]:
    """Returns the tensors of an input: values and row splits of a ragged one, indices, values and shape of a sparse."""
    count = {"dense": 1, "ragged": 2, "sparse": 3}[part.kind]
    return (name, *(f"{name}_{number}" for number in range(1, count)))


def _retained(ids: Any, known: Any) -> Any:
    """Returns a bag without the values that are not known."""
    tf = load_tensorflow()
    if isinstance(ids, tf.SparseTensor):
        return tf.sparse.retain(ids, known)
    return tf.ragged.boolean_mask(ids, ids.with_values(known))


def _with_values(ids: Any, values: Any) -> Any:
    tf = load_tensorflow()
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)
    return ids.with_values(values)


def _distinct(towers: Iterable[TracedTower]) -> list[Any]:
    return list({resource(variable.handle): variable for tower in towers for variable in tower.variables}.values())
