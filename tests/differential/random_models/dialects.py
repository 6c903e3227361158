"""The names that libraries give to the same operations, as templates of code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Dialect:
    """How the code of models of a library is written.

    Attributes:
      name: The name of the library.
      module: The module of `minimum`, `maximum`, `where`, `abs`, `sqrt` and of their like.
      clip: The function that limits values to a range.
      cast: The function that casts a value to a dtype.
      pools: Functions from [n, length, dim] to [n, dim].
      flat: The function from [n, length, dim] to [n, length * dim].
      join: The function that joins several [n, width] to one.
      array: The function that makes an array of constants.
      layer: The code that makes a table that is a layer; "": there are no layers.
      layer_matrix: The variable of a table that is a layer.
      variable: The code that makes a table that is a variable; "": tables are parameters.
      matrix: The matrix of a table that is a variable.
      lookups: The lookups of rows of a variable.
      dense: The code that makes a dense layer; "": it is computed with parameters.
      activations: The functions after a dense layer.
      columns: Functions from [n, 3] to all columns but one.
      recurrences: Layers from [n, length, dim] to [n, 2].
      widest_integer: The widest dtype of ids.
      below_zero: The lookup's rule for rows below 0: "fails", or "last": they are counted from the
        end.
    """

    name: str
    module: str
    clip: str
    cast: str
    pools: Mapping[str, str]
    flat: str
    join: str
    array: str
    layer: str
    layer_matrix: str
    variable: str
    matrix: str
    lookups: tuple[str, ...]
    dense: str
    activations: tuple[str, ...]
    columns: tuple[str, ...]
    recurrences: tuple[str, ...] = ()
    widest_integer: str = "int64"
    below_zero: str = "last"

    def cast_to(self, dtype: str, value: str) -> str:
        """Returns the code of a cast."""
        return self.cast.format(value=value, dtype=dtype)

    def pool(self, name: str, value: str) -> str:
        """Returns the code of a reduction of axis 1."""
        return self.pools[name].format(value)

    def joined(self, *values: str) -> str:
        """Returns the code that joins vectors."""
        return self.join.format(", ".join(values))


TENSORFLOW = Dialect(
    name="tensorflow",
    module="tf",
    clip="tf.clip_by_value",
    cast="tf.cast({value}, tf.{dtype})",
    pools={name: f"tf.reduce_{name}({{}}, 1)" for name in ("sum", "mean", "max")},
    flat="tf.reshape({value}, [-1, {width}])",
    join="tf.concat([{}], 1)",
    array="tf.constant({values}, tf.{dtype})",
    layer='layers.Embedding({rows}, {dim}, "random_normal", dtype="{dtype}")',
    layer_matrix="self.{name}.embeddings",
    variable="tf.Variable(tf.cast(tf.random.normal([{rows}, {dim}]), tf.{dtype}))",
    matrix="self.{name}",
    lookups=("tf.gather({matrix}, {ids})", "tf.nn.embedding_lookup({matrix}, {ids})"),
    dense="layers.Dense({units})",
    activations=("tf.nn.relu({})", "tf.tanh({})", "tf.sigmoid({})", "{}"),
    columns=(
        "{ids}[:, 1:]",
        "tf.gather({ids}, [2, 0], axis=1)",
        "tf.reverse({ids}, [1])[:, :2]",
        "tf.stack(tf.unstack({ids}, axis=1)[1:], 1)",
        "tf.concat([{ids}[:, 2:], {ids}[:, :1]], 1)",
        "tf.transpose(tf.stack(tf.split({ids}, 3, axis=1)[1:], 0), [1, 2, 0])[:, 0]",
    ),
    recurrences=("GRU(2)", "LSTM(2, go_backwards=True)", "SimpleRNN(2)"),
    below_zero="fails",
)
KERAS = replace(
    TENSORFLOW,
    name="keras",
    module="ops",
    clip="ops.clip",
    cast='ops.cast({value}, "{dtype}")',
    pools={name: f"ops.{name}({{}}, axis=1)" for name in ("sum", "mean", "max")},
    flat="ops.reshape({value}, (-1, {width}))",
    join="ops.concatenate([{}], axis=1)",
    array='ops.array({values}, "{dtype}")',
    variable=(
        'self.add_weight(shape=({rows}, {dim}), initializer="random_normal", dtype="{dtype}", '
        'name="{name}")'
    ),
    lookups=("ops.take({matrix}, {ids}, axis=0)",),
    activations=("ops.relu({})", "ops.tanh({})", "ops.sigmoid({})", "{}"),
    columns=("{ids}[:, 1:]", "ops.take({ids}, [2, 0], axis=1)", "ops.flip({ids}, 1)[:, :2]"),
    below_zero="last",
)
FLAX = Dialect(
    name="flax",
    module="jnp",
    clip="jnp.clip",
    cast="({value}).astype(jnp.{dtype})",
    pools={name: f"jnp.{name}({{}}, axis=1)" for name in ("sum", "mean", "max")},
    flat="jnp.reshape({value}, (-1, {width}))",
    join="jnp.concatenate([{}], axis=1)",
    array="jnp.array({values}, jnp.{dtype})",
    layer="nn.Embed({rows}, {dim}, param_dtype=jnp.{dtype})",
    layer_matrix="self.{name}.embedding",
    variable='self.param("{name}", nn.initializers.ones, ({rows}, {dim}), jnp.{dtype})',
    matrix="self.{name}",
    lookups=("{matrix}[{ids}]", "jnp.take({matrix}, {ids}, axis=0)"),
    dense="nn.Dense({units})",
    activations=("jax.nn.relu({})", "jnp.tanh({})", "jax.nn.sigmoid({})", "{}"),
    columns=("{ids}[:, 1:]", "jnp.take({ids}, jnp.array([2, 0]), axis=1)", "{ids}[:, ::-1][:, :2]"),
    widest_integer="int32",
)
JAX = replace(FLAX, name="jax", layer="", variable="", matrix='parameters["{name}"]', dense="")
