"""Strings that are joined from several inputs, and hashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bundle.format.manifest import (
    Cast,
    ChainedIds,
    ComputedIds,
    CrossedIds,
    CrossKey,
    IdOperation,
    JoinedIds,
    TextStep,
    VocabularyIds,
)
from export.graphs.loading import tf
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules import crosses
from export.tensorflow_models.id_rules.integers import WRAPPED
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from tests.export.tensorflow_models.graph.traced_calls import ids, numbers, texts, trace

Join = Callable[[Any], Any]
INPUTS = {
    "city": texts(),
    "item": ids(),
    "age": numbers(),
    "column": texts(1),
    "pair": texts(2),
    "items": ids(2),
    "tags": tf.RaggedTensorSpec([None, None], tf.string),
    "one": ids(1),
    "other": ids(1),
}
NINE = ComputedIds(operations=(IdOperation(do="remainder", by=9),))
ONE_MORE = ComputedIds(operations=(IdOperation(do="add", by=1),))


def found(join: Join) -> ResolvedIds | None:
    """Finds the rule of the hash of joined strings."""
    traced = trace(
        lambda features: {"ids": tf.strings.to_hash_bucket_fast(join(features), 50)}, **INPUTS
    )
    return crosses.find(traced.results["ids"], traced.calls, 50)


def number(features: Any) -> Any:
    return tf.strings.as_string(features["item"])


@pytest.mark.parametrize(
    ("join", "sources", "around"),
    [
        pytest.param(
            lambda features: tf.strings.join([features["city"], number(features)], "_"),
            ["city", "item"],
            ("", "_", ""),
            id="joined",
        ),
        pytest.param(
            lambda features: "<" + features["city"] + ", " + number(features) + ">",
            ["city", "item"],
            ("<", ", ", ">"),
            id="added",
        ),
        *(
            pytest.param(
                lambda features, axis=axis: tf.strings.reduce_join(
                    tf.stack([features["city"], number(features)], axis), axis, separator="x"
                ),
                ["city", "item"],
                ("", "x", ""),
                id=f"stacked along axis {axis}",
            )
            for axis in (1, -1)
        ),
        pytest.param(
            lambda features: tf.strings.join(["a", "b", features["city"], "c"], "-"),
            ["city"],
            ("a-b-", "-c"),
            id="texts around one",
        ),
    ],
)
def test_joined_strings_are_a_rule_of_their_inputs(
    join: Join, sources: list[str], around: tuple[str, ...]
) -> None:
    resolved = found(join)
    assert resolved is not None
    assert isinstance(resolved.rule, JoinedIds)
    assert [each.name for each in resolved.sources] == sources
    assert (len(resolved.rule.keys), resolved.rule.texts) == (len(sources), around)


@pytest.mark.parametrize(
    "join",
    [
        pytest.param(lambda features: tf.strings.reduce_join(features["pair"], 1), id="one input"),
        pytest.param(
            lambda features: tf.strings.reduce_join(
                tf.stack([features["column"], features["column"]], 1), 1
            ),
            id="a stack of columns",
        ),
        pytest.param(
            lambda features: tf.strings.reduce_join(
                tf.stack([features["city"], features["city"]], 0), 0
            ),
            id="stacked in front of the batch",
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [features["city"], tf.strings.as_string(features["item"], width=3)]
            ),
            id="padded numbers",
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [features["city"], tf.strings.as_string(features["item"], width=1)]
            ),
            id="numbers of a width",
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [features["city"], tf.strings.as_string(tf.cast(features["item"], tf.float32))]
            ),
            id="fractions",
        ),
        pytest.param(
            lambda features: tf.strings.join([features["city"], features["pair"][:, 0]]),
            id="one of several",
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [features["city"], number({"item": features["item"] ** 2})]
            ),
            id="computed by no rule",
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [
                    features["city"],
                    tf.strings.as_string(tf.cast(features["age"], tf.int64)),
                ]
            ),
            id="numbers that are cast",
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [features["city"], tf.strings.as_string(features["items"])[:, 0]]
            ),
            id="one of several numbers",
        ),
        pytest.param(
            lambda features: tf.strings.join([features["tags"].values, "x"]), id="ragged strings"
        ),
        pytest.param(
            lambda features: tf.strings.join(
                [features["city"], tf.strings.substr(features["city"], 0, 1)]
            ),
            id="a part of a string",
        ),
        pytest.param(number, id="nothing is joined"),
        pytest.param(
            lambda features: tf.strings.join([tf.fill(tf.shape(features["city"]), "a"), "b"]),
            id="no input",
        ),
    ],
)
def test_strings_that_are_joined_in_other_ways_have_no_rule(join: Join) -> None:
    assert found(join) is None


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (lambda f: f["city"], CrossKey(dtype="string")),
        (
            lambda f: tf.strings.lower(f["city"]),
            CrossKey(dtype="string", steps=(TextStep(do="lower"),)),
        ),
        (lambda f: tf.strings.as_string(f["item"]), CrossKey(dtype="int64")),
        (lambda f: tf.strings.as_string(f["item"], width=0), CrossKey(dtype="int64")),
        (
            lambda f: tf.strings.as_string(f["item"] % 9),
            CrossKey(dtype="int64", ids=NINE, rows=9),
        ),
        # Numbers without a limit, and those that wrap around first, have any number of rows.
        (lambda f: tf.strings.as_string(f["item"] + 1), CrossKey(dtype="int64", ids=ONE_MORE)),
        (
            lambda f: tf.strings.as_string(tf.cast(f["item"], tf.int32)),
            CrossKey(dtype="int64", ids=WRAPPED),
        ),
        (
            lambda f: tf.strings.as_string(tf.cast(f["item"], tf.int32) % 9),
            CrossKey(dtype="int64", ids=ChainedIds(rules=(WRAPPED, NINE))),
        ),
    ],
)
def test_key_of_a_joined_string_says_what_its_input_goes_through(values: Join, key: Any) -> None:
    resolved = found(lambda features: tf.strings.join([values(features), "!"]))
    assert resolved is not None
    assert isinstance(resolved.rule, JoinedIds)
    assert resolved.rule.keys == (key,)


def cross(features: Any, *names: str, buckets: int = 30) -> Any:
    """Returns the hashes of the values of several inputs together."""
    indices, values, shape = tf.raw_ops.SparseCross(
        indices=[],
        values=[],
        shapes=[],
        dense_inputs=[features[name] for name in names],
        hashed_output=True,
        num_buckets=buckets,
        hash_key=7,
        out_type=tf.int64,
        internal_type=tf.int64,
    )
    return tf.sparse.to_dense(tf.SparseTensor(indices, values, shape))


@pytest.mark.parametrize(
    ("names", "buckets", "is_rule"),
    [
        (("one", "other"), 30, True),
        (("one", "other"), 1, True),
        # Hashes of any size, one input alone, and several values of one.
        (("one", "other"), 0, False),
        (("one",), 30, False),
        (("one", "items"), 30, False),
    ],
)
def test_cross_of_one_value_of_each_of_several_inputs_is_a_rule(
    names: tuple[str, ...], buckets: int, is_rule: bool
) -> None:
    traced = trace(lambda features: {"ids": cross(features, *names, buckets=buckets)}, **INPUTS)
    resolved = crosses.find(traced.results["ids"], traced.calls, 30)
    if is_rule:
        assert resolved is not None
        assert [each.name for each in resolved.sources] == list(names)
        keys = (CrossKey(dtype="int64"),) * len(names)
        assert resolved.rule == CrossedIds(keys=keys, buckets=buckets, hash_key=7)
    else:
        assert resolved is None


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(
            lambda features: tf.sparse.to_dense(tf.sparse.from_dense(features["items"])),
            id="no cross",
        ),
        pytest.param(
            lambda features: tf.sparse.to_dense(
                tf.sparse.cross_hashed([features["words"], features["one"]], 30)
            ),
            id="sparse input",
        ),
    ],
)
def test_other_sparse_values_have_no_rule(call: Join) -> None:
    words = tf.SparseTensorSpec([None, None], tf.string)
    traced = trace(lambda features: {"ids": call(features)}, **INPUTS, words=words)
    assert crosses.find(traced.results["ids"], traced.calls, 30) is None


def resolved(name: str, *keys: tuple[str, ...], **how: Any) -> ResolvedIds:
    return ResolvedIds(Source(name, "dense"), keys=keys, **how)


LISTED = VocabularyIds(vocabulary="vocabulary")
CROSSED = resolved(
    "city",
    ("x", "y"),
    rule=CrossedIds(
        keys=(CrossKey(dtype="int64"), CrossKey(dtype="string", ids=LISTED)), buckets=50
    ),
)


def test_cross_of_computed_values_has_their_rules_and_vocabularies() -> None:
    computed = resolved("item", rule=NINE)
    listed = resolved("kind", ("p",), rule=LISTED)
    plain = resolved("city")
    first = crosses.crossed_by([computed, plain], CROSSED)
    assert first is not None
    assert isinstance(first.rule, CrossedIds)
    assert first.rule.keys == (
        CrossKey(dtype="int64", ids=NINE, rows=9),
        CrossKey(dtype="string", ids=LISTED),
    )
    assert first.keys == (("x", "y"),)
    second = crosses.crossed_by([listed, plain], CROSSED)
    assert second is not None
    assert second.keys == (("p",), ("x", "y"))


def test_cross_of_numbers_that_are_cast_has_no_rule() -> None:
    cast = resolved("age", cast=Cast(of="float32", to="int64"))
    assert crosses.crossed_by([cast, resolved("city")], CROSSED) is None
