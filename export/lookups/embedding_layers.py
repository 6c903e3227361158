"""Intercepts the embedding layers of TensorFlow and TFRS: who makes their tables, and who answers their lookups.

On a CPU every such layer (TFRS `TPUEmbedding`, the mid-level `TPUEmbedding` and `TPUEmbeddingForServing`, a direct call
of `serving_embedding_lookup`; by `export/frameworks/tpu_layers.py` also `TPUEmbeddingV0` and `TPUEmbeddingV2`) does two
things that matter here: it makes its tables in `_create_variables_and_slots`, and looks them up by one function,
`cpu_embedding_lookup`. Both are replaced for the length of a `with`.
Source: TensorFlow 2.20, python/tpu/tpu_embedding_for_serving.py and tpu_embedding_v2.py; TFRS 0.7.7.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from export.errors import ExportError, NotConvertible
from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import remember_line
from export.frameworks.tpu_layers import tpu_layers_on_cpu
from export.graph.specs import Encoding, Kind, TableFacts
from export.lookups.records import Answer, Lookup, MakeTable, table_name

_HOOK = "_rowcast_answer"

Original = Callable[[Any, Any, Mapping[Any, Any], Any], Any]


def table_facts(config: Any) -> TableFacts:
    """Returns the facts of a TableConfig.

    Raises:
      NotConvertible: it has no name that a checkpoint could know it by.
    """
    if not config.name:
        raise NotConvertible(
            f"a table of {config.vocabulary_size} x {config.dim} has no name; give its TableConfig a name"
        )
    name = table_name(config.name, "table")
    return TableFacts(name, config.name, int(config.vocabulary_size), int(config.dim))


@contextlib.contextmanager
def intercepted(make_table: MakeTable, answer: Answer, *, tracked: bool) -> Iterator[None]:
    """Makes tables by `make_table` and answers lookups by `answer`, within the `with`.

    Args:
      make_table: returns the variable of a table; no slot variables are made.
      answer: returns the activation of one lookup; an error that it raises goes to the caller of the layer.
      tracked: whether the tables are part of the model's object graph: where they are not, TensorFlow's restore passes
        them by.
    """
    tf = load_tensorflow()
    from tensorflow.python.tpu import tpu_embedding_for_serving, tpu_embedding_v2
    from tensorflow.python.trackable.data_structures import NoDependency

    def made(config: Any) -> Any:
        variable = make_table(table_facts(config))
        remember_line(variable)
        return variable

    def create_variables_and_slots(layer: Any) -> Any:
        tables = {config.name: {"parameters": made(config)} for config in layer._table_config}
        return tables if tracked else NoDependency(tables)

    refusals: list[ExportError] = []

    def answer_all(inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any) -> Any:
        try:
            lookups = describe_lookups(inputs, weights, tables, feature_config)
            return tf.nest.pack_sequence_as(feature_config, [answer(lookup) for lookup in lookups])
        except ExportError as problem:
            refusals.append(problem)
            raise

    layers = (tpu_embedding_for_serving.TPUEmbeddingForServing, tpu_embedding_v2.TPUEmbedding)
    makers = [layer.__dict__["_create_variables_and_slots"] for layer in layers]
    lookup = tpu_embedding_for_serving.cpu_embedding_lookup
    code = lookup.__code__
    for layer in layers:
        layer._create_variables_and_slots = create_variables_and_slots
    setattr(tpu_embedding_for_serving, _HOOK, answer_all)
    # The function's code, not the name it is bound to: it is exported under several names, and the user's module may
    # have imported any of them before.
    lookup.__code__ = _ask_hook.__code__
    try:
        with tpu_layers_on_cpu(create_variables_and_slots):
            yield
    except Exception as problem:
        if refusals:  # Keras and AutoGraph have wrapped it in pages of call stacks
            raise refusals[-1] from problem
        raise
    finally:
        lookup.__code__ = code
        delattr(tpu_embedding_for_serving, _HOOK)
        for layer, maker in zip(layers, makers, strict=True):
            layer._create_variables_and_slots = maker


def _ask_hook(inputs, weights, tables, feature_config):  # type: ignore[no-untyped-def]
    # Runs with the globals of TensorFlow's module, where `intercepted` has put the hook.
    return _rowcast_answer(inputs, weights, tables, feature_config)  # type: ignore[name-defined]  # noqa: F821


def original_lookup() -> Original:
    """Returns TensorFlow's own lookup, which works within `intercepted` too; to be called before it."""
    load_tensorflow()
    from tensorflow.python.tpu import tpu_embedding_for_serving

    lookup = tpu_embedding_for_serving.cpu_embedding_lookup
    return types.FunctionType(lookup.__code__, lookup.__globals__, lookup.__name__)


def describe_lookups(inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any) -> list[Lookup]:
    """Returns what a call of an embedding layer looks up, feature by feature.

    Raises:
      NotConvertible: a combination that TensorFlow refuses on a CPU, or whose batch cannot be told from its shape.
    """
    tf = load_tensorflow()
    from tensorflow.python.util import nest  # the public one tells no paths

    tf.nest.assert_same_structure(inputs, feature_config)
    ids = tf.nest.flatten(inputs)
    beside = [None] * len(ids) if weights is None else tf.nest.flatten(weights)
    configs = nest.flatten_with_joined_string_paths(feature_config)
    return [
        _describe(path, ids_of, weights_of, tables[config.table], config)
        for ids_of, weights_of, (path, config) in zip(ids, beside, configs, strict=True)
    ]


def _describe(path: str, ids: Any, weights: Any, variable: Any, config: Any) -> Lookup:
    tf = load_tensorflow()
    encoding: Encoding
    if isinstance(ids, tf.SparseTensor):
        # As TensorFlow does it: where output_shape is given, max_sequence_length is not heeded.
        encoding, length = "sparse", None if config.output_shape else config.max_sequence_length or None
    elif isinstance(ids, tf.RaggedTensor):
        encoding, length = "ragged", config.max_sequence_length or None
        if config.output_shape:
            raise NotConvertible(
                f"feature {path!r} is ragged and has output_shape={config.output_shape}, which fixes the batch; "
                "leave output_shape out, or give max_sequence_length"
            )
    else:
        ids = tf.convert_to_tensor(ids)
        encoding, length = "dense", _dense_length(path, ids, weights, config)
    if encoding != "dense" and ids.shape.rank not in (2, None):
        raise NotConvertible(
            f"feature {path!r} was given a {encoding} tensor of rank {ids.shape.rank}; rank 2 was expected"
        )
    if weights is not None:
        _check_weights(path, ids, weights, length, config)
    one = encoding == "dense" and length in (None, 1)
    kind: Kind = "single" if one else "sequence" if length is not None else "bag"
    combiner = config.table.combiner if kind == "bag" else None
    table = table_facts(config.table)
    return Lookup(path, table, variable, (ids,), weights, kind, encoding, combiner, length, config)


def _dense_length(path: str, ids: Any, weights: Any, config: Any) -> int | None:
    if config.max_sequence_length or weights is not None:
        what = "a sequence feature" if config.max_sequence_length else "a weighted feature"
        raise NotConvertible(
            f"feature {path!r} is {what}, and was given a dense tensor; write "
            'kind = "ragged" or "sparse" for its input in the recipe, as the model takes it'
        )
    if ids.shape.rank not in (1, 2) or (ids.shape.rank == 2 and ids.shape[1] is None):
        raise NotConvertible(
            f"feature {path!r} was given a dense tensor of shape {ids.shape}; [batch] or [batch, length] was expected"
        )
    return int(ids.shape[1]) if ids.shape.rank == 2 else None


def _check_weights(path: str, ids: Any, weights: Any, length: int | None, config: Any) -> None:
    tf = load_tensorflow()
    if type(weights) is not type(ids):
        raise NotConvertible(f"feature {path!r}: weights are a {type(weights).__name__}, ids a {type(ids).__name__}")
    if length is not None:
        raise NotConvertible(f"feature {path!r} is a sequence feature, which takes no weights")
    if isinstance(ids, tf.SparseTensor) and not config.validate_weights_and_indices:
        raise NotConvertible(
            f"feature {path!r} is weighted with validate_weights_and_indices=False, a rule that is not carried over"
        )
