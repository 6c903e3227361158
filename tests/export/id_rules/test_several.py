"""Ids made of several inputs together: what is found of them, and that it gives the original's rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from bundle.format.manifest import (
    ComputedIds,
    CrossedIds,
    CrossKey,
    HashIds,
    IdOperation,
    JoinedIds,
    Unknown,
    VocabularyIds,
)
from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec
from export.model.tracing import trace_towers
from export.verify.examples import Examples
from tests.export.lookups.gathering import HERE, Made, hold, make, recipe

ROWS = 20_000
WORDS = ("red", "green", "blue")
SENT: dict[str, Any] = {
    "city": np.array(["red", "", "\u00e9", "blue", "purple", "green", "red"], object),
    "item": np.array([7, -1, 5, 0, 1 << 30, -7, 7], np.int32),
    "shop": np.array([1 << 40, -3, 0, 9, 10, -(1 << 63), 1]),
    "one": np.array(["a", "b", "a", "", "c", "\u00fc", "a"], object),
    "other": np.array(["x", "x", "", "y", "x", "z", "y"], object),
    "age": np.array([0.0, 0.5, 2.0, 29.9, 30.0, -4.0, 1e6], np.float32),
    "place": np.array([-10.0, 10.0, 0.0, -11.0, 9.99, 100.0, 3.0], np.float32),
    "city_2": np.array(["", "&", "|1", "\u00e9\u00e9", "x" * 70, "green", "red"], object),
}
INPUTS: dict[str, Any] = {
    "city": {"dtype": "string"},
    "item": {"dtype": "int32"},
    "shop": {"dtype": "int64"},
    "one": {"dtype": "string", "shape": [1]},
    "other": {"dtype": "string", "shape": [1]},
    "age": {"dtype": "float32"},
    "place": {"dtype": "float32"},
    "city_2": {"dtype": "string"},
}


def remainder(by: int) -> ComputedIds:
    return ComputedIds(operations=(IdOperation(do="remainder", by=by),))


INTEGER, STRING = CrossKey(dtype="int64"), CrossKey(dtype="string")
KNOWN = (
    CrossKey(dtype="string", ids=VocabularyIds(vocabulary="city", first_row=1), rows=4, unknown_row=0),
    CrossKey(
        dtype="int64",
        ids=VocabularyIds(vocabulary="item", first_row=3, oov_buckets=3, oov_hash="modulo"),
        rows=5,
    ),
    CrossKey(dtype="int64", ids=HashIds(buckets=10), rows=10),
)
FOUND: dict[str, tuple[tuple[str, ...], CrossedIds, tuple[Any, ...]]] = {
    "plain": (("city", "item"), CrossedIds(keys=(STRING, INTEGER), buckets=ROWS), ()),
    "column": (("one", "other"), CrossedIds(keys=(STRING, STRING), buckets=300), ()),
    "three": (("item", "city", "shop"), CrossedIds(keys=(INTEGER, STRING, INTEGER), buckets=1000), ()),
    "few": (
        ("shop", "item"),
        CrossedIds(keys=(INTEGER, CrossKey(dtype="int64", ids=remainder(100), rows=100)), buckets=77),
        (),
    ),
    "crossed": (
        ("age", "place"),
        CrossedIds(
            keys=tuple(CrossKey(dtype="int64", boundaries=each) for each in ((0.5, 2.0, 30.0), (-10.0, 10.0))),
            buckets=500,
        ),
        (),
    ),
    "known": (("city", "item", "shop"), CrossedIds(keys=KNOWN, buckets=600), (WORDS, (7, 5))),
}
"""What is found of each table's ids: inputs, rule, and keys of vocabularies."""
PAIRS = ("red_7", "blue_0", "_-1")


def joined(ids: HashIds | VocabularyIds, *told: str | CrossKey) -> JoinedIds:
    """Returns what makes rows of keys, with texts around and between them."""
    return JoinedIds(keys=told[1::2], texts=told[::2], ids=ids)


SHOPS = VocabularyIds(vocabulary="shop", first_row=1)
LISTED = VocabularyIds(vocabulary="city_item", first_row=2, oov_buckets=2)
JOINED: dict[str, tuple[tuple[str, ...], JoinedIds, tuple[Any, ...]]] = {
    "joined": (("city", "item"), joined(HashIds(buckets=ROWS), "", STRING, "_X_", INTEGER, ""), ()),
    "column": (("one", "other"), joined(HashIds(buckets=ROWS), "", STRING, "%", STRING, ""), ()),
    "prefix": (("shop",), joined(HashIds(buckets=500, first_row=3), "shop=", INTEGER, ""), ()),
    "around": (
        ("city", "shop"),
        joined(
            HashIds(buckets=ROWS),
            "<",
            STRING,
            "|",
            CrossKey(dtype="int64", ids=remainder(10), rows=10),
            ">",
        ),
        (),
    ),
    "nested": (
        ("city", "city_2", "item"),
        joined(HashIds(buckets=ROWS), "", STRING, "&", STRING, "|", INTEGER, ""),
        (),
    ),
    "bucket": (
        ("age", "shop"),
        joined(
            HashIds(buckets=90),
            "",
            CrossKey(dtype="int64", boundaries=(0.5, 2.0, 30.0)),
            "x",
            CrossKey(dtype="int64", ids=SHOPS, rows=3, unknown_row=0),
            "",
        ),
        ((9, 0),),
    ),
    "hashing": (("city", "item"), joined(HashIds(buckets=400), "", STRING, "", INTEGER, ""), ()),
    "salted": (
        ("city", "item"),
        joined(HashIds(buckets=39, first_row=1, key=(3, 3), mask="red_7"), "", STRING, "_", INTEGER, ""),
        (),
    ),
    "known": (("city", "item"), joined(LISTED, "", STRING, "_", INTEGER, ""), (PAIRS,)),
    "static": (
        ("city", "item"),
        joined(VocabularyIds(vocabulary="city_item"), "", STRING, "_", INTEGER, ""),
        (PAIRS,),
    ),
}


def told(function: str) -> Any:
    return recipe(function, INPUTS, code={"factory": f"cross_models.py:{function}"})


def one_example() -> dict[str, Any]:
    tf = load_tensorflow()
    return {
        name: tf.reshape(tf.constant(values[:1]), [1, *INPUTS[name].get("shape", [])]) for name, values in SENT.items()
    }


@pytest.fixture(scope="module", params=["build", "build_3", "build_joins"])
def crosses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(told(request.param), one_example(), tmp_path_factory.mktemp("crosses"))


def found_of(made: Made) -> Mapping[str, Any]:
    return JOINED if made.job.code.factory.endswith("joins") else FOUND


def test_cross_in_the_graph_becomes_data(crosses: Made) -> None:
    wanted = found_of(crosses)
    specs = {spec.table: spec for spec in crosses.traced.spec.features.values() if isinstance(spec, FeatureSpec)}
    assert set(specs) == {f"tables.{name}" for name in wanted}
    for name, (reads, rule, keys) in wanted.items():
        spec = specs[f"tables.{name}"]
        assert (spec.reads, spec.rule, spec.keys, spec.kind) == (reads, rule, keys, "single")
        assert spec.unknown == (Unknown(rule="row", row=5) if name == "static" else None)


def test_crosses_give_the_original_s_rows(crosses: Made, tmp_path: Path) -> None:
    hold(crosses, tmp_path, Examples(7, {name: Column(values) for name, values in SENT.items()}))
    hold(crosses, tmp_path)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("build_squared", r"operation '.*' \(SparseToDense\) \(cross_models.py:\d+\).*cross inputs of one value"),
        (
            "build_text",
            r"its ids are computed by operation .*\(cross_models.py:\d+\).*let callers send the words",
        ),
        ("build_padded", r"operation '.*' \(StringJoin\) \(cross_models.py:\d+\).*tf.strings.as_string of integers"),
    ],
)
def test_cross_that_no_rule_tells_names_the_line_and_the_cure(function: str, message: str) -> None:
    job = recipe(function, INPUTS, code={"factory": f"cross_models.py:{function}", "inline_bytes_max": 1000})
    with pytest.raises(NotConvertible, match=message):
        trace_towers(job, HERE)
