"""Small models of Keras, one for each kind of configuration that a file of Keras holds.

`write_archived_models.py` writes files of these models with releases of Keras that rowcast does not
install, so nothing is imported here but what a model needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Build = Callable[[Any], Any]
"""keras or tf_keras -> a model"""

WORDS = ["red", "green", "blue"]


def vector(kit: Any, size: int = 4, name: str = "number") -> Any:
    return kit.Input((size,), name=name)


def steps(kit: Any, name: str = "steps") -> Any:
    return kit.Input((3, 4), name=name)


def chain(make_input: Callable[[Any], Any], *layers: Callable[[Any], Any]) -> Build:
    """Returns what builds a model of one input and the layers that follow each other."""

    def build(kit: Any) -> Any:
        values = first = make_input(kit)
        for layer in layers:
            values = layer(kit.layers)(values)
        return kit.Model(first, values)

    return build


def ids(kit: Any) -> Any:
    return kit.Input((3,), dtype="int32", name="ids")


def word(kit: Any) -> Any:
    return kit.Input((1,), dtype="string", name="word")


def dense(kit: Any) -> Any:
    layers = kit.layers
    first = vector(kit)
    values = layers.Dense(4, "relu", kernel_regularizer="l2", kernel_constraint="max_norm")(first)
    values = layers.Dropout(0.1)(values)
    values = layers.BatchNormalization()(values)
    values = layers.Activation("gelu")(values)
    values = layers.LeakyReLU()(values)
    values = layers.PReLU()(values)
    values = layers.ReLU(6.0)(values)
    values = layers.ELU()(values)
    return kit.Model(first, layers.Softmax()(values))


def sequential(kit: Any) -> Any:
    return kit.Sequential([kit.Input((4,)), kit.layers.Dense(3, "tanh"), kit.layers.Dense(2)])


def sequential_without_input(kit: Any) -> Any:
    model = kit.Sequential([kit.layers.Dense(3, kit.activations.relu), kit.layers.Dense(2)])
    model.build((None, 4))
    return model


def shared(kit: Any) -> Any:
    table = kit.layers.Embedding(5, 4, mask_zero=True, name="table")
    first, second = (kit.Input((1,), dtype="int32", name=name) for name in ("first", "second"))
    out = kit.layers.Dense(4, name="shared")
    vectors = [out(kit.layers.Flatten()(table(value))) for value in (first, second)]
    return kit.Model([first, second], kit.layers.Dot(1, normalize=True)(vectors))


def several(kit: Any) -> Any:
    first, second = vector(kit, 4, "first"), vector(kit, 3, "second")
    joined = kit.layers.Concatenate()([first, second])
    parts = kit.layers.Multiply()([kit.layers.Dense(4)(joined), first])
    outputs = {"click": kit.layers.Dense(1)(parts), "buy": kit.layers.Dense(1)(joined)}
    return kit.Model({"first": first, "second": second}, outputs)


def listed(kit: Any) -> Any:
    first, second = vector(kit, 4, "first"), vector(kit, 3, "second")
    outputs = [kit.layers.Dense(1, name="a")(first), kit.layers.Dense(1, name="b")(second)]
    return kit.Model([first, second], outputs)


def one_in_a_list(kit: Any) -> Any:
    first = vector(kit)
    return kit.Model([first], [kit.layers.Dense(2)(first)])


def nested(kit: Any) -> Any:
    inner_first, inner_second = vector(kit, 4, "inner"), vector(kit, 3, "other")
    inner_values = kit.layers.Concatenate()([inner_first, inner_second])
    inner = kit.Model([inner_first, inner_second], kit.layers.Dense(4)(inner_values), name="inside")
    stack = kit.Sequential([kit.Input((4,)), kit.layers.Dense(4, "relu")], name="stack")
    first, second = vector(kit, 4, "first"), vector(kit, 3, "second")
    return kit.Model([first, second], stack(inner([stack(first), second])))


def nested_of_dict(kit: Any) -> Any:
    inner_first, inner_second = vector(kit, 4, "left"), vector(kit, 3, "right")
    inner_values = kit.layers.Concatenate()([inner_first, inner_second])
    inner = kit.Model(
        {"left": inner_first, "right": inner_second}, {"both": kit.layers.Dense(4)(inner_values)}
    )
    first, second = vector(kit, 4, "first"), vector(kit, 3, "second")
    return kit.Model([first, second], inner({"left": first, "right": second})["both"])


def normalization(kit: Any) -> Any:
    import numpy as np

    adapted = kit.layers.Normalization()
    adapted.adapt(np.arange(8.0).reshape(2, 4))
    first = vector(kit)
    return kit.Model(
        first, adapted(kit.layers.Normalization(mean=[1.5] * 4, variance=[2.0] * 4)(first))
    )


def discretization(kit: Any) -> Any:
    import numpy as np

    adapted = kit.layers.Discretization(num_bins=3, output_mode="one_hot")
    adapted.adapt(np.arange(8.0))
    first = vector(kit, 1)
    given = kit.layers.Discretization(bin_boundaries=[1.0, 2.0])(first)
    flat = kit.layers.Flatten()(kit.layers.Embedding(3, 4)(given))
    return kit.Model(first, kit.layers.Concatenate()([flat, adapted(first)]))


def lookups(kit: Any) -> Any:
    import numpy as np

    layers = kit.layers
    adapted = layers.StringLookup()
    adapted.adapt(np.array([*WORDS, *WORDS]))
    first = word(kit)
    number = kit.Input((1,), dtype="int64", name="key")
    found = [
        layers.StringLookup(vocabulary=WORDS, num_oov_indices=2)(first),
        adapted(first),
        layers.IntegerLookup(vocabulary=[3, 5, 8])(number),
        layers.Hashing(7)(first),
        layers.Hashing(7, salt=3)(first),
    ]
    tables = [layers.Embedding(9, 4)(found_ids) for found_ids in found]
    hot = layers.StringLookup(vocabulary=WORDS, output_mode="multi_hot")(first)
    encoded = layers.CategoryEncoding(8, output_mode="multi_hot")(found[0])
    return kit.Model([first, number], [layers.Add()(tables), hot, encoded])


def text(kit: Any) -> Any:
    first = kit.Input((), dtype="string", name="text")
    given = kit.layers.TextVectorization(vocabulary=WORDS, output_sequence_length=3)
    table = kit.layers.Embedding(9, 4)(given(first))
    return kit.Model(first, kit.layers.GlobalAveragePooling1D()(table))


def attention(kit: Any) -> Any:
    layers = kit.layers
    first = steps(kit)
    values = [
        layers.Attention(use_scale=True)([first, first]),
        layers.AdditiveAttention()([first, first]),
        layers.MultiHeadAttention(2, 4)(first, first),
        layers.MultiHeadAttention(2, 4, dropout=0.1)(first, first, use_causal_mask=True),
    ]
    return kit.Model(first, layers.LayerNormalization()(layers.Add()(values)))


def attention_with_mask(kit: Any) -> Any:
    layers = kit.layers
    first = ids(kit)
    rows = layers.Embedding(9, 4, mask_zero=True)(first)
    values = layers.MultiHeadAttention(2, 4)(rows, rows)
    values = layers.Attention()([values, rows, rows])
    return kit.Model(first, layers.GlobalAveragePooling1D()(values))


def grouped_attention(kit: Any) -> Any:
    first = steps(kit)
    return kit.Model(first, kit.layers.GroupQueryAttention(4, 4, 2)(first, first))


def recurrent(kit: Any) -> Any:
    layers = kit.layers
    first = steps(kit)
    values = layers.Masking()(first)
    values = layers.LSTM(4, return_sequences=True, dropout=0.1)(values)
    values = layers.GRU(4, return_sequences=True)(values)
    values = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(values)
    values = layers.Bidirectional(
        layers.GRU(3, return_sequences=True),
        backward_layer=layers.GRU(3, return_sequences=True, go_backwards=True),
        merge_mode="sum",
    )(values)
    values = layers.TimeDistributed(layers.Dense(4, "relu"))(values)
    values = layers.SimpleRNN(4, return_sequences=True)(values)
    values = layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])(values)
    return kit.Model(first, values)


def states(kit: Any) -> Any:
    layers = kit.layers
    first = steps(kit)
    _, hidden, cell = layers.LSTM(4, return_state=True)(first)
    second = layers.LSTM(4)(first, initial_state=[hidden, cell])
    return kit.Model(first, [second, hidden])


def time_distributed_model(kit: Any) -> Any:
    inner_first = vector(kit, 4, "inner")
    inner = kit.Model(inner_first, kit.layers.Dense(3, "relu")(inner_first))
    first = steps(kit)
    return kit.Model(first, kit.layers.TimeDistributed(inner)(first))


def convolutions(kit: Any) -> Any:
    layers = kit.layers
    first = kit.Input((8, 4), name="steps")
    values = layers.Conv1D(4, 3, padding="causal", activation="relu")(first)
    values = layers.SeparableConv1D(4, 3)(values)
    values = layers.MaxPooling1D()(values)
    values = layers.ZeroPadding1D(1)(values)
    values = layers.Cropping1D(1)(values)
    values = layers.UpSampling1D()(values)
    values = layers.SpatialDropout1D(0.1)(values)
    values = layers.AveragePooling1D(2)(values)
    values = layers.GlobalMaxPooling1D()(values)
    return kit.Model(first, values)


def images(kit: Any) -> Any:
    layers = kit.layers
    first = kit.Input((8, 8, 3), name="image")
    values = layers.Rescaling(1 / 255)(first)
    values = layers.Conv2D(4, 3, 2, "same", activation="swish")(values)
    values = layers.DepthwiseConv2D(3)(values)
    values = layers.GlobalAveragePooling2D()(values)
    return kit.Model(first, values)


def norms(kit: Any) -> Any:
    layers = kit.layers
    first = steps(kit)
    values = layers.LayerNormalization(epsilon=1e-6)(first)
    values = layers.LayerNormalization(axis=[1, 2], center=False)(values)
    values = layers.UnitNormalization()(values)
    values = layers.UnitNormalization(axis=[1, 2])(values)
    values = layers.GroupNormalization(2)(values)
    values = layers.BatchNormalization(axis=1)(values)
    return kit.Model(first, values)


def shapes(kit: Any) -> Any:
    layers = kit.layers
    first = steps(kit)
    values = layers.Permute((2, 1))(first)
    values = layers.Reshape((6, -1))(values)
    values = layers.EinsumDense("abc,cd->abd", output_shape=(None, 4), bias_axes="d")(values)
    values = layers.Flatten()(values)
    values = layers.RepeatVector(2)(values)
    values = layers.GaussianNoise(0.1)(values)
    values = layers.ActivityRegularization(0.1)(values)
    return kit.Model(first, values)


def merges(kit: Any) -> Any:
    layers = kit.layers
    first, second = vector(kit, 4, "first"), vector(kit, 4, "second")
    pair = [first, second]
    kinds = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
    values = [getattr(layers, kind)()(pair) for kind in kinds]
    return kit.Model(pair, layers.Concatenate(axis=1)([*values, layers.Dot(axes=(1, 1))(pair)]))


def mixed_precision(kit: Any) -> Any:
    first = vector(kit)
    values = kit.layers.Dense(4, "relu", dtype="mixed_bfloat16")(first)
    values = kit.layers.LayerNormalization(dtype="mixed_bfloat16")(values)
    return kit.Model(first, kit.layers.Dense(1, dtype="float32")(values))


def global_precision(kit: Any) -> Any:
    kit.mixed_precision.set_global_policy("mixed_float16")
    try:
        first = ids(kit)
        rows = kit.layers.Embedding(9, 4)(first)
        values = kit.layers.Dense(4)(kit.layers.GlobalAveragePooling1D()(rows))
        values = kit.layers.Bidirectional(kit.layers.GRU(2))(kit.layers.RepeatVector(2)(values))
        return kit.Model(first, kit.layers.Activation("sigmoid", dtype="float32")(values))
    finally:
        kit.mixed_precision.set_global_policy("float32")


def wrapped(kit: Any) -> Any:
    first = vector(kit)
    return kit.Model(first, kit.layers.SpectralNormalization(kit.layers.Dense(4))(first))


def compiled(kit: Any) -> Any:
    model = dense(kit)
    model.compile(
        kit.optimizers.Adam(1e-3, use_ema=True),
        kit.losses.BinaryCrossentropy(from_logits=True),
        metrics=[kit.metrics.AUC()],
    )
    model.optimizer.build(model.trainable_variables)
    return model


def operations(kit: Any) -> Any:
    ops = kit.ops
    first, second = vector(kit, 4, "first"), vector(kit, 4, "second")
    values = ops.concatenate([first * 2.0 + 1.0, second / first], axis=-1)
    values = ops.relu(values) - ops.sigmoid(values[:, :1])
    values = ops.where(values > 0, values, ops.zeros_like(values))
    values = ops.mean(values, axis=1, keepdims=True) @ ops.ones((1, 4))
    values = ops.reshape(values, (-1, 2, 2))
    values = ops.squeeze(ops.expand_dims(ops.transpose(values, (0, 2, 1)), 1), 1)
    values = ops.sum(values * ops.cast(values > 0, "float32"), axis=(1, 2))
    return kit.Model([first, second], ops.stack([values, -values], axis=1))


def more_operations(kit: Any) -> Any:
    ops = kit.ops
    first = vector(kit)
    number = kit.Input((3,), dtype="int32", name="ids")
    top, where = ops.top_k(first, 2)
    values = [
        ops.one_hot(number, 4),
        ops.softmax(ops.tile(ops.expand_dims(first, 1), (1, 3, 1))),
        ops.repeat(ops.expand_dims(first, 1), 3, axis=1),
    ]
    total = ops.sum(ops.add(values[0], ops.multiply(values[1], values[2])), axis=1)
    total = ops.clip(ops.log(ops.abs(total) + 1e-6), -1.0, 1.0) ** 2
    logs = ops.logsumexp(total, axis=-1, keepdims=True) + ops.max(first, axis=-1, keepdims=True)
    normal = ops.rsqrt(ops.maximum(ops.var(first, axis=-1, keepdims=True), 1e-9))
    einsum = ops.einsum("bi,bj->bij", first, total)
    split = ops.split(first, 2, axis=1)
    return kit.Model([first, number], [top, where, logs, normal, einsum, split[1], ops.silu(total)])


def tensorflow_functions(kit: Any) -> Any:
    import tensorflow as tf

    first = vector(kit)
    values = tf.concat([first * 2.0 + 1.0, tf.nn.relu(first)], axis=-1)
    return kit.Model(first, tf.reduce_sum(values[:, 1:], axis=1, keepdims=True))


def register(kit: Any) -> Any:
    """Returns the classes of users, in each release made of its own Keras."""
    if kit.__name__ in _CLASSES:
        return _CLASSES[kit.__name__]

    class Scaled(kit.layers.Layer):  # type: ignore[misc]
        """Has arguments with defaults, and hands the others on."""

        def __init__(self, factor: float = 2.0, activation: Any = None, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.factor = factor
            self.activation = kit.activations.get(activation)
            self.inner = kit.layers.Dense(4, name="inner")

        def build(self, shape: Any) -> None:
            self.inner.build(shape)
            self.built = True

        def call(self, values: Any) -> Any:
            return self.activation(self.inner(values) * self.factor)

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], 4)

        def get_config(self) -> dict[str, Any]:
            activation = kit.activations.serialize(self.activation)
            return {**super().get_config(), "factor": self.factor, "activation": activation}

    @kit.utils.register_keras_serializable("shop")
    class Holding(kit.layers.Layer):  # type: ignore[misc]
        """Takes another layer."""

        def __init__(self, layer: Any, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.layer = layer

        def build(self, shape: Any) -> None:
            self.layer.build(shape)
            self.built = True

        def call(self, values: Any) -> Any:
            return values + self.layer(values)

        def get_config(self) -> dict[str, Any]:
            layer = kit.saving.serialize_keras_object(self.layer)
            return {**super().get_config(), "layer": layer}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            config["layer"] = kit.saving.deserialize_keras_object(config["layer"])
            return cls(**config)

    class Tower(kit.Model):  # type: ignore[misc]
        """A model of a class that states no arguments."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.table = kit.layers.Embedding(9, 4)
            self.towers = [kit.layers.Dense(4, "relu"), kit.layers.Dense(2)]
            self.norm = kit.layers.LayerNormalization()

        def call(self, values: Any) -> Any:
            values = self.table(values)
            for layer in self.towers:
                values = layer(values)
            return self.norm(values)

    class Sized(Tower):
        """A model of a class that states its arguments."""

        def __init__(self, size: int = 3, activation: Any = "relu", **arguments: Any) -> None:
            super().__init__(**arguments)
            self.size = size
            self.last = kit.layers.Dense(size, activation)

        def call(self, values: Any) -> Any:
            return self.last(super().call(values))

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "size": self.size, "activation": "relu"}

    _CLASSES[kit.__name__] = {kind.__name__: kind for kind in (Scaled, Holding, Tower, Sized)}
    return _CLASSES[kit.__name__]


_CLASSES: dict[str, dict[str, Any]] = {}


def custom_layers(kit: Any) -> Any:
    classes = register(kit)
    first = vector(kit)
    values = classes["Scaled"](activation="relu")(first)
    values = classes["Holding"](kit.layers.Dense(4, "tanh"))(values)
    values = classes["Holding"](kit.layers.LayerNormalization())(values)
    return kit.Model(
        first,
        kit.layers.TimeDistributed(classes["Scaled"](3.0))(kit.layers.RepeatVector(2)(values)),
    )


def subclassed(kit: Any) -> Any:
    import numpy as np

    model = register(kit)["Tower"]()
    model(np.zeros((1, 3), np.int32))
    return model


def subclassed_with_arguments(kit: Any) -> Any:
    import numpy as np

    model = register(kit)["Sized"](size=2)
    model(np.zeros((1, 3), np.int32))
    return model


def own_function(values: Any) -> Any:
    return values * 2


def functions(kit: Any) -> Any:
    first = vector(kit)
    values = kit.layers.Dense(4, own_function)(first)
    return kit.Model(first, kit.layers.Lambda(lambda values: values * 2)(values))


KINDS: dict[str, Build] = {
    "dense": dense,
    "embedding": chain(ids, lambda layers: layers.Embedding(9, 4, mask_zero=True)),
    "sequential": sequential,
    "sequential-without-input": sequential_without_input,
    "shared": shared,
    "several": several,
    "listed": listed,
    "one-in-a-list": one_in_a_list,
    "nested": nested,
    "nested-of-dict": nested_of_dict,
    "normalization": normalization,
    "discretization": discretization,
    "lookups": lookups,
    "text": text,
    "attention": attention,
    "attention-with-mask": attention_with_mask,
    "grouped-attention": grouped_attention,
    "recurrent": recurrent,
    "states": states,
    "time-distributed-model": time_distributed_model,
    "convolutions": convolutions,
    "images": images,
    "norms": norms,
    "shapes": shapes,
    "merges": merges,
    "mixed-precision": mixed_precision,
    "global-precision": global_precision,
    "wrapped": wrapped,
    "compiled": compiled,
    "operations": operations,
    "more-operations": more_operations,
    "tensorflow-functions": tensorflow_functions,
    "custom-layers": custom_layers,
    "subclassed": subclassed,
    "subclassed-with-arguments": subclassed_with_arguments,
    "functions": functions,
}
