"""Strings that are joined from several inputs, and hashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bundle.format.manifest import JoinedIds
from export.graphs.loading import tf
from export.tensorflow_models.id_rules import crosses
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from tests.export.tensorflow_models.graph.traced_calls import ids, texts, trace

Join = Callable[[Any], Any]


def found(join: Join) -> ResolvedIds | None:
    """Finds the rule of the hash of joined strings."""
    inputs = {"city": texts(), "item": ids(), "column": texts(1), "pair": texts(2)}
    traced = trace(
        lambda features: {"ids": tf.strings.to_hash_bucket_fast(join(features), 50)}, **inputs
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
    ],
)
def test_strings_that_are_joined_in_other_ways_have_no_rule(join: Join) -> None:
    assert found(join) is None
