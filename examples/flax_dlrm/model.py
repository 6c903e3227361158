"""DLRM for click-through rates in Flax: bottom MLP, dot interaction, top MLP.

Source: Naumov et al., arXiv:1906.00091.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

NUMBERS = 13


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      rows: The number of rows of each category's table.
      dim: The width of the tables' rows.
      bottom: The widths of the hidden layers of the bottom network; a layer of `dim` follows.
      top: The widths of the hidden layers of the top network.
    """

    rows: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the categories: c1, c2, ..."""
        return tuple(f"c{number}" for number in range(1, len(self.rows) + 1))


class DLRM(nn.Module):  # type: ignore[misc]
    """Scores impressions of 13 numbers and as many categories as there are tables."""

    sizes: Sizes

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the probability of a click: [b].

        Args:
          inputs: The inputs by name: numbers, [b, 13], counts as in the log; c1, c2, ..., rows, [b]
            int32.
        """
        sizes = self.sizes
        counts = jnp.log1p(jnp.maximum(inputs["numbers"], 0.0))
        numbers = _mlp(counts, (*sizes.bottom, sizes.dim))
        vectors = [numbers]
        for name, rows in zip(sizes.categories, sizes.rows, strict=True):
            vectors.append(nn.Embed(rows, sizes.dim, name=f"table_{name}")(inputs[name]))
        hidden = _mlp(jnp.concatenate([numbers, _dot_products(vectors)], axis=1), sizes.top)
        return nn.sigmoid(nn.Dense(1)(hidden))[:, 0]


def _mlp(x: Any, widths: Sequence[int]) -> Any:
    for width in widths:
        x = nn.relu(nn.Dense(width)(x))
    return x


def _dot_products(vectors: Sequence[Any]) -> Any:
    """Returns the dot product of every two of n vectors: [b, n (n - 1) / 2]."""
    stacked = jnp.stack(vectors, axis=1)
    products = jnp.einsum("bnd,bmd->bnm", stacked, stacked)
    rows, columns = np.tril_indices(len(vectors), -1)
    return products[:, rows, columns]


def example(sizes: Sizes) -> dict[str, Any]:
    """Returns inputs of the right shapes."""
    numbers = jnp.zeros((2, NUMBERS), jnp.float32)
    return {"numbers": numbers} | dict.fromkeys(sizes.categories, jnp.zeros(2, jnp.int32))


def build_model() -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
    """Returns the shapes of the parameters, and the function that the recipe's tower calls."""
    values = json.loads(Path(__file__).with_name("sizes.json").read_text())
    sizes = Sizes(**{name: _tuple(value) for name, value in values.items()})
    model = DLRM(sizes)
    # Only shapes are computed: the parameters come from the checkpoint.
    shapes = jax.eval_shape(model.init, jax.random.key(0), example(sizes))

    def click(parameters: Any, inputs: Any) -> Any:
        return model.apply(parameters, inputs)

    return shapes, {"click": click}


def _tuple(value: Any) -> Any:
    """Returns a list of a JSON file as a tuple, which a module of Flax can hold."""
    if isinstance(value, list):
        return tuple(value)
    return value
