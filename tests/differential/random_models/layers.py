"""Random lookups by layers of Keras that encode ids or divide texts."""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.random_models.drafts import DIMS, LENGTH, Activation, Draft, Input
from tests.differential.random_models.integer_rules import KEYS, UNKNOWN_KEYS
from tests.differential.random_models.key_rules import UNKNOWN_WORDS, WORDS

TEXTS = (
    "the red house",
    "Red, RED! red",
    "  two  spaces ",
    "tab\tnew\nline red",
    "\u00fcber das Haus",
    "a",
    "it's x-y.z",
    "red house red house red house",
)
VOCABULARIES = {
    "whitespace": ["red", "house", "a", "two", "Red,", "its", "\u00fcber"],
    "character": ["r", "e", " ", "d", "\u00fc", "x"],
    "words and pairs": ["red", "house", "red house", "the red", "two spaces", "a"],
    "separator": ["red", "house", "a", "x-y.z", "the"],
}


def encoded(draft: Draft, name: str) -> Activation:
    """An id or several, as a vector of what they are."""
    rows = draft.integer(4, 12)
    mode = draft.choice("one_hot", "multi_hot", "count")
    hashed = Input("string", (*WORDS, *UNKNOWN_WORDS))
    words = draft.sample(WORDS, rows - 2)
    keys = draft.sample(KEYS, rows - 2)
    layers = (
        (f"layers.Hashing({rows}", hashed, rows),
        (f"layers.StringLookup(vocabulary={words}, num_oov_indices=2", hashed, rows),
        (
            f"layers.IntegerLookup(vocabulary={keys}, num_oov_indices=1",
            Input("int64", (*KEYS, *UNKNOWN_KEYS)),
            rows - 1,
        ),
        (f"layers.CategoryEncoding({rows}", Input("int32", range(rows)), rows),
    )
    code, part, width = draft.choice(*layers)
    encoding = "single" if mode == "one_hot" else "fixed"
    length = 1 if mode == "one_hot" else LENGTH
    draft.inputs[name] = Input(part.dtype, part.pool, encoding, length)
    draft.constructor.append(f'self.{name}_encoding = {code}, output_mode="{mode}")')
    code = f'self.{name}_encoding(inputs["{name}"])'
    # Layers of tf-keras count in float32; those of Keras 3 may return integers.
    return Activation(draft.dialect.cast_to("float32", code), width, is_exact=True)


def words_of_a_text(draft: Draft, name: str) -> Activation:
    """The words of a text, as a sequence of a fixed length or their mean."""
    split = draft.choice(*VOCABULARIES)
    keys = VOCABULARIES[split]
    rows = len(keys) + 2
    options = [f"vocabulary={keys}", _changes(draft)]
    if split == "words and pairs":
        options.append("ngrams=2")
    elif split == "separator":
        draft.constructor.append("import tensorflow as tf")
        options.append('split=lambda texts: tf.strings.split(texts, " ")')
    elif split != "whitespace":
        options.append(f'split="{split}"')
    is_cut = draft.chance(0.5)
    if is_cut:
        options.append(f"output_sequence_length={LENGTH}")
    draft.inputs[name] = Input("string", TEXTS)
    draft.constructor.append(f"self.{name}_words = layers.TextVectorization({', '.join(options)})")
    words = f'self.{name}_words(inputs["{name}"])'
    if is_cut and draft.chance(0.7):
        table = draft.new_table(rows)
        if table.dtype != "float32":
            draft.known = "rows of texts in half precision are no input of their tower"
        width = LENGTH * table.dim
        code = draft.dialect.flat.format(value=draft.rows(table, words), width=width)
        return Activation(code, width, is_exact=True)
    dim = draft.choice(*DIMS)
    draft.constructor += [
        f"self.{name}_table = layers.Embedding({rows}, {dim}, mask_zero=True)",
        f"self.{name}_pool = layers.GlobalAveragePooling1D()",
    ]
    return Activation(f"self.{name}_pool(self.{name}_table({words}))", dim)


def counted_words(draft: Draft, name: str) -> Activation:
    """The words of a text, as a vector of how often they occur."""
    keys = VOCABULARIES["whitespace"]
    mode = draft.choice("multi_hot", "count", "tf_idf")
    options = [f"vocabulary={keys}", _changes(draft), f'output_mode="{mode}"']
    if mode == "tf_idf":
        weights = [0.5 + position / 4 for position in range(len(keys))]
        options.append(f"idf_weights={weights}")
    draft.inputs[name] = Input("string", (*TEXTS, "", " "))
    draft.constructor.append(f"self.{name}_words = layers.TextVectorization({', '.join(options)})")
    code = f'self.{name}_words(inputs["{name}"])'
    return Activation(draft.dialect.cast_to("float32", code), len(keys) + 1, mode != "tf_idf")


Encoding = Callable[[Draft, str], Activation]
ENCODINGS: tuple[Encoding, ...] = (encoded, words_of_a_text, counted_words)


def _changes(draft: Draft) -> str:
    changes = draft.choice("None", '"lower"', '"lower_and_strip_punctuation"')
    return f"standardize={changes}"
