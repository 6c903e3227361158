"""Intercepts the embedding layers of TensorFlow and TFRS: the creation of their tables, and their
lookups.

On a CPU every such layer (TFRS `TPUEmbedding`, the mid-level `TPUEmbedding` and
`TPUEmbeddingForServing`, a direct call of `serving_embedding_lookup`; by
`frameworks/tpu_layers.py` also `TPUEmbeddingV0` and `TPUEmbeddingV2`) does two
things: it creates its tables in `_create_variables_and_slots`, and reads them by one function,
`cpu_embedding_lookup`.
Source: TensorFlow 2.20, python/tpu/tpu_embedding_for_serving.py and tpu_embedding_v2.py; TFRS
0.7.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from export.errors import NotConvertible
from export.front_end.specs import Encoding, Kind, TableFacts
from export.graphs.hooks import Hooks, copy_of
from export.graphs.internals import untracked, with_paths
from export.graphs.loading import tf
from export.graphs.placeholders import remember_line
from export.partition.lookups.records import ActivationOf, TracedLookup, table_name
from export.tensorflow_models.frameworks.hook_points import LAYER_LOOKUP
from export.tensorflow_models.frameworks.tpu_layers import make_layers_on_cpu

MakeTable = Callable[[TableFacts], Any]
"""Returns the variable of a table."""
Original = Callable[[Any, Any, Mapping[Any, Any], Any], Any]


def table_facts(config: Any) -> TableFacts:
    """Returns the facts of a TableConfig.

    Raises:
      NotConvertible: The config has no name, by which the checkpoint holds the table.
    """
    if not config.name:
        raise NotConvertible(
            f"a table of {config.vocabulary_size} x {config.dim} has no name; give its TableConfig "
            "a name"
        )
    name = table_name(config.name, "table")
    return TableFacts(name, config.name, int(config.vocabulary_size), int(config.dim))


def intercept_layers(
    hooks: Hooks, make_table: MakeTable, activation_of: ActivationOf, *, tracked: bool
) -> None:
    """Replaces the creation of tables by `make_table` and lookups by `activation_of`.

    Args:
      hooks: Receives the replacements.
      make_table: Returns the variable of a table; no slot variables are made.
      activation_of: Returns the activation of a lookup.
      tracked: Whether the tables are part of the model's object graph; TensorFlow's restore ignores
        others.
    """

    def create(configs: Any) -> Any:
        tables = {}
        for config in configs:
            variable = make_table(table_facts(config))
            remember_line(variable)
            # TensorFlow's layers read `parameters`, beside which the slot variables would be.
            tables[config.name] = {"parameters": variable}
        if not tracked:
            return untracked(tables)
        return tables

    def look_up(_original: Callable[..., Any], **arguments: Any) -> Any:
        activations = [activation_of(lookup) for lookup in describe_lookups(**arguments)]
        return tf.nest.pack_sequence_as(arguments["feature_config"], activations)

    make_layers_on_cpu(hooks, create)
    hooks.replace(LAYER_LOOKUP, look_up)


def original_lookup() -> Original:
    """Returns a copy of TensorFlow's own lookup that keeps working while the original is replaced;
    must be called before the replacement.
    """
    _, _, lookup = LAYER_LOOKUP.find() or (None, None, None)
    original: Original = copy_of(lookup)
    return original


def describe_lookups(
    inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any
) -> list[TracedLookup]:
    """Returns the lookups of a call of an embedding layer, one for each feature.

    Raises:
      NotConvertible: The combination is one that TensorFlow rejects on a CPU, or its shape does not
        give the batch.
    """
    nest = tf.nest
    nest.assert_same_structure(inputs, feature_config)
    ids = nest.flatten(inputs)
    weights_of_features = [None] * len(ids)
    if weights is not None:
        weights_of_features = nest.flatten(weights)
    configs = with_paths(feature_config)

    lookups = []
    for feature_ids, feature_weights, (path, config) in zip(
        ids, weights_of_features, configs, strict=True
    ):
        variable = tables[config.table]
        lookups.append(_describe(path, feature_ids, feature_weights, variable, config))
    return lookups


def _describe(path: str, ids: Any, weights: Any, variable: Any, config: Any) -> TracedLookup:
    """Returns the lookup of one feature.

    Args:
      path: The path of the feature in the layer's configuration.
      ids: A dense, sparse or ragged tensor.
      weights: A tensor like that of the ids, or None.
      variable: The variable of the table.
      config: The FeatureConfig.

    Raises:
      NotConvertible: See `describe_lookups`.
    """
    encoding: Encoding
    if isinstance(ids, tf.SparseTensor):
        encoding = "sparse"
        length = config.max_sequence_length or None
        # As in TensorFlow, output_shape overrides max_sequence_length.
        if config.output_shape:
            length = None
    elif isinstance(ids, tf.RaggedTensor):
        encoding = "ragged"
        length = config.max_sequence_length or None
        if config.output_shape:
            raise NotConvertible(
                f"feature {path!r} is ragged and has output_shape={config.output_shape}, which "
                "fixes the batch; leave output_shape out, or set max_sequence_length"
            )
    else:
        ids = tf.convert_to_tensor(ids)
        encoding = "dense"
        length = _dense_length(path, ids, weights, config)
    if encoding != "dense" and ids.shape.rank not in (2, None):
        raise NotConvertible(
            f"feature {path!r} was given a {encoding} tensor of rank {ids.shape.rank}; rank 2 was "
            "expected"
        )
    if weights is not None:
        _check_weights(path, ids, weights, length, config)
    kind: Kind = "bag"
    if encoding == "dense" and length in (None, 1):
        kind = "single"
    elif length is not None:
        kind = "sequence"
    # Every table has a combiner, which single ids and sequences do not use.
    combiner = config.table.combiner if kind == "bag" else None
    return TracedLookup(
        path,
        table_facts(config.table),
        variable,
        (ids,),
        weights,
        kind=kind,
        encoding=encoding,
        combiner=combiner,
        length=length,
        config=config,
    )


def _dense_length(path: str, ids: Any, weights: Any, config: Any) -> int | None:
    """Returns how many ids each example has in a dense tensor; None: one, without an axis.

    Raises:
      NotConvertible: TensorFlow rejects the tensor, or the number of ids is not fixed.
    """
    if config.max_sequence_length or weights is not None:
        kind = "a weighted feature"
        if config.max_sequence_length:
            kind = "a sequence feature"
        raise NotConvertible(
            f"feature {path!r} is {kind}, and was given a dense tensor; write "
            'kind = "ragged" or "sparse" for its input in the recipe, whichever the model expects'
        )
    if ids.shape.rank == 1:
        return None
    length: int | None = None
    if ids.shape.rank == 2:
        length = ids.shape.as_list()[1]
    if length is None:
        raise NotConvertible(
            f"feature {path!r} was given a dense tensor of shape {ids.shape}; [batch] or [batch, "
            "length] was expected"
        )
    return length


def _check_weights(path: str, ids: Any, weights: Any, length: int | None, config: Any) -> None:
    """Checks that TensorFlow, and a bundle, take the weights of a feature.

    Raises:
      NotConvertible: TensorFlow or a bundle does not take them.
    """
    if type(weights) is not type(ids):
        raise NotConvertible(
            f"feature {path!r}: weights are a {type(weights).__name__}, ids a {type(ids).__name__}"
        )
    if length is not None:
        raise NotConvertible(f"feature {path!r} is a sequence feature, which takes no weights")
    if isinstance(ids, tf.SparseTensor) and not config.validate_weights_and_indices:
        raise NotConvertible(
            f"feature {path!r} is weighted with validate_weights_and_indices=False, which no "
            "bundle supports"
        )
