"""Every way of looking ids up that TensorFlow has, as a manifest describes it, with ids
to look up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import manifest as entries
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import CROSS_KEY, InputDtype
from tests.id_graphs import bucket_ids, crossed_ids, hash_ids, vocabulary_ids

ROWS = 97
DIM = 5
EXAMPLES = 17
# Keys of the integer vocabulary; the string vocabulary has the same keys as text.
KEYS = tuple(range(1000, 1000 + 7 * 40, 7))
BOUNDARIES = (-1.5, 0.0, 0.25, 3.0)
COMBINERS = ("sum", "mean", "sqrtn")
WEIGHTS = ("none", "positive", "any")
BOTH = (False, True)
RULES: dict[str, entries.GraphIds] = {
    "identity": entries.IDENTITY,
    "hash": hash_ids(ROWS),
    "buckets": bucket_ids(BOUNDARIES),
    "strings": vocabulary_ids("strings"),
    "integers": vocabulary_ids("integers", "int64"),
    "oov": vocabulary_ids(
        "integers", "int64", oov_buckets=ROWS - len(KEYS), oov_first_row=len(KEYS)
    ),
}
"""Those of one input, by name."""
HASH = RULES["hash"]
BUCKETS = RULES["buckets"]


@dataclass(frozen=True)
class Ids:
    """What is sent to one input.

    Attributes:
      kind: The kind of values: rows, integers, keys of the vocabulary or numbers.
      width: The number of values of each example; None: a bag of any size.
      text: Whether integers are sent as strings.
      negative: Whether some ids are negative.
      empty: Whether some examples have no ids, or only padding where there is a width.
      weights: "none"; "positive"; or "any": some are zero or negative.
    """

    kind: str = "integers"
    width: int | None = None
    text: bool = False
    negative: bool = False
    empty: bool = False
    weights: str = "none"


@dataclass(frozen=True)
class Case:
    """One feature: the lookup of TensorFlow, its entry in a manifest, and the values that are sent.

    Attributes:
      call: The name of TensorFlow's lookup.
      entry: The feature of the manifest.
      ids: The values that are sent to each input.
      options: Further arguments of the call.
    """

    call: str
    entry: entries.EmbeddedFeature
    ids: tuple[Ids, ...]
    options: tuple[Any, ...] = field(default=())

    @property
    def rule(self) -> str:
        """The name of its rule."""
        names = [name for name, ids in RULES.items() if ids == self.entry.ids]
        return names[0] if names else self.entry.ids.kind


def generate() -> dict[str, Case]:
    """Returns all cases by name, which is also that of the input, or begins those of its inputs."""
    actual: dict[str, Case] = {}
    for generator in (_lookups, _clipped, _sequences, _gathers, _columns, _crosses):
        for number, each in enumerate(generator()):
            name = f"{generator.__name__[1:]}-{number}-{each.call}-{each.entry.kind}-{each.rule}"
            inputs = (
                tuple(f"{name}.{place}" for place in range(len(each.ids)))
                if len(each.ids) > 1
                else (name,)
            )
            actual[name] = Case(
                each.call, each.entry.model_copy(update={"inputs": inputs}), each.ids, each.options
            )
    return actual


def _case(call: str, sent: Ids | tuple[Ids, ...], kind: str, *options: Any, **message: Any) -> Case:
    sent = sent if isinstance(sent, tuple) else (sent,)
    message = {"table": "t", "role": "context", "inputs": tuple("abc"[: len(sent)])} | message
    if call == "indicator":
        message |= {"table": "", "combiner": "sum"}
    entry = entries.EmbeddedFeature.model_validate(
        {"kind": kind, "weighted": sent[0].weights != "none"} | message
    )
    return Case(call, entry, sent, options)


def _lookups() -> Iterator[Case]:
    for combiner, weights, negative, empty, hashed in product(COMBINERS, WEIGHTS, BOTH, BOTH, BOTH):
        rule = {"ids": HASH} if hashed else {}
        ids = Ids("integers" if hashed else "rows", negative=negative, empty=empty, weights=weights)
        message: dict[str, Any] = {"combiner": combiner, **rule}
        yield _case("serving", ids, "bag", **message)
        yield _case("safe", ids, "bag", **message)
        if hashed or not negative:  # TensorFlow's ragged lookup takes no negative row
            for call in ("serving", "shaped"):
                yield _case(call, ids, "bag", encoding="ragged", **message)
            if not empty and weights != "any":
                yield _case("plain", ids, "bag", **message)


def _clipped() -> Iterator[Case]:
    """Bags whose rows have a largest norm, or that read a row where they are empty."""
    limits: tuple[dict[str, Any], ...] = (
        {"max_norm": 1.5},
        {"empty_row": 7},
        {"max_norm": 2.0, "empty_row": 7},
    )
    for combiner, weights, empty, limit in product(COMBINERS, WEIGHTS, BOTH, limits):
        message = {"combiner": combiner, **limit}
        yield _case(
            "safe", Ids("rows", negative=True, empty=empty, weights=weights), "bag", **message
        )
        if "empty_row" not in limit:
            yield _case(
                "column",
                Ids(negative=True, empty=empty, weights=weights),
                "bag",
                ids=HASH,
                **message,
            )
            if not empty and weights != "any":
                yield _case("plain", Ids("rows", weights=weights), "bag", **message)


def _sequences() -> Iterator[Case]:
    rules: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, False),
        ({"ids": HASH}, False),
        ({"ids": HASH}, True),
    )
    for encoding, empty, (rule, negative), length in product(
        ("sparse", "ragged"), BOTH, rules, (1, 2, 5, 9)
    ):
        ids = Ids("integers" if rule else "rows", negative=negative, empty=empty)
        yield _case("serving", ids, "sequence", encoding=encoding, length=length, **rule)
        if encoding == "ragged" and length > 1:  # of length 1 it is a bag
            yield _case("shaped", ids, "sequence", encoding=encoding, length=length, **rule)


ONE_OR_FOUR: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (1, "single", {}),
    (4, "sequence", {"length": 4}),
)
"""As many ids of each example, and what a manifest says of them."""


def _gathers() -> Iterator[Case]:
    kinds = (Ids("rows"), Ids(), Ids(negative=True), Ids(text=True))
    for call, ids, combiner, (width, kind, message) in product(
        ("serving", "embedding"), kinds, COMBINERS, ONE_OR_FOUR
    ):
        rule = {} if ids.kind == "rows" else {"ids": HASH}
        # A dense feature is gathered whatever combiner its table has.
        yield _case(
            call, Ids(ids.kind, width, ids.text, ids.negative), kind, combiner, **message, **rule
        )


def _columns() -> Iterator[Case]:
    """Embedding columns and indicators of each kind of category."""
    listed = {text: RULES["strings" if text else "integers"] for text in BOTH}
    hashed = RULES["oov"]
    rules = (
        (RULES["identity"], "rows", False, ROWS),
        *((HASH, "integers", text, ROWS) for text in BOTH),
        *((listed[text], "keys", text, len(KEYS)) for text in BOTH),
        (hashed, "keys", False, ROWS),
    )
    unknown = {"unknown": entries.Unknown(rule="row", row=5)}
    for (rule, kind, text, rows), combiner in product(rules, (*COMBINERS, None)):
        message: dict[str, Any] = (
            {"ids": rule, "combiner": combiner} if combiner else {"ids": rule, "indicator": rows}
        )
        call = "column" if combiner else "indicator"
        for weights, empty in product(WEIGHTS, BOTH):
            yield _case(call, Ids(kind, None, text, not text, empty, weights), "bag", **message)
        padding = "" if text else -1
        for width, more in product((1, 3), ({}, unknown)):
            if not more or rule not in (HASH, hashed):
                yield _case(
                    call,
                    Ids(kind, width, text, not text, True),
                    "bag",
                    padding=padding,
                    **message,
                    **more,
                )
    for combiner in COMBINERS:
        yield _case("column", Ids("numbers", 1), "bag", ids=BUCKETS, combiner=combiner)


def _rows_or_5() -> entries.GraphIds:
    """Returns a graph of integers as they are sent; 5 of those that are no rows."""
    builder = GraphBuilder("int64")
    builder.replaced(builder.last, ROWS, 5)
    return builder.graph()


def _positions_or_3() -> entries.GraphIds:
    """Returns a graph of positions in the integer vocabulary; 3 of other integers."""
    builder = GraphBuilder("int64")
    builder.positions(builder.last, entries.LookupTable(vocabulary="integers"), 3)
    return builder.graph()


CROSSED: dict[str, tuple[InputDtype | entries.GraphIds, Ids]] = {
    "int64": ("int64", Ids(negative=True)),
    "string": ("string", Ids(text=True)),
    "buckets": (BUCKETS, Ids("numbers", 1)),
    "rows": ("int64", Ids("rows")),
    "listed": ("int64", Ids("rows")),
    "row or 5": (_rows_or_5(), Ids("rows", negative=True)),
    "known": (RULES["strings"], Ids("keys", text=True)),
    "hashed": (
        vocabulary_ids("strings", oov_buckets=9, oov_first_row=len(KEYS)),
        Ids("keys", text=True),
    ),
    "numbers": (_positions_or_3(), Ids("keys", negative=True)),
    "padded": (RULES["strings"], Ids("keys", 3, text=True, empty=True)),
}
"""What computes each kind of value of a cross, and what is sent to it."""
CROSS_PADDING = {"padded": ""}


def _crosses() -> Iterator[Case]:
    crosses = (
        *(
            ("int64", "int64"),
            ("string", "string"),
            ("string", "int64"),
            ("buckets", "int64"),
            ("buckets", "string"),
        ),
        *(("int64", "string", "int64"), ("string", "buckets", "string"), ("rows", "string")),
        *(
            ("string", "listed", "rows"),
            ("known", "string"),
            ("hashed", "numbers"),
            ("row or 5", "buckets", "known"),
        ),
        *(("padded", "numbers"), ("hashed", "padded", "int64")),
    )
    for kinds, combiner, empty, hash_key in product(crosses, (*COMBINERS, None), BOTH, (None, 77)):
        rule = crossed_ids([CROSSED[kind][0] for kind in kinds], ROWS, hash_key or CROSS_KEY)
        message: dict[str, Any] = {"combiner": combiner} if combiner else {"indicator": ROWS}
        message["joint"] = [{"padding": CROSS_PADDING.get(kind)} for kind in kinds]
        ids = [CROSSED[kind][1] for kind in kinds]
        sent = tuple(
            Ids(each.kind, each.width, each.text, each.negative, each.empty or empty)
            for each in ids
        )
        yield _case(
            "column" if combiner else "indicator", sent, "bag", kinds, hash_key, ids=rule, **message
        )


def columns_of(case: Case, seed: int) -> dict[str, Column]:
    """Makes what a caller sends of a case."""
    random = np.random.default_rng(seed)
    return {
        name: _column(ids, case, random)
        for name, ids in zip(case.entry.inputs, case.ids, strict=True)
    }


def _column(ids: Ids, case: Case, random: np.random.Generator) -> Column:
    if ids.width is not None:
        lengths = np.full(EXAMPLES, ids.width)
    else:
        lengths = random.integers(0 if ids.empty else 1, 9 if len(case.ids) == 1 else 4, EXAMPLES)
        lengths[0] = 0 if ids.empty else 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = _values(ids, case, int(offsets[-1]), random)
    if (
        ids.width is not None and ids.empty and ids.kind != "numbers"
    ):  # padding: of the first example all
        values[: ids.width] = "" if ids.text else -1
    weights = None
    if ids.weights != "none":
        weights = random.uniform(
            0.1 if ids.weights == "positive" else -1.0, 2.0, values.size
        ).astype(np.float32)
        weights[::5] = 0 if ids.weights == "any" else 1
    return Column(values, None if case.entry.kind == "single" else offsets, weights)


def _values(ids: Ids, case: Case, size: int, random: np.random.Generator) -> NDArray[Any]:
    if ids.kind == "numbers":
        return random.choice(np.array([*BOUNDARIES, -9.0, 0.1, 2.5, 1e6], np.float32), size)
    if ids.kind == "keys":
        strange = random.integers(-50 if ids.negative else 0, 2000, size)
        values = np.where(random.random(size) < 0.7, random.choice(KEYS, size), strange)
        values[::11] = 0
    elif ids.kind == "rows":
        values = random.integers(0, ROWS, size)
    else:
        values = np.where(
            random.random(size) < 0.5,
            random.integers(0, 1 << 60, size),
            random.integers(0, 999, size),
        )
    if ids.negative:
        values[::4] = random.integers(-5, 0, values[::4].size)
    if ids.text:
        texts = values.astype(str).astype(object)
        texts[::9] = "über"
        return texts
    return values
