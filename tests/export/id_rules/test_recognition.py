from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from bundle.format.manifest import (
    BucketIds,
    Cast,
    ComputedIds,
    HashIds,
    IdOperation,
    IdRule,
    Unknown,
    VocabularyIds,
)
from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.specs import DenseSpec, FeatureSpec
from export.model.tracing import trace_towers
from export.verify.examples import Examples
from tests.export.lookups.gathering import HERE, Made, hold, make, recipe

ROWS = 20_000
TEXTS = np.array(["a", "zz", "c", "b", "", "\u00e9", "a"], object)
WHOLE = np.array([7, 5, 10, 30, 0, 4, 20])
SIGNED = np.array([0, -1, 100, 1 << 62, -(1 << 63), 99, -205])
ABOVE = np.array([1, 2, 100, 5, ROWS, 99, 1])
NUMBERS = np.array([0.0, 0.5, 1.0, 2.0, 2.5, 3.0, -1.0], np.float32)
FAR = np.array([5, ROWS, -1, 3, ROWS - 1, 0, 1 << 40])
WRAPPED = np.array([(1 << 31) - 1, -(1 << 31), 1 << 40, 7, -7, (1 << 62) + 5, 2_863_311_532])
POSITIVE = np.array([0, -1, 100, 1 << 62, -205, 99, -100])
NARROWED = {"wrapped", "from_one_32", "cut_modulo", "multiplied_32", "clipped_32", "absolute_32"}
ABC, TENS, AGES = ("a", "b", "c"), (10, 20, 30), (0.5, 2.0, 3.0)


def computed(*operations: str | tuple[str, int]) -> ComputedIds:
    told = [(each, None) if isinstance(each, str) else each for each in operations]
    return ComputedIds(operations=tuple(IdOperation.model_validate({"do": do, "by": by}) for do, by in told))


SEVERAL = VocabularyIds(vocabulary="strings", first_row=5, oov_buckets=5, oov_first_row=0)
MASKED = VocabularyIds(vocabulary="strings", first_row=3, oov_buckets=2, oov_first_row=1, mask="")
REMAINDERS = VocabularyIds(
    vocabulary="integers", first_row=5, oov_buckets=4, oov_first_row=1, oov_hash="modulo", mask=0
)
RULES: dict[str, tuple[Any, IdRule | None, int | None, tuple[Any, ...]]] = {
    "strings": (TEXTS, VocabularyIds(vocabulary="strings", first_row=1), 0, ABC),
    "strings_3": (TEXTS, VocabularyIds(vocabulary="strings", first_row=1), 0, ABC),
    "several": (TEXTS, SEVERAL, None, ABC),
    "masked": (TEXTS, MASKED, None, ABC),
    "masked_one": (TEXTS, VocabularyIds(vocabulary="strings", first_row=2, mask=""), 1, ABC),
    "remainders": (WHOLE, REMAINDERS, None, TENS),
    "words": (TEXTS, VocabularyIds(vocabulary="strings", oov_buckets=4, oov_first_row=3), None, ABC),
    "integers": (WHOLE, VocabularyIds(vocabulary="integers", first_row=1), 0, TENS),
    "static": (WHOLE, VocabularyIds(vocabulary="static"), 2, (7, 5)),
    "hashing": (WHOLE, HashIds(buckets=ROWS), None, ()),
    "hashed_integers": (WHOLE, HashIds(buckets=ROWS), None, ()),
    "hashed_strings": (TEXTS, HashIds(buckets=100, first_row=7), None, ()),
    "ages": (NUMBERS, BucketIds(boundaries=AGES), None, ()),
    "ages_3": (NUMBERS, BucketIds(boundaries=AGES), None, ()),
    "buckets": (NUMBERS, BucketIds(boundaries=(1.0, 2.0)), None, ()),
    "default": (FAR, None, 3, ()),
    "salted": (WHOLE, HashIds(buckets=ROWS, key=(133, 133)), None, ()),
    "salted_3": (TEXTS, HashIds(buckets=299, first_row=1, key=(2, 5), mask=""), None, ()),
    "masked_hash": (WHOLE, HashIds(buckets=299, first_row=1, mask=7), None, ()),
    "masked_hash_3": (TEXTS, HashIds(buckets=299, first_row=1, mask="b"), None, ()),
    "strong": (TEXTS, HashIds(buckets=ROWS, key=(1, -2)), None, ()),
    "strong_integers": (WHOLE, HashIds(buckets=90, first_row=5, key=(3, 4)), None, ()),
    "modulo": (SIGNED, computed(("remainder", 100)), None, ()),
    "remainder": (WHOLE, computed(("truncated_remainder", 100)), None, ()),
    "from_one": (ABOVE, computed(("add", -1)), None, ()),
    "from_one_32": (ABOVE, computed(("add", -2), "int32", ("add", 1), "int32"), None, ()),
    "shifted": (SIGNED, computed(("add", -3), ("remainder", 100), ("add", 7)), None, ()),
    "quotient": (ABOVE, computed(("divide", 100)), None, ()),
    "digit": (SIGNED, computed(("divide", 10), ("remainder", 10)), None, ()),
    "wrapped": (FAR, HashIds(buckets=ROWS), None, ()),
    "cut_modulo": (WRAPPED, computed(("add", 2), "int32", ("remainder", 100)), None, ()),
    "cut_later": (WRAPPED, computed(("add", 2), "int32", ("remainder", 100)), None, ()),
    "multiplied": (SIGNED, computed(("multiply", 3), ("remainder", 100)), None, ()),
    "multiplied_32": (WRAPPED, computed(("multiply", 3), "int32", ("remainder", 100)), None, ()),
    "linear": (WHOLE, computed(("multiply", 2), ("add", 1)), None, ()),
    "limited": (ABOVE, computed(("at_most", 99)), None, ()),
    "clipped": (SIGNED, computed(("at_most", ROWS - 1), ("at_least", 0)), None, ()),
    "clipped_32": (WRAPPED, computed(("at_most", 99), ("at_least", 5)), None, ()),
    "absolute": (POSITIVE, computed("absolute", ("remainder", 100)), None, ()),
    "absolute_32": (WRAPPED, computed("absolute", "int32", ("at_least", 0), ("remainder", 100)), None, ()),
    "reversed": (SIGNED, computed(("remainder", 100), ("multiply", -1), ("add", 99)), None, ()),
    "several_steps": (
        SIGNED,
        computed(("remainder", 1000), ("divide", 10), ("at_most", 50), ("multiply", 2), ("add", 1)),
        None,
        (),
    ),
}
"""Input -> values, and what is found of it: rule, row of unknown ids, keys."""


def dtype_of(values: Any) -> str:
    return {"O": "string", "f": "float32", "i": "int64"}[values.dtype.kind]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Made:
    tf = load_tensorflow()
    inputs = {name: {"dtype": dtype_of(values)} for name, (values, *_) in RULES.items()}
    given = {name: tf.constant(values[:1], dtype_of(values)) for name, (values, *_) in RULES.items()}
    return make(recipe("build_rules", inputs), given, tmp_path_factory.mktemp("rules"))


@pytest.mark.parametrize("name", RULES)
def test_rule_in_the_graph_becomes_data(rules: Made, name: str) -> None:
    _, rule, unknown, keys = RULES[name]
    spec = rules.traced.spec.features[name]
    assert isinstance(spec, FeatureSpec)
    assert (spec.rule, spec.keys) == (rule, (keys,) if keys else ())
    assert spec.unknown == (None if unknown is None else Unknown(rule="row", row=unknown))
    assert spec.cast == (Cast(of="int64", to="int32") if name in NARROWED else None)


def test_rules_in_the_graph_give_the_original_s_rows(rules: Made, tmp_path: Path) -> None:
    hold(rules, tmp_path, Examples(7, {name: Column(values) for name, (values, *_) in RULES.items()}))


@pytest.mark.parametrize(
    ("function", "dtype", "message"),
    [
        (
            "build_squared",
            "int64",
            r"operation '.*' \(Mul\) \(gather_models.py:\d+\).*code.inline_bytes_max.*sums, prod",
        ),
        (
            "build_python",
            "int64",
            r"operation '.*' \(EagerPyFunc\) \(gather_models.py:\d+\).*TensorFlow's own operations",
        ),
        ("build_weak", "string", r"operation '.*' \(StringToHashBucket\) \(gather_models.py:\d+\)"),
    ],
)
def test_rule_that_is_not_known_names_the_line_and_the_cure(function: str, dtype: str, message: str) -> None:
    job = recipe(function, {function.removeprefix("build_"): {"dtype": dtype}}, code={"inline_bytes_max": 1000})
    with pytest.raises(NotConvertible, match=message):
        trace_towers(job, HERE)


def test_rule_that_is_not_known_lets_a_table_stay_inside_within_the_limit(tmp_path: Path) -> None:
    tf = load_tensorflow()
    job = recipe("build_squared", {"squared": {"dtype": "int64"}})
    made = make(job, {"squared": tf.constant([1], tf.int64)}, tmp_path)
    assert not made.traced.spec.tables
    (note,) = made.traced.notes
    assert "table 'table' of 20000 rows (312.5 KiB) stays inside the towers: its ids are computed by operation" in note
    hold(made, tmp_path, Examples(3, {"squared": Column(np.array([5, 105, 100]))}))


def test_python_function_in_a_tower_is_refused() -> None:
    with pytest.raises(NotConvertible, match=r"tf.py_function.*gather_models.py:\d+"):
        trace_towers(recipe("build_python", {"python": {"dtype": "int64"}}), HERE)


def test_strings_that_no_rule_tells_go_into_the_tower() -> None:
    traced = trace_towers(recipe("build_weak", {"weak": {"dtype": "string"}}), HERE)
    assert traced.spec.features == {"weak": DenseSpec("weak", "string", ())}
    assert "(StringToHashBucket)" in traced.notes[0]
