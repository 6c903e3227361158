"""Feature configurations, generated: every way of looking ids up that TensorFlow has, with ids to look up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import manifest as entries

ROWS, DIM, EXAMPLES = 97, 5, 17
KEYS = tuple(range(1000, 1000 + 7 * 40, 7))  # of the vocabulary of integers; that of strings has the same as text
ARITHMETIC: tuple[tuple[Any, ...], ...] = (
    # shift, divisor, buckets, truncated, first row
    (0, 1, ROWS, False, 0),
    (0, 1, ROWS, True, 0),
    (-3, 1, 50, False, 7),
    (1 << 40, 1, 50, True, 60),
    (-1, 1, None, False, 0),
    (2, 1, None, False, 0),
    (0, 10, None, False, 1),
    (-5, 7, 13, False, 0),
)
BOUNDARIES = (-1.5, 0.0, 0.25, 3.0)


@dataclass(frozen=True)
class Configuration:
    """One feature: how TensorFlow looks it up, and what is asked.

    Attributes:
      call: what of TensorFlow answers.
      kind: single, bag or sequence.
      encoding: dense, sparse or ragged: what TensorFlow is given.
      combiner: of a bag; "none" where TensorFlow gathers, or has one and ignores it.
      weights: none; positive; or any, some zero or negative.
      negative: whether some ids are negative.
      empty: whether some examples are empty.
      rule: identity, hash, hash of strings, vocabulary ...: what becomes of ids before they are rows.
      seed: of the ids.
      unknown: row that stands for unknown ids.
      length: of a sequence; of a dense bag or sequence, the ids of each example.
      max_norm: of a bag: to what its rows are clipped.
      empty_row: of a bag: what an empty one reads.
      options: what else the call takes.
    """

    call: str
    kind: str
    encoding: str
    combiner: str = "none"
    weights: str = "none"
    negative: bool = False
    empty: bool = False
    rule: str = "identity"
    seed: int = 0
    unknown: int | None = None
    length: int | None = None
    max_norm: float | None = None
    empty_row: int | None = None
    options: tuple[Any, ...] = field(default=())

    def __str__(self) -> str:
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return "-".join(f"{value}" for name, value in told.items() if value not in (None, ()) and name != "call")


def generate() -> list[Configuration]:
    """Returns all configurations."""
    ways = (_lookups, _clipped, _sequences, _gathers, _computed, _columns, _indicators, _crosses)
    found = list(dict.fromkeys(each for way in ways for each in way()))
    return [Configuration(**(vars(each) | {"seed": number})) for number, each in enumerate(found)]


COMBINERS, WEIGHTS, BOTH = ("sum", "mean", "sqrtn"), ("none", "positive", "any"), (False, True)


def _lookups() -> Iterator[Configuration]:
    for combiner, weights, negative, empty, rule in product(COMBINERS, WEIGHTS, BOTH, BOTH, ("identity", "hash")):
        told: Any = {"combiner": combiner, "weights": weights, "negative": negative, "empty": empty, "rule": rule}
        yield Configuration("serving", "bag", "sparse", **told)
        yield Configuration("safe", "bag", "sparse", **told)
        if rule == "hash" or not negative:  # TensorFlow's ragged lookup takes no negative row
            yield Configuration("serving", "bag", "ragged", **told)
            yield Configuration("shaped", "bag", "ragged", **told)
        if not empty and (rule == "hash" or not negative) and weights != "any":
            yield Configuration("plain", "bag", "sparse", **told)


def _clipped() -> Iterator[Configuration]:
    """Bags whose rows have a largest norm, or that read a row where they are empty."""
    limits = ((1.5, None), (None, 7), (2.0, 7))
    for combiner, weights, empty, (max_norm, empty_row) in product(COMBINERS, WEIGHTS, BOTH, limits):
        told: Any = {"combiner": combiner, "weights": weights, "empty": empty, "max_norm": max_norm}
        yield Configuration("safe", "bag", "sparse", **told, negative=True, empty_row=empty_row)
        if empty_row is None:
            yield Configuration("column", "bag", "sparse", **told, negative=True, rule="hash")
            if not empty and weights != "any":
                yield Configuration("plain", "bag", "sparse", **told)


def _sequences() -> Iterator[Configuration]:
    for encoding, empty, (rule, negative), length in product(
        ("sparse", "ragged"), BOTH, (("identity", False), ("hash", False), ("hash", True)), (1, 2, 5, 9)
    ):
        told: Any = {"empty": empty, "rule": rule, "negative": negative, "length": length}
        yield Configuration("serving", "sequence", encoding, **told)
        if encoding == "ragged" and length > 1:  # of length 1 it is a bag
            yield Configuration("shaped", "sequence", encoding, **told)


def _gathers() -> Iterator[Configuration]:
    rules = (("identity", False), ("hash", False), ("hash", True), ("hash strings", False))
    for call, (rule, negative), combiner in product(("serving", "embedding"), rules, COMBINERS):
        # A dense feature is gathered whatever combiner its table has.
        yield Configuration(call, "single", "dense", rule=rule, negative=negative, options=(combiner,))
        yield Configuration(call, "sequence", "dense", rule=rule, negative=negative, length=4, options=(combiner,))
    for kind, texts, oov, mask, keras in product(("single", "sequence"), BOTH, (1, 2, 3, 5), BOTH, BOTH):
        rule = f"looked up{' strings' if texts else ''}{', hashed' if texts or oov == 1 else ''}"
        yield Configuration(
            "lookup", kind, "dense", rule=rule, negative=not texts, length=3, options=(oov, mask, keras)
        )


def _computed() -> Iterator[Configuration]:
    """What a model's own code does to ids in front of a gather."""
    for kind, told in product(("single", "sequence"), ARITHMETIC):
        yield Configuration("computed", kind, "dense", rule="computed", negative=True, length=3, options=told)
    for kind, falling, first_row in product(("single", "sequence"), BOTH, (-1, 0, 3, ROWS - 3)):
        how: Any = {"rule": "buckets", "length": 3, "options": (falling, first_row)}
        yield Configuration("stepped", kind, "dense", **how)
    for kind, texts, mask, keys in product(("single", "sequence"), BOTH, BOTH, (None, (77, 77), (-1, 1 << 62))):
        if mask or keys is not None:
            rule = f"hash with a key{' strings' if texts else ''}"
            yield Configuration(
                "hashing", kind, "dense", rule=rule, negative=not texts, length=3, options=(mask, *(keys or ()))
            )


def _columns() -> Iterator[Configuration]:
    rules = ("identity", "hash", "hash strings", "vocabulary", "vocabulary strings", "vocabulary, oov hashed")
    for rule, combiner, weights, empty in product(rules, COMBINERS, WEIGHTS, BOTH):
        negative = "strings" not in rule
        yield Configuration("column", "bag", "sparse", combiner, weights, negative, empty, rule)
    for rule, combiner in product(rules, COMBINERS):
        negative = "strings" not in rule
        yield Configuration("column", "bag", "dense", combiner, "none", negative, True, rule, length=3)
        if "hash" not in rule:
            yield Configuration("column", "bag", "sparse", combiner, "none", negative, True, rule, unknown=5)
    for combiner in COMBINERS:
        yield Configuration("column", "bag", "dense", combiner, "none", True, False, "buckets", length=1)


RULES = ("identity", "hash", "hash strings", "vocabulary", "vocabulary strings", "vocabulary, oov hashed")


def _indicators() -> Iterator[Configuration]:
    for rule, weights, empty in product(RULES, WEIGHTS, BOTH):
        negative = "strings" not in rule
        yield Configuration("indicator", "bag", "sparse", "sum", weights, negative, empty, rule)
    for rule, unknown, length in product(RULES, (None, 5), (1, 3)):
        if unknown is None or "hash" not in rule:
            negative = "strings" not in rule
            yield Configuration(
                "indicator", "bag", "dense", "sum", "none", negative, True, rule, unknown=unknown, length=length
            )
    for kind, empty in product((("string", "known"), ("buckets", "int64")), BOTH):
        yield Configuration(
            "crossed indicator", "bag", "sparse", "sum", "none", True, empty, "cross", options=(kind, None)
        )


STRINGS = entries.VocabularyIds(vocabulary="strings")
CROSSED: dict[str, entries.CrossKey] = {
    "string": entries.CrossKey(dtype="string"),
    "buckets": entries.CrossKey(dtype="int64", boundaries=BOUNDARIES),
    "known": entries.CrossKey(dtype="string", ids=STRINGS, rows=len(KEYS)),
    "hashed": entries.CrossKey(
        dtype="string",
        ids=entries.VocabularyIds(vocabulary="strings", oov_buckets=9, oov_first_row=len(KEYS)),
        rows=len(KEYS) + 9,
    ),
    "numbers": entries.CrossKey(
        dtype="int64", ids=entries.VocabularyIds(vocabulary="integers"), rows=len(KEYS), unknown_row=3
    ),
    "row or 5": entries.CrossKey(dtype="int64", ids=entries.IdentityIds(), rows=ROWS, unknown_row=5),
    "padded": entries.CrossKey(dtype="string", ids=STRINGS, rows=len(KEYS), padding=""),
}
"""What a manifest says of the keys of a cross; others are integers as they are."""


def _crosses() -> Iterator[Configuration]:
    kinds = (
        ("int64", "int64"),
        ("string", "string"),
        ("string", "int64"),
        ("buckets", "int64"),
        ("buckets", "string"),
        ("int64", "string", "int64"),
        ("string", "buckets", "string"),
        ("rows", "string"),
        ("string", "listed", "rows"),
        ("known", "string"),
        ("hashed", "numbers"),
        ("row or 5", "buckets", "known"),
        ("padded", "numbers"),
        ("hashed", "padded", "int64"),
    )
    for kind, combiner, empty, hash_key in product(kinds, COMBINERS, BOTH, (None, 77)):
        yield Configuration(
            "crossed", "bag", "sparse", combiner, "none", True, empty, "cross", options=(kind, hash_key)
        )


def rule_of(each: Configuration) -> entries.IdRule:
    """Returns what a manifest says of the ids of a configuration."""
    rule: entries.IdRule = entries.IdentityIds()
    texts = "strings" in each.rule
    vocabulary = "strings" if texts else "integers"
    if each.call == "hashing":
        masked, *key = each.options
        rule = entries.HashIds(
            buckets=ROWS - masked,
            first_row=int(masked),
            key=(key[0], key[1]) if key else None,
            mask=("über" if texts else 5) if masked else None,
        )
    elif each.rule == "computed":
        shift, divisor, buckets, truncated, first_row = each.options
        modulo = () if buckets is None else ((("truncated_remainder" if truncated else "remainder"), buckets),)
        steps = (("add", shift), ("divide", divisor), *modulo, ("add", first_row))
        rule = entries.ComputedIds(operations=tuple(entries.IdOperation(do=do, by=by) for do, by in steps))
    elif each.rule.startswith("hash"):
        rule = entries.HashIds(buckets=ROWS)
    elif each.rule.startswith("vocabulary"):
        oov = ROWS - len(KEYS) if "oov" in each.rule else 0
        rule = entries.VocabularyIds(vocabulary=vocabulary, oov_buckets=oov, oov_first_row=len(KEYS))
    elif each.rule.startswith("looked up"):
        oov, mask, _ = each.options
        rule = entries.VocabularyIds(
            vocabulary=vocabulary,
            first_row=oov + mask,
            oov_buckets=oov,
            oov_first_row=int(mask),
            oov_hash="fingerprint" if texts else "modulo",
            mask=("" if texts else 0) if mask else None,
        )
    elif each.rule == "buckets":
        falling, first_row = each.options or (False, 0)
        rule = entries.BucketIds(boundaries=BOUNDARIES, first_row=first_row, falling=falling)
    elif each.rule == "cross":
        kinds, hash_key = each.options
        keys = tuple(CROSSED.get(kind, entries.CrossKey(dtype="int64")) for kind in kinds)
        rule = entries.CrossedIds(keys=keys, buckets=ROWS, **({} if hash_key is None else {"hash_key": hash_key}))
    return rule


def page_of(each: Configuration, inputs: tuple[str, ...] = ()) -> entries.EmbeddedFeature:
    """Returns what a manifest says of a configuration."""
    bag, length = each.kind == "bag", each.length if each.kind == "sequence" else None
    texts = "strings" in each.rule
    column = each.call in ("column", "indicator")
    padding = ("" if texts else -1) if column and each.encoding == "dense" and each.rule != "buckets" else None
    indicator = width_of(each) if "indicator" in each.call else None
    return entries.EmbeddedFeature(
        kind=each.kind,
        table="t" if indicator is None else "",
        indicator=indicator,
        max_norm=each.max_norm,
        empty_row=each.empty_row,
        role="context",
        inputs=inputs,
        ids=rule_of(each),
        unknown=entries.Unknown() if each.unknown is None else entries.Unknown(rule="row", row=each.unknown),
        combiner=each.combiner if bag else None,
        encoding="ragged" if each.encoding == "ragged" else "sparse",
        padding=padding,
        weighted=each.weights != "none",
        length=length,
    )


def width_of(each: Configuration) -> int:
    """Returns how many rows there are."""
    listed = each.rule.startswith("vocabulary") and "oov" not in each.rule
    return len(KEYS) if listed else ROWS


def column_of(each: Configuration) -> Column:
    """Makes what a caller sends of a configuration that has one input."""
    random = np.random.default_rng(each.seed)
    if each.encoding == "dense":
        width = (each.length or 1) if each.kind != "single" else 1
        lengths = np.full(EXAMPLES, width)
    else:
        lengths = random.integers(0 if each.empty else 1, 9, EXAMPLES)
        lengths[-1] = 8
        lengths[0] = 0 if each.empty else 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = values_of(each, int(offsets[-1]), random)
    if each.encoding == "dense" and each.empty:  # padding: of the first example all
        values[: lengths[0]] = "" if values.dtype == object else -1
    weights = None
    if each.weights != "none":
        weights = random.uniform(0.1 if each.weights == "positive" else -1.0, 2.0, values.size).astype(np.float32)
        if each.weights == "any":
            weights[::5] = 0
    return Column(values, None if each.kind == "single" else offsets, weights)


def values_of(each: Configuration, size: int, random: np.random.Generator) -> NDArray[Any]:
    """Makes ids, or numbers for buckets."""
    if each.rule == "buckets":
        return random.choice(np.array([*BOUNDARIES, -9.0, 0.1, 2.5, 1e6], np.float32), size)
    if each.rule.startswith(("vocabulary", "looked up")):
        known = random.choice(KEYS, size)
        strange = random.integers(-50 if each.negative else 0, 2000, size)
        values = np.where(random.random(size) < 0.7, known, strange)
        values[::11] = 0
    elif each.rule == "identity":
        values = random.integers(0, ROWS, size)
    else:
        values = np.where(random.random(size) < 0.5, random.integers(0, 1 << 60, size), random.integers(0, 999, size))
    if each.call == "hashing":
        values[::7] = 5
    if each.negative:
        values[::4] = random.integers(-5, 0, values[::4].size)
    if "strings" in each.rule:
        texts = values.astype(str).astype(object)
        texts[::9] = "" if each.call == "lookup" else "über"
        return texts
    return values
