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
    count = draft.integer(1, 3)
    draft.inputs[name] = Input("float32", (*boundaries, -1e9, 1e9, 0.5, -0.0), "fixed", count)
    normalizer = draft.choice("None", "None", "lambda number: 1.0 - number", "tf.nn.relu")
    numbers = f'fc.numeric_column("{name}", {count}, normalizer_fn={normalizer})'
    category = Category(
        f"fc.bucketized_column({numbers}, {boundaries})", count * (len(boundaries) + 1)
    )
    return _dense_features(draft, name, category, [name])


def sequence_column(draft: Draft, name: str) -> Activation:
    """The rows or the indicators of as many ids as the recipe declares."""
    size = draft.integer(5, 20)
    kind = draft.choice("identity", "hash_bucket")
    options = ", dtype=tf.int64" if kind == "hash_bucket" else ""
    # A sequence may end before its declared length.
    draft.inputs[name] = Input("int64", range(size), "fixed", 3, -1, can_be_empty=True)
    column = f'fc.sequence_categorical_column_with_{kind}("{name}", {size}{options})'
    width = draft.choice(*DIMS)
    code = f"fc.embedding_column({column}, {width})"
    if draft.chance(0.3):
        code = f"fc.indicator_column({column})"
        width = size
    else:
        draft.extracted.add((size, width))
    draft.constructor.append(
        f"self.{name}_columns = tf.keras.experimental.SequenceFeatures([{code}])"
    )
    rows = f'self.{name}_columns({{"{name}": inputs["{name}"]}})[0]'
    return Activation(f"tf.reshape({rows}, [-1, {3 * width}])", 3 * width, is_exact=True)


def crossed_column(draft: Draft, name: str) -> Activation:
    """A cross of two inputs, or of a column of one with the other."""
    other = f"{name}_too"
    draft.inputs[other] = Input("string", (*WORDS, *UNKNOWN_WORDS), "fixed", 1)
    draft.inputs[name] = Input("int64", range(9), "fixed", 1)
    column = f'fc.categorical_column_with_identity("{name}", 9)'
    key = draft.choice(f'"{name}"', column, "buckets")
    if key == "buckets":
        draft.inputs[name] = Input("float32", (-1.0, 0.0, 0.5, 3.0), "fixed", 1)
        key = f'fc.bucketized_column(fc.numeric_column("{name}"), [0.0, 1.0])'
    size = draft.integer(5, 20)
    options = draft.choice("", ", hash_key=7")
    category = Category(f'fc.crossed_column([{key}, "{other}"], {size}{options})', size)
    return _dense_features(draft, name, category, [name, other])


Column = Callable[[Draft, str], Activation]
COLUMNS: tuple[Column, ...] = (
    *(embedded_column, embedded_column, bucketized_column, crossed_column),
    *(sequence_column, sequence_column),
)


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
    if kind == "words" and draft.chance(0.5):
        draft.files[f"{name}_words.txt"] = "".join(f"{key}\n" for key in keys)
        file = f'str(FOLDER / "{name}_words.txt")'
        code = f'fc.categorical_column_with_vocabulary_file("{name}", {file}{options})'
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
    else:
        draft.extracted.add((category.size, width))
    draft.constructor.append(f"self.{name}_columns = layers.DenseFeatures([{column}])")
    entries = ", ".join(f'"{feature}": inputs["{feature}"]' for feature in features)
    return Activation(f"self.{name}_columns({{{entries}}})", width)
