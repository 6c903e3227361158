"""Every function and method of a library that is replaced; tests check each against the installed
release.
"""

from __future__ import annotations

from export.graphs.hooks import HookPoint

_OPS = "tensorflow.python.ops"
_RAGGED = f"{_OPS}.ragged"
_TPU = "tensorflow.python.tpu"
_COLUMNS = "tensorflow.python.feature_column.feature_column_v2"
_COLUMNS_1 = "tensorflow.python.feature_column.feature_column"

SQUEEZE = HookPoint(f"{_OPS}.array_ops", "squeeze", "input axis name squeeze_dims")
DISABLE_EAGER = HookPoint("tensorflow.python.framework.ops", "disable_eager_execution")
EAGER_OUTSIDE = HookPoint("tensorflow.python.framework.ops", "executing_eagerly_outside_functions")
PLACEHOLDER = HookPoint(f"{_OPS}.array_ops", "placeholder", "dtype shape name")
PLACEHOLDER_WITH_DEFAULT = HookPoint(
    f"{_OPS}.array_ops", "placeholder_with_default", "input shape name"
)
AS_DEFAULT = HookPoint("tensorflow.python.framework.ops", "Graph.as_default")
RESET_GRAPH = HookPoint("tensorflow.python.framework.ops", "reset_default_graph")
SESSION_RUN = HookPoint("tensorflow.python.client.session", "BaseSession.run", "fetches")
INITIALIZE = HookPoint(f"{_OPS}.variables", "variables_initializer", "var_list")
SAVER = (
    HookPoint("tensorflow.python.training.saver", "Saver.build"),
    HookPoint("tensorflow.python.training.saver", "Saver.restore", "sess save_path"),
)
GET_VARIABLE = HookPoint(f"{_OPS}.variable_scope", "_VariableStore.get_variable", "partitioner")

LOOKUP = HookPoint(f"{_OPS}.embedding_ops", "embedding_lookup", "params ids partition_strategy")
_SPARSE_PARAMETERS = "params sp_ids sp_weights combiner max_norm"
_SAFE_PARAMETERS = "embedding_weights sparse_ids sparse_weights combiner default_id max_norm"
SPARSE_LOOKUPS = (
    HookPoint(
        f"{_OPS}.embedding_ops",
        "embedding_lookup_sparse",
        f"{_SPARSE_PARAMETERS} partition_strategy",
    ),
    HookPoint(
        f"{_RAGGED}.ragged_embedding_ops",
        "embedding_lookup_sparse",
        f"{_SPARSE_PARAMETERS} partition_strategy",
    ),
)
SAFE_LOOKUPS = (
    HookPoint(
        f"{_OPS}.embedding_ops",
        "safe_embedding_lookup_sparse",
        f"{_SAFE_PARAMETERS} partition_strategy",
    ),
    HookPoint(
        f"{_RAGGED}.ragged_embedding_ops",
        "safe_embedding_lookup_sparse",
        f"{_SAFE_PARAMETERS} partition_strategy",
    ),
)
RAGGED_LOOKUP = HookPoint(
    f"{_RAGGED}.ragged_embedding_ops", "embedding_lookup", "params ids max_norm"
)
RAGGED_GATHER = HookPoint(
    f"{_RAGGED}.ragged_gather_ops", "gather", "params indices axis batch_dims"
)
RAGGED_SUM = HookPoint(f"{_RAGGED}.ragged_math_ops", "reduce_sum", "input_tensor axis keepdims")
RAGGED_MEAN = HookPoint(f"{_RAGGED}.ragged_math_ops", "reduce_mean", "input_tensor axis keepdims")
TO_TENSOR = HookPoint(
    f"{_RAGGED}.ragged_tensor", "RaggedTensor.to_tensor", "default_value name shape"
)

LAYER_LOOKUP = HookPoint(
    f"{_TPU}.tpu_embedding_for_serving",
    "cpu_embedding_lookup",
    "inputs weights tables feature_config",
)
LAYER_TABLES = (
    HookPoint(
        f"{_TPU}.tpu_embedding_for_serving", "TPUEmbeddingForServing._create_variables_and_slots"
    ),
    HookPoint(f"{_TPU}.tpu_embedding_v2", "TPUEmbedding._create_variables_and_slots"),
)
TPU_CLASSES = {
    f"{_TPU}.tpu_embedding_v1": "TPUEmbeddingV0",
    f"{_TPU}.tpu_embedding_v3": "TPUEmbeddingV2",
}
"""Layers that TensorFlow creates only on TPUs."""
TPU_METHODS = {
    name: tuple(HookPoint(module, f"{layer}.{name}") for module, layer in TPU_CLASSES.items())
    for name in (
        "__init__",
        "build",
        "_maybe_build",
        "embedding_tables",
        "embedding_lookup",
        "__call__",
    )
}

_COLUMN_PARAMETERS = "transformation_cache state_manager"
_COLUMN_1_PARAMETERS = "inputs weight_collections"
"""Parameters of the columns' methods: those of version 2, and those that version 1 calls."""
COLUMN_ROWS = (
    HookPoint(_COLUMNS, "EmbeddingColumn.get_dense_tensor", _COLUMN_PARAMETERS),
    HookPoint(_COLUMNS, "EmbeddingColumn._get_dense_tensor", _COLUMN_1_PARAMETERS),
    HookPoint(_COLUMNS, "SharedEmbeddingColumn._get_dense_tensor_internal", _COLUMN_PARAMETERS),
    HookPoint(_COLUMNS_1, "_EmbeddingColumn._get_dense_tensor_internal", _COLUMN_1_PARAMETERS),
    HookPoint(
        _COLUMNS_1, "_SharedEmbeddingColumn._get_dense_tensor_internal", _COLUMN_1_PARAMETERS
    ),
)
COLUMN_SEQUENCES = (
    HookPoint(_COLUMNS, "EmbeddingColumn.get_sequence_dense_tensor", _COLUMN_PARAMETERS),
    HookPoint(_COLUMNS, "EmbeddingColumn._get_sequence_dense_tensor", _COLUMN_1_PARAMETERS),
    HookPoint(_COLUMNS, "SharedEmbeddingColumn.get_sequence_dense_tensor", _COLUMN_PARAMETERS),
    HookPoint(_COLUMNS_1, "_EmbeddingColumn._get_sequence_dense_tensor", _COLUMN_1_PARAMETERS),
    HookPoint(
        _COLUMNS_1, "_SharedEmbeddingColumn._get_sequence_dense_tensor", _COLUMN_1_PARAMETERS
    ),
)
INDICATORS = (
    HookPoint(_COLUMNS, "IndicatorColumn.transform_feature", _COLUMN_PARAMETERS),
    HookPoint(_COLUMNS, "IndicatorColumn._transform_feature", "inputs"),
)
INDICATOR_SEQUENCES = (
    HookPoint(_COLUMNS, "IndicatorColumn.get_sequence_dense_tensor", _COLUMN_PARAMETERS),
    HookPoint(_COLUMNS, "IndicatorColumn._get_sequence_dense_tensor", _COLUMN_1_PARAMETERS),
)
LINEAR_COLUMN = HookPoint(
    _COLUMNS_1,
    "_create_categorical_column_weighted_sum",
    "column builder units sparse_combiner weight_var",
)

NORMALIZATIONS = (
    HookPoint("tf_keras.src.layers.preprocessing.normalization", "Normalization.call", "inputs"),
    HookPoint("keras.src.layers.preprocessing.normalization", "Normalization.call", "inputs"),
)
AVERAGES = (
    HookPoint(
        "tf_keras.src.layers.pooling.global_average_pooling1d",
        "GlobalAveragePooling1D.call",
        "inputs mask",
    ),
    HookPoint(
        "keras.src.layers.pooling.global_average_pooling1d",
        "GlobalAveragePooling1D.call",
        "inputs mask",
    ),
)
_RNN_PARAMETERS = (
    "step_function inputs initial_states go_backwards mask unroll input_length time_major "
    "zero_output_for_mask return_all_outputs"
)
RECURRENCES = (
    HookPoint("tf_keras.src.backend", "rnn", _RNN_PARAMETERS),
    HookPoint("keras.src.backend.tensorflow.rnn", "rnn", _RNN_PARAMETERS),
)
_ENCODING_PARAMETERS = "inputs output_mode depth dtype sparse count_weights"
TF_KERAS_ENCODING = HookPoint(
    "tf_keras.src.layers.preprocessing.preprocessing_utils",
    "encode_categorical_inputs",
    _ENCODING_PARAMETERS,
)
KERAS_3_ENCODING = HookPoint(
    "keras.src.utils.numerical_utils", "encode_categorical_inputs", _ENCODING_PARAMETERS
)
KERAS_3_EMBEDDING = HookPoint("keras.src.layers.core.embedding", "Embedding.call", "inputs")
EMBED_REDUCE = HookPoint(
    "keras_rs.src.layers.embedding.embed_reduce", "EmbedReduce.call", "inputs weights"
)
KERAS_RS_RETRIEVAL = HookPoint(
    "keras_rs.src.layers.retrieval.brute_force_retrieval", "BruteForceRetrieval.call", "inputs"
)
_TFRS_SEARCH = "tensorflow_recommenders.layers.factorized_top_k"
TFRS_RETRIEVAL = (
    HookPoint(_TFRS_SEARCH, "BruteForce.call", "queries"),
    HookPoint(_TFRS_SEARCH, "ScaNN.call", "queries"),
    HookPoint(_TFRS_SEARCH, "Streaming.call", "queries"),
)
LAYER_CALLS = (
    HookPoint("keras.src.layers.layer", "Layer.__call__"),
    HookPoint("tf_keras.src.engine.base_layer", "Layer.__call__"),
)
TFRS_TASKS = tuple(
    HookPoint(f"tensorflow_recommenders.tasks.{module}", f"{name}.call")
    for module, name in (("retrieval", "Retrieval"), ("ranking", "Ranking"))
)
