"""Random hashes and vocabularies of texts and integers, by layers of Keras and by TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.differential.random_models.drafts import EXTREMES
from tests.differential.random_models.integer_rules import KEYS, UNKNOWN_KEYS
from tests.differential.random_models.rules import Rule, Wanted

WORDS = ("red", "green", "blue", "über", "7", "-3", "Bern", "BERN", "a b", "zebra", "0", "x1")
UNKNOWN_WORDS = ("", "grey", " red", "Red", "日本", "x" * 70, "12345678901234567890")


def hashed_text(wanted: Wanted) -> Rule:
    draft = wanted.draft
    rows = wanted.rows
    pool = (*WORDS, *UNKNOWN_WORDS)
    if wanted.is_tensorflow and draft.chance(0.5):
        template = draft.choice(
            f"tf.strings.to_hash_bucket_fast({{ids}}, {rows})",
            f"tf.strings.to_hash_bucket_strong({{ids}}, {rows}, [7, 8])",
            f"tf.strings.to_hash_bucket_fast(tf.strings.lower({{ids}}), {rows})",
        )
        return Rule("string", pool, template)
    options = draft.choice("", ', mask_value=""', ", salt=1234")
    return Rule("string", pool, wanted.layer(f"layers.Hashing({rows}{options})"))


def hashed_integers(wanted: Wanted) -> Rule:
    draft = wanted.draft
    dtype = wanted.integer_dtype()
    rows = wanted.rows
    pool = wanted.integers(dtype)
    if wanted.is_tensorflow and draft.chance(0.5):
        text = "tf.strings.as_string({ids})"
        template = draft.choice(
            f"tf.strings.to_hash_bucket_fast({text}, {rows})",
            f"(tf.strings.to_hash_bucket_fast({text}, 1000) % {rows})",
            f"tf.strings.to_hash_bucket_strong({text}, {rows}, [1, 2])",
        )
        return Rule(dtype, pool, template)
    hashed = wanted.layer(f"layers.Hashing({rows}{draft.choice('', ', salt=[3, 4]')})")
    return Rule(dtype, pool, draft.choice(hashed, hashed.replace("{ids}", "{ids} % 50")))


def known_text(wanted: Wanted) -> Rule:
    draft = wanted.draft
    # A layer without rows for unknown ids fails for those that the exporter makes.
    oov = draft.integer(0 if draft.states_examples else 1, 2)
    mask = draft.choice("None", '""')
    size = min(len(WORDS), wanted.rows - oov - 1)
    keys = draft.sample(WORDS, draft.integer(1, size))
    others: Sequence[str] = ()
    if oov:
        others = UNKNOWN_WORDS
    elif mask != "None":
        others = ("",)
    line = f"layers.StringLookup(vocabulary={keys}, num_oov_indices={oov}, mask_token={mask})"
    template = wanted.layer(line)
    if wanted.is_tensorflow and oov and draft.chance(0.3):
        # Of integers as texts.
        template = template.replace("{ids}", "tf.strings.as_string({ids})")
        return Rule("int64", (7, -3, 0, 1, *EXTREMES["int64"]), template)
    return Rule("string", (*keys, *others), template, is_partial=not oov)


def known_integers(wanted: Wanted) -> Rule:
    draft = wanted.draft
    # A layer without rows for unknown ids fails for those that the exporter makes.
    oov = draft.integer(0 if draft.states_examples else 1, 2)
    mask = draft.choice("None", "0")
    size = min(len(KEYS), wanted.rows - oov - 1)
    keys = draft.sample(KEYS, draft.integer(1, size))
    others: Sequence[int] = (*UNKNOWN_KEYS, *EXTREMES["int64"]) if oov else ()
    masked = (0,) if mask == "0" else ()
    line = f"layers.IntegerLookup(vocabulary={keys}, num_oov_indices={oov}, mask_token={mask}"
    line += draft.choice("", ', oov_method="farmhash"') if draft.dialect.name == "keras" else ""
    line += ")"
    template = wanted.layer(line)
    return Rule("int64", (*keys, *masked, *others), template, is_partial=not oov)


def looked_up(wanted: Wanted) -> Rule:
    """A table of `tf.lookup`, with a row for unknown keys or with buckets for them."""
    draft = wanted.draft
    is_text = draft.chance(0.5)
    known: Sequence[Any] = WORDS if is_text else KEYS
    unknown: Sequence[Any] = UNKNOWN_WORDS if is_text else (*UNKNOWN_KEYS, *EXTREMES["int64"])
    keys = draft.sample(known, draft.integer(1, min(len(known), wanted.rows - 2)))
    dtype = "string" if is_text else "int64"
    initializer = (
        f"tf.lookup.KeyValueTensorInitializer(tf.constant({keys}, tf.{dtype}), "
        f"tf.range({len(keys)}, dtype=tf.int64))"
    )
    line = f"tf.lookup.StaticVocabularyTable({initializer}, {draft.integer(1, 2)})"
    default = draft.integer(0, wanted.rows - 1)
    drops_unknown = False
    if draft.chance(0.5):
        drops_unknown = wanted.below_zero == "dropped"
        line = f"tf.lookup.StaticHashTable({initializer}, {-1 if drops_unknown else default})"
    template = wanted.layer(line).replace("({ids})", ".lookup({ids})")
    return Rule(dtype, (*keys, *unknown), template, drops_unknown=drops_unknown)
