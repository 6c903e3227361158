"""Looked-up ids that a tower reads as numbers, as in the mask of an attention layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from export.front_end.calls import Call
from export.front_end.specs import FeatureSpec
from export.graphs.loading import tf
from export.graphs.tensors import input_spec
from export.recipe.schema import InputSection
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.graph.tower_results import Returned
from export.tensorflow_models.model.looked_up_numbers import replace_looked_up_numbers
from export.tensorflow_models.model.tracing import trace_towers
from export.towers.compiled import reason_not_compiled
from export.towers.prepared_towers import arrange_towers
from export.verify.examples import Examples
from tests.id_graphs import hash_ids
from tests.units.export.parity_checks import check_parity, check_self_contained
from tests.units.export.tensorflow_models.graph.traced_calls import trace
from tests.units.export.traced_models import (
    IDS,
    MODELS,
    TracedCheckpoint,
    recipe,
    save_and_trace,
    tower_recipe,
)

LENGTH = 6
INPUTS: dict[str, Any] = {"history": {**IDS, "shape": [LENGTH]}, "item": IDS}


@pytest.fixture(
    scope="module",
    params=[
        "2_mask_zero",
        pytest.param("2_attention_mask", marks=pytest.mark.slow),
        pytest.param("3_mask_zero", marks=pytest.mark.slow),
        "3_attention_mask",
    ],
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TracedCheckpoint:
    factory = f"attention_over_lookups.py:build_{request.param}"
    sections = {
        "code": {"factory": factory, "table_threshold": 0},
        "features": {"item": {"role": "candidate"}},
    }
    job = recipe(factory, INPUTS, {"tower": {"role": "ranking"}}, sections)
    called = {"history": tf.zeros([2, LENGTH], tf.int64), "item": tf.zeros([2], tf.int64)}
    return save_and_trace(job, tmp_path_factory.mktemp(request.param), called)


def test_mask_of_looked_up_ids_is_computed_by_the_service_and_the_tower_compiles(
    checkpoint: TracedCheckpoint, tmp_path: Path
) -> None:
    numbers = checkpoint.model.spec.features["history@indicator"]
    assert isinstance(numbers, FeatureSpec)
    assert (numbers.entry.ordinal, numbers.entry.length) == (True, LENGTH)
    assert set(checkpoint.model.spec.features) == {"history@movies", "history@indicator", "item"}

    _, splits = arrange_towers(checkpoint.partitioned, checkpoint.job, checkpoint.features)
    assert splits["tower"].parts

    random = np.random.default_rng(4)
    history = np.where(random.random((40, LENGTH)) < 0.4, 0, random.integers(95, 165, (40, LENGTH)))
    history[:, 0] = 100  # Attention to nothing but padding is not a number in every library.
    columns = {
        "history": Column(history.ravel(), np.arange(0, 40 * LENGTH + 1, LENGTH)),
        "item": Column(random.integers(95, 165, 40)),
    }
    check_parity(checkpoint, tmp_path, Examples(40, columns))


@pytest.mark.slow
def test_mask_of_looked_up_ids_is_computed_in_a_self_contained_saved_model(
    checkpoint: TracedCheckpoint, tmp_path: Path
) -> None:
    check_self_contained(checkpoint, tmp_path)


def test_hashes_that_a_tower_reads_as_numbers_are_computed_by_the_service(tmp_path: Path) -> None:
    job = tower_recipe("attention_over_lookups.py:build_hashed_numbers", {"item": IDS})
    checkpoint = save_and_trace(job, tmp_path)
    (numbers,) = checkpoint.model.spec.features.values()
    assert isinstance(numbers, FeatureSpec)
    assert (numbers.entry.ordinal, numbers.rule) == (True, hash_ids(10, "int64"))
    check_parity(checkpoint, tmp_path)


WORD = InputSection(dtype="string")
WORDS = InputSection(dtype="string", shape=(3,))
BAG = InputSection(dtype="string", kind="ragged")
EXACT_MAX = 1 << 24
"""The largest number of integers that float32 holds exactly."""


def numbers_of(
    compute: Callable[[Any], Any], values: Any = (), **parts: InputSection
) -> tuple[list[dict[str, Any]], Any]:
    """Returns the features that numbers become, and the result for their values.

    Args:
      compute: Computes the result of a call from its inputs.
      values: Of the features.
      parts: The inputs.
    """
    types = {name: input_spec(part) for name, part in parts.items()}
    traced = trace(lambda inputs: {"result": compute(inputs)}, **types)
    returned = Returned(traced.results)
    call = TracedCall(Call(), traced.function, traced.inputs, {}, returned, parts, [])
    replaced = replace_looked_up_numbers(call, list(traced.results.values()))
    entries = [feature.entry.model_dump(exclude_defaults=True) for _, feature in replaced]
    for lookup, _ in replaced:
        lengths = [] if lookup.length is None else [lookup.length]
        assert lookup.activation.shape.as_list() == [None, *lengths, 1]
    if not values:
        return entries, None
    feeds = [lookup.activation for lookup, _ in replaced]
    results = traced.function.prune(feeds, traced.results)(*map(tf.constant, values))
    return entries, results["result"].numpy().tolist()


def hashed(words: Any, buckets: int = 10) -> Any:
    return tf.strings.to_hash_bucket_fast(words, buckets)


def list_of_words(default: int) -> Any:
    keys = tf.constant(["a", "b", "c"])
    positions = tf.constant([0, 1, 2], tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, positions), default)


WITH_OTHERS = list_of_words(0)
"""Gives other words position 0."""
WITHOUT_OTHERS = list_of_words(-1)


def hashed_others(word: Any) -> Any:
    """Returns positions of words, and those of others behind them by their hash."""
    positions = WITHOUT_OTHERS.lookup(word)
    return tf.where(tf.equal(positions, -1), hashed(word, 4) + 3, positions)


def ordinal(name: str, rows: int, **fields: Any) -> dict[str, Any]:
    """Returns what is special about the feature of a number."""
    defaults = {"kind": "single", "table": "", "role": "context", "inputs": (name,)}
    return {**defaults, "indicator": rows, "ordinal": True, **fields}


HASHED = {"ids": hash_ids(10, "string").model_dump(exclude_defaults=True)}


def test_number_of_a_word_is_read_as_a_feature_of_one_number() -> None:
    entries, results = numbers_of(
        lambda inputs: tf.cast(hashed(inputs["word"]), tf.float32) * 2.0,
        [[[3.0], [5.0]]],
        word=WORD,
    )
    assert entries == [ordinal("word", 10, **HASHED)]
    assert results == [6.0, 10.0]


def test_numbers_of_several_words_are_read_as_a_sequence() -> None:
    entries, results = numbers_of(
        lambda inputs: tf.cast(hashed(inputs["words"]), tf.float32),
        [[[[3.0], [5.0], [7.0]]]],
        words=WORDS,
    )
    assert entries == [ordinal("words", 10, kind="sequence", length=3, **HASHED)]
    assert results == [[3.0, 5.0, 7.0]]


def test_numbers_behind_one_that_is_a_feature_are_none() -> None:
    entries, results = numbers_of(
        lambda inputs: tf.cast(tf.cast(hashed(inputs["word"]), tf.int32) % 5, tf.float32),
        [[[3.0]]],
        word=WORD,
    )
    assert [feature["indicator"] for feature in entries] == [5]
    assert results == [3.0]


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda numbers: tf.cast(numbers[:, 1], tf.float32), id="one of several"),
        pytest.param(
            lambda numbers: tf.cast(tf.reduce_max(numbers, 1), tf.float32), id="the largest"
        ),
    ],
)
def test_numbers_are_features_where_those_computed_from_them_are_not(
    compute: Callable[[Any], Any],
) -> None:
    entries, results = numbers_of(
        lambda inputs: compute(hashed(inputs["words"])), [[[[3.0], [7.0], [5.0]]]], words=WORDS
    )
    assert entries == [ordinal("words", 10, kind="sequence", length=3, **HASHED)]
    assert results == [7.0]


def test_number_that_several_results_read_is_one_feature() -> None:
    def compute(inputs: Any) -> Any:
        number = hashed(inputs["word"])
        return tf.cast(number, tf.float32) + tf.cast(number > 3, tf.float32)

    entries, results = numbers_of(compute, [[[3.0], [4.0]]], word=WORD)
    assert entries == [ordinal("word", 10, **HASHED)]
    assert results == [3.0, 5.0]


@pytest.mark.parametrize(
    ("part", "values", "result"),
    [(WORD, [[2.0]], [2.0]), (WORDS, [[[2.0], [0.0], [1.0]]], [[2.0, 0.0, 1.0]])],
    ids=["single", "several"],
)
def test_numbers_of_unknown_shape_have_that_of_their_input(
    part: InputSection, values: Any, result: Any
) -> None:
    def compute(inputs: Any) -> Any:
        numbers = tf.raw_ops.LookupTableFindV2(
            table_handle=WITH_OTHERS.resource_handle,
            keys=inputs["word"],
            default_value=tf.constant(0, tf.int64),
        )
        assert numbers.shape.rank is None
        return tf.cast(numbers, tf.float32)

    entries, results = numbers_of(compute, [values], word=part)
    assert [feature["indicator"] for feature in entries] == [3]
    assert results == result


@pytest.mark.parametrize(
    ("compute", "rows"),
    [
        pytest.param(lambda word: hashed(word, 1), None, id="one bucket"),
        pytest.param(lambda word: hashed(word, 2), 2, id="two buckets"),
        pytest.param(lambda word: hashed(word, EXACT_MAX), EXACT_MAX, id="exact"),
        pytest.param(lambda word: hashed(word, EXACT_MAX + 1), None, id="beyond float32"),
        pytest.param(WITH_OTHERS.lookup, 3, id="a list with a row of others"),
        pytest.param(WITHOUT_OTHERS.lookup, None, id="a list without a row of others"),
        pytest.param(hashed_others, 7, id="a list with rows of others"),
        pytest.param(
            lambda word: hashed(tf.strings.as_string(WITHOUT_OTHERS.lookup(word)), 7),
            7,
            id="hash of a list",
        ),
    ],
)
def test_number_becomes_a_feature_if_every_word_has_one_that_is_exact(
    compute: Callable[[Any], Any], rows: int | None
) -> None:
    entries, _ = numbers_of(lambda inputs: tf.cast(compute(inputs["word"]), tf.float32), word=WORD)
    assert [feature["indicator"] for feature in entries] == ([] if rows is None else [rows])


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda inputs: tf.cast(inputs["item"] % 9, tf.float32), id="no word"),
        pytest.param(
            lambda inputs: tf.cast(hashed(inputs["bag"].values), tf.float32), id="ragged words"
        ),
    ],
)
def test_numbers_of_no_dense_words_are_no_features(compute: Callable[[Any], Any]) -> None:
    parts = {"item": InputSection(dtype="int64"), "bag": BAG}
    assert numbers_of(compute, **parts) == ([], None)


def test_number_of_one_of_several_words_in_a_tensor_of_unknown_shape_is_no_feature() -> None:
    def compute(inputs: Any) -> Any:
        numbers = tf.raw_ops.LookupTableFindV2(
            table_handle=WITH_OTHERS.resource_handle,
            keys=inputs["words"][:, 1],
            default_value=tf.constant(0, tf.int64),
        )
        return tf.cast(numbers, tf.float32)

    assert numbers_of(compute, words=WORDS) == ([], None)


def test_numbers_of_two_inputs_are_features_of_the_one_that_holds_words() -> None:
    entries, _ = numbers_of(
        lambda inputs: tf.cast(hashed(inputs["word"]) * inputs["item"], tf.float32),
        item=InputSection(dtype="int64"),
        word=WORD,
    )
    assert entries == [ordinal("word", 10, **HASHED)]


def test_tower_with_a_table_that_no_rule_describes_names_the_line_and_a_remedy() -> None:
    job = tower_recipe("attention_over_lookups.py:build_numbers", {"item": IDS})
    traced = trace_towers(job, MODELS)

    reason = reason_not_compiled(traced.towers[0])

    assert "LookupTableFindV2 (attention_over_lookups.py:" in reason
    assert "pass the result to the model as an input" in reason
    assert "HashTableV2" not in reason
