"""Random feature columns of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.differential.random_models.bags import COMBINERS, WEIGHTS
from tests.differential.random_models.drafts import DIMS, EXTREMES, Activation, Draft, Input
from tests.differential.random_models.integer_rules import KEYS, UNKNOWN_KEYS
from tests.differential.random_models.key_rules import UNKNOWN_WORDS, WORDS

MANY = (*range(-3, 25), *EXTREMES["int64"])
SENT: dict[str, tuple[Any, ...]] = {
    "string": (*WORDS, *UNKNOWN_WORDS),
    "int64": (*KEYS, *UNKNOWN_KEYS, *MANY),
}


@dataclass(frozen=True)
class Category:
    """A categorical column.

    Attributes:
      code: The code that makes the column.
      size: The number of the column's categories.
      dtype: The dtype of its input.
      pool: The values that are sent.
      has_default_row: Whether ids that are no category read a row.
    """

    code: str
    size: int
    dtype: str = ""
    pool: Sequence[Any] = ()
    has_default_row: bool = False


def embedded_column(draft: Draft, name: str) -> Activation:
    """A categorical column of dense or sparse ids, embedded or as an indicator."""
    category = _category(draft, name)
    encoding = draft.choice("fixed", "sparse")
    weights = draft.choice((), WEIGHTS) if encoding == "sparse" else ()
    features = [name]
    if weights:
        features.append(f"{name}_weights")
        code = f'fc.weighted_categorical_column({category.code}, "{name}_weights")'
        category = replace(category, code=code)
    padding = None
    if encoding == "fixed":
        # No id, by a rule of TensorFlow.
        padding = "" if category.dtype == "string" else -1
        if category.has_default_row and draft.states_examples:
            draft.known = "the parity check lets no id of an example read the default row"
    draft.inputs[name] = Input(
        category.dtype,
        category.pool,
        encoding,
        draft.integer(1, 3),
        padding,
        weights,
        can_be_empty=True,
    )
    return _dense_features(draft, name, category, features)


def bucketized_column(draft: Draft, name: str) -> Activation:
    """Buckets of a number, embedded or as an indicator."""
    boundaries = sorted(draft.sample((-2.0, -0.5, 0.0, 0.25, 1.0, 9.0), draft.integer(1, 5)))
    draft.inputs[name] = Input("float32", (*boundaries, -1e9, 1e9, 0.5, -0.0), "fixed", 1)
    code = f'fc.bucketized_column(fc.numeric_column("{name}"), {boundaries})'
    return _dense_features(draft, name, Category(code, len(boundaries) + 1), [name])


def crossed_column(draft: Draft, name: str) -> Activation:
    """A cross of two inputs, or of a column of one with the other."""
    other = f"{name}_too"
    draft.inputs[other] = Input("string", (*WORDS, *UNKNOWN_WORDS), "fixed", 1)
    draft.inputs[name] = Input("int64", range(9), "fixed", 1)
    column = f'fc.categorical_column_with_identity("{name}", 9)'
    key = draft.choice(f'"{name}"', column)
    size = draft.integer(5, 20)
    category = Category(f'fc.crossed_column([{key}, "{other}"], {size})', size)
    return _dense_features(draft, name, category, [name, other])


Column = Callable[[Draft, str], Activation]
COLUMNS: tuple[Column, ...] = (embedded_column, embedded_column, bucketized_column, crossed_column)


def _category(draft: Draft, name: str) -> Category:
    kind = draft.choice("identity", "hash", "words", "keys")
    size = draft.integer(5, 20)
    if kind == "identity":
        default = draft.choice(None, draft.integer(0, size - 1))
        code = f'fc.categorical_column_with_identity("{name}", {size}, {default})'
        if default is None:
            return Category(code, size, "int64", range(size))
        return Category(code, size, "int64", MANY, has_default_row=True)
    if kind == "hash":
        dtype = draft.choice("string", "int64")
        code = f'fc.categorical_column_with_hash_bucket("{name}", {size}, tf.{dtype})'
        return Category(code, size, dtype, SENT[dtype])
    dtype = {"words": "string", "keys": "int64"}[kind]
    keys = draft.sample(WORDS if kind == "words" else KEYS, draft.integer(2, 10))
    size = len(keys)
    options = draft.choice(
        "", f", default_value={draft.integer(0, size - 1)}", ", num_oov_buckets=2"
    )
    code = f'fc.categorical_column_with_vocabulary_list("{name}", {keys}{options})'
    return Category(code, size + 2 * ("oov" in options), dtype, SENT[dtype])


def _dense_features(
    draft: Draft, name: str, category: Category, features: Sequence[str]
) -> Activation:
    width = draft.choice(*DIMS)
    combiner = draft.choice(*COMBINERS)
    options = draft.choice("", "", ", max_norm=0.5")
    column = f'fc.embedding_column({category.code}, {width}, combiner="{combiner}"{options})'
    if draft.chance(0.3):
        column = f"fc.indicator_column({category.code})"
        width = category.size
    draft.constructor.append(f"self.{name}_columns = layers.DenseFeatures([{column}])")
    entries = ", ".join(f'"{feature}": inputs["{feature}"]' for feature in features)
    return Activation(f"self.{name}_columns({{{entries}}})", width)
