"""HSTU for retrieval in Flax: what a viewer watches next, by the movies before.

Source: Zhai et al., Actions Speak Louder than Words, arXiv:2402.17152, section 3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      movies: The number of rows of the movies' table.
      dim: The width of the tables' rows.
      length: The length of a history; shorter ones are padded at their end.
      blocks: The number of attention blocks.
    """

    movies: int
    dim: int
    length: int
    blocks: int


class Block(nn.Module):  # type: ignore[misc]
    """Attention without softmax, with a bias by distance, and a gate for each value."""

    dim: int
    length: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any, visible: Any) -> Any:
        """Lets every position of [b, length, dim] look at those that are visible to it.

        Args:
          x: [b, length, dim], the positions.
          visible: [b, length, length], 1 where a position looks at another one.
        """
        projected = nn.silu(nn.Dense(4 * self.dim, use_bias=False)(nn.LayerNorm()(x)))
        gates, values, queries, keys = jnp.split(projected, 4, axis=-1)
        weights = nn.silu(jnp.einsum("bnd,bmd->bnm", queries, keys) + self._bias()) / self.length
        attended = jnp.einsum("bnm,bmd->bnd", weights * visible, values)
        return x + nn.Dense(self.dim)(nn.LayerNorm()(attended) * gates)

    def _bias(self) -> Any:
        """Returns [length, length]: one trained number for each distance of two positions."""
        count = 2 * self.length - 1
        by_distance = self.param("bias", nn.initializers.normal(0.02), (count,))
        positions = np.arange(self.length)
        distances = positions[:, np.newaxis] - positions[np.newaxis, :] + self.length - 1
        return by_distance[distances]


class Hstu(nn.Module):  # type: ignore[misc]
    """Vectors of histories and of movies; a larger dot product means a better match."""

    sizes: Sizes

    def setup(self) -> None:
        """Names the layers."""
        sizes = self.sizes
        self.movies = nn.Embed(sizes.movies, sizes.dim)
        self.blocks = [Block(sizes.dim, sizes.length) for _ in range(sizes.blocks)]

    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the vectors of histories: [b, dim].

        Args:
          inputs: history [b, length] int32, rows, the oldest first; length [b], the number of rows
            that were watched, at least one.
        """
        positions = np.arange(self.sizes.length)
        earlier = (positions[:, np.newaxis] >= positions[np.newaxis, :]).astype(np.float32)
        watched = (positions < inputs["length"][:, None]).astype(jnp.float32)
        visible = earlier * watched[:, None, :]
        x = self.movies(inputs["history"])
        for block in self.blocks:
            x = block(x, visible)
        last = (positions == inputs["length"][:, None] - 1).astype(jnp.float32)
        return jnp.einsum("bnd,bn->bd", x, last)

    def candidate(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the vectors of movies: [b, dim].

        Args:
          inputs: movie_id [b] int32, rows.
        """
        return self.movies(inputs["movie_id"])

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Computes both vectors."""
        return self.query(inputs), self.candidate(inputs)


def example(sizes: Sizes) -> dict[str, Any]:
    """Returns inputs of the right shapes."""
    rows = jnp.ones(2, jnp.int32)
    history = jnp.zeros((2, sizes.length), jnp.int32)
    return {"history": history, "length": rows, "movie_id": rows}


def build_model() -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
    """Returns the shapes of the parameters, and the functions that the recipe's towers call."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = Hstu(sizes)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example(sizes))  # allocates nothing

    def query(parameters: Any, inputs: Any) -> Any:
        return model.apply(parameters, inputs, method="query")

    def candidate(parameters: Any, inputs: Any) -> Any:
        return model.apply(parameters, inputs, method="candidate")

    return shapes, {"query": query, "candidate": candidate}
