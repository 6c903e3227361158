"""Requests to a random model: examples as clients send them, and as the model reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graphs.loading import tf
from tests.differential.random_models.drafts import Input
from tests.differential.random_models.models import RandomModel

CANDIDATES = (3, 1, 4)
"""Of each context."""
COUNT = sum(CANDIDATES)
"""Examples. As many of each model, since JAX compiles operations for each size."""

Example = dict[str, Any]


def draw_examples(model: RandomModel, purpose: str) -> list[Example]:
    """Draws examples, as clients send their features; candidates of a context share its features.

    Args:
      model: The model that the requests are sent to.
      purpose: The purpose of the examples; for another purpose, other examples are drawn.
    """
    random = Random(f"{purpose} of {model.seed}")
    examples: list[Example] = [{} for _ in range(COUNT)]
    for name, part in model.inputs.items():
        if part.default is not None:
            column = [part.default] * COUNT
        elif name in model.contexts:
            column = []
            for count in CANDIDATES:
                column += [_draw_value(random, part, is_last=True)] * count
        else:
            column = [_draw_value(random, part) for _ in range(COUNT - 1)]
            column.append(_draw_value(random, part, is_last=True))
        for example, value in zip(examples, column, strict=True):
            example[name] = value
    return examples


def _draw_value(random: Random, part: Input, *, is_last: bool = False) -> Any:
    """Draws a value.

    Args:
      random: The source of random numbers.
      part: The input.
      is_last: Whether the example may be the last of a batch, where `embedding_lookup_sparse`
        returns nothing for examples without ids.
    """
    if part.encoding == "single":
        return random.choice(part.pool)
    least = part.length
    if part.padding is not None or part.encoding != "fixed":
        least = 1 if is_last or not part.can_be_empty else 0
    length = random.randint(least, part.length)
    values = random.choices(part.pool, k=length)
    if part.weights:
        return {"ids": values, "weights": random.choices(part.weights, k=length)}
    if part.padding is not None:
        values += [part.padding] * (part.length - length)
    return values


def request_of(model: RandomModel, examples: Sequence[Example]) -> tuple[str, dict[str, Any]]:
    """Returns the call and the body of a request for all examples."""
    sent = [name for name, part in model.inputs.items() if part.default is None]
    if not model.heads:
        parts = [{"features": {name: example[name] for name in sent}} for example in examples]
        return "embed", {"tower": "score", "requests": parts}
    of_context = [name for name in sent if name in model.contexts]
    of_candidates = [name for name in sent if name not in model.contexts]
    parts = []
    first = 0
    for count in CANDIDATES:
        candidates = examples[first : first + count]
        first += count
        context = {name: candidates[0][name] for name in of_context}
        features = {name: [candidate[name] for candidate in candidates] for name in of_candidates}
        parts.append({"context": context, "candidate_features": features})
    return "rank", {"tower": "score", "heads": [*model.heads], "requests": parts}


def values_of(model: RandomModel, response: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Returns the values of a service's response, by output: [examples, ...]."""
    results = response["results"]
    if not model.heads:
        return {"": np.array([result["vector"] for result in results], np.float32)}
    return {
        head: np.concatenate([np.array(result["heads"][head], np.float32) for result in results])
        for head in model.heads
    }


def lines_of(model: RandomModel, examples: Sequence[Example]) -> str:
    """Returns examples as the file that a recipe names."""
    lines = []
    for example in examples:
        columns = dict(example)
        for name, part in model.inputs.items():
            if part.weights:
                columns[f"{name}_weights"] = example[name]["weights"]
                columns[name] = example[name]["ids"]
        lines.append(json.dumps(columns) + "\n")
    return "".join(lines)


def arrays_of(model: RandomModel, examples: Sequence[Example]) -> dict[str, Any]:
    """Returns the inputs of a model: tensors of TensorFlow, or arrays for JAX."""
    inputs = {}
    for name, part in model.inputs.items():
        values = [example[name] for example in examples]
        if part.weights:
            weights = [value["weights"] for value in values]
            inputs[f"{name}_weights"] = _bags(weights, part.encoding, "float32")
            values = [value["ids"] for value in values]
        if part.rows:
            values = [_rows(part.rows, value) for value in values]
        if part.encoding in ("ragged", "sparse"):
            inputs[name] = _bags(values, part.encoding, part.dtype)
        elif model.library in ("flax", "jax"):
            inputs[name] = np.array(values, part.dtype)
        else:
            inputs[name] = tf.constant(values, part.dtype)
    return inputs


def _rows(rows: Mapping[Any, int], value: Any) -> Any:
    """Returns the row of an id, or those of a list."""
    return [rows[part] for part in value] if isinstance(value, list) else rows[value]


def _bags(bags: Sequence[Sequence[Any]], encoding: str, dtype: str) -> Any:
    values = tf.constant([value for bag in bags for value in bag], dtype)
    ragged = tf.RaggedTensor.from_row_lengths(values, [len(bag) for bag in bags])
    return ragged if encoding == "ragged" else ragged.to_sparse()
