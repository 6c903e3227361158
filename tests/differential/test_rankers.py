"""Rankers as users write them: what both transports serve equals what the trained model gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client, RowcastError

from export.graphs.loading import load_tensorflow
from tests.cases.models.recipe_parts import FLOAT, ID, RAGGED, SPARSE, STRING, several, weights
from tests.differential.served_rankers import (
    Inputs,
    RankerService,
    assert_ranked,
    write_recipe,
)
from tests.models import lookup_rankers as models
from tests.units.export.movies_job import export

pytestmark = pytest.mark.slow

tf = load_tensorflow()
N = 24
Sent = dict[str, Any]
BEYOND = "ids within the tables that the tower reads itself, .* was expected"


@dataclass(frozen=True)
class Ranker:
    """A model, and what is expected of its bundle.

    Attributes:
      factory: The name of the ranker in `models`.
      inputs: The recipe's entry of each input.
      sent: Makes the features of candidates that a client sends.
      tables: The number of tables that the service reads; others stay inside the tower.
      by_tensorflow: Whether the tower's computation is beyond LiteRT.
      rejected: Inputs, each with a value that is rejected and the error's message.
      context: The features of the context; others are those of candidates.
      notes: Words of the notes, each of which names a table or an input.
      code: The recipe's further entries of `code`, from a comma on.
    """

    factory: str
    inputs: Inputs
    sent: Callable[[np.random.Generator], Sent]
    tables: int = 0
    by_tensorflow: bool = False
    rejected: tuple[tuple[str, Any, str], ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    code: str = ", table_threshold = 0"


def bags(
    random: np.random.Generator, low: int, high: int, longest: int = 5, last: int = 3
) -> list[list[int]]:
    """The first is empty; the last has `last` ids: `embedding_lookup_sparse` itself drops empty
    ones there.
    """
    sizes = [0, *random.integers(0, longest + 1, N - 2).tolist(), last]
    return [random.integers(low, high, size).tolist() for size in sizes]


def texts(random: np.random.Generator, *words: str) -> list[str]:
    actual: list[str] = random.choice(words, N).tolist()
    return actual


def text_bags(random: np.random.Generator, *words: str) -> list[list[str]]:
    return [random.choice(words, len(bag)).tolist() for bag in bags(random, 0, 2)]


def watched(random: np.random.Generator) -> Sent:
    actual = random.integers(1, 4000, (N, 5)) * (np.arange(5) < random.integers(1, 6, (N, 1)))
    actual[0, 0] = -7  # to Keras 3, the last but six
    return {
        "user": random.integers(-3000, 3000, N).tolist(),
        "item": random.integers(-4000, 4000, N).tolist(),
        "watched": actual.tolist(),
        "country": texts(random, "de", "fr", "pe", "??"),
    }


def beyond(random: np.random.Generator) -> Sent:
    ids = bags(random, -1 << 12, 1 << 40, last=0)
    ids[3] = [-1 << 12, 7]
    return {
        "words": [
            # TensorFlow leaves ids out whose weight is not positive, but not of a sum.
            {"ids": each, "weights": random.choice([-0.5, 0.0, 0.5, 2.0], len(each)).tolist()}
            for each in ids
        ],
        "history": bags(random, 0, 5000, last=2),
        "tags": random.integers(0, 300, (N, 6)).tolist(),
        "recent": random.integers(-1, 900, (N, 4)).tolist(),
        "item": random.integers(0, 1 << 20, N).tolist(),
        "colours": text_bags(random, "Red", "GREEN", "blue", "grey", "Ö"),
        "terms": text_bags(random, "a!", "b c", "a", "..", ""),
        "city": texts(random, "Berlin", "Bern", "Rome"),
    }


def columns(random: np.random.Generator) -> Sent:
    return {
        "price": (20 * random.random(N)).tolist(),
        "size": random.random((N, 2)).tolist(),
        "shop": random.integers(0, 40, (N, 1)).tolist(),
        "brand": random.integers(0, 30, (N, 1)).tolist(),
        "tags": random.integers(0, 25, (N, 3)).tolist(),
        "color": ["red", "blue", "green", ""] * (N // 4),
        "labels": [{"ids": [3, 11], "weights": [0.5, 2.0]}, {"ids": [7], "weights": [3.0]}]
        * (N // 2),
        "day": random.integers(0, 7, N).tolist(),
        "history": [
            random.integers(0, 50, place % (models.PLACES + 1)).tolist() for place in range(N)
        ],
        "sites": random.integers(0, (100, 60), (N, 2)).tolist(),
    }


RANKERS = [
    Ranker(
        "watched",
        {"user": ID, "watched": several("int64", 5), "country": STRING, "item": ID},
        watched,
        3,
    ),
    Ranker(
        "Bags",
        {
            "tags": RAGGED,
            "words": {"dtype": "int32", "kind": "ragged", "length_max": 5},
            "seen": RAGGED,
            "recent": several("int64", 4),
        },
        lambda r: {
            "words": bags(r, 0, 1 << 30, last=0),
            "seen": bags(r, 0, 5000),
            "recent": r.integers(-2, 1 << 40, (N, 4)).tolist(),
        },
        rejected=(
            ("words", [[1] * 6] * N, "6 values in example 0; a list of at most 5"),
            ("seen", [[9999]] * N, BEYOND),
        ),
        context={"tags": [3, 1 << 33, 3, 77]},
        notes=(
            *("/embeddings", "'words'", "'items'", "'tags'"),
            *(f"inputs.{name}.length_max" for name in ("tags", "words", "seen")),
        ),
    ),
    Ranker(
        "Beyond",
        {
            "words": SPARSE,
            "weights": weights("words", "sparse"),
            "history": RAGGED,
            "tags": several("int64", 6),
            "recent": several("int64", 4),
            "item": ID,
            "colours": {"dtype": "string", "kind": "ragged"},
            "terms": {"dtype": "string", "kind": "sparse"},
            "city": STRING,
        },
        beyond,
        by_tensorflow=True,
        rejected=(("tags", [[9999] * 6] * N, BEYOND),),
        notes=(
            *("'colours'", "'words'", "'tags'", "'cities'"),
            *(f"'columns.{name}_embedding'" for name in ("item", "pair", "recent")),
            "'columns.words_weighted_by_weights_embedding'",
            *(f"inputs.{name}.length_max" for name in ("words", "history", "colours", "terms")),
        ),
    ),
    Ranker(
        "Columns",
        {
            "price": FLOAT,
            "size": several("float32", 2),
            **dict.fromkeys(("shop", "brand"), several("int64", 1)),
            **dict.fromkeys(("tags", "labels"), several("int64", 3)),
            "color": STRING,
            "labels_weights": several("float32", 3) | {"weights_for": "labels"},
            "day": ID,
            "history": several("int64", 5),
            "sites": several("int64", 2),
        },
        columns,
        16,
        code="",
    ),
]


COMPILED = [ranker for ranker in RANKERS if not ranker.by_tensorflow]


def tensors(ranker: Ranker, sent: Sent) -> dict[str, Any]:
    """Returns what a request is to the model itself."""
    made = {}
    for name, entry in ranker.inputs.items():
        owner = entry.get("weights_for")
        values = [each["weights"] for each in sent[owner]] if owner else sent[name]
        if isinstance(values[0], dict):
            values = [value["ids"] for value in values]
        if "kind" in entry:
            made[name] = tf.ragged.constant(values, tf.as_dtype(entry["dtype"]))
            made[name] = made[name].to_sparse() if entry["kind"] == "sparse" else made[name]
        else:
            if "shape" in entry:  # what is left out of a row is padding
                values = [
                    [*value, *[0 if owner else -1] * (entry["shape"][0] - len(value))]
                    for value in values
                ]
            made[name] = tf.constant(values, tf.as_dtype(entry["dtype"]))
    return made


def train(ranker: Ranker, sent: Sent, directory: Path) -> dict[str, Any]:
    """Saves a model; returns its scores."""
    tf.keras.utils.set_random_seed(5)
    model = getattr(models, ranker.factory)()
    context = {name: [value] * N for name, value in ranker.context.items()}
    scores = model(tensors(ranker, sent | context))
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt" / "model"))
    return {"score": scores["score"].numpy()}


def recipe_of(
    ranker: Ranker,
    directory: Path,
    model: str,
) -> Path:
    factory = f"{models.__file__}:{ranker.factory}"
    return write_recipe(
        directory,
        factory,
        ranker.inputs,
        contexts=(*ranker.context,),
        model=model,
        code=ranker.code,
        checkpoint=', object_path = "model"',
    )


def export_trained(ranker: Ranker, sent: Sent, directory: Path, model: str) -> dict[str, Any]:
    """Trains and exports a ranker; returns its scores."""
    trained = train(ranker, sent, directory)
    published = export(recipe_of(ranker, directory, model))
    assert [words for words in ranker.notes if words not in "".join(published.notes)] == []
    page = published.manifest
    assert len(page.tables) == ranker.tables
    kinds = {"saved_model"} if ranker.by_tensorflow else {"saved_model", "litert"}
    assert {form.kind for form in page.towers["ranking"].forms} == kinds
    return trained


def assert_responses(
    client: Client, ranker: Ranker, trained: dict[str, Any], sent: Sent, model: str
) -> None:
    """Checks the scores of candidates, and what is rejected."""
    context = dict(ranker.context)
    assert_ranked(client, trained, sent, context, model)
    for name, value, message in ranker.rejected:
        with pytest.raises(RowcastError, match=message) as rejected:
            client.rank(context, candidate_features={**sent, name: value}, model=model)
        assert rejected.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "ranker",
    [
        # Random models draw each of the columns.
        pytest.param(ranker, marks=pytest.mark.nightly if ranker.factory == "Columns" else ())
        for ranker in COMPILED
    ],
    ids=lambda ranker: ranker.factory,
)
def test_scores_over_both_transports_equal_the_trained_model(
    ranker: Ranker, ranker_service: RankerService, tmp_path: Path
) -> None:
    model = ranker.factory
    sent = ranker.sent(np.random.default_rng(7))
    trained = export_trained(ranker, sent, tmp_path, model)
    ranker_service.publish(tmp_path / "bundles" / model)
    for client in ranker_service.clients:
        assert_responses(client, ranker, trained, sent, model)
    assert not ranker_service.has_loaded_tensorflow


def test_scores_of_a_tower_beyond_litert_equal_the_trained_model(tmp_path: Path) -> None:
    (ranker,) = (each for each in RANKERS if each.by_tensorflow)
    sent = ranker.sent(np.random.default_rng(7))
    trained = export_trained(ranker, sent, tmp_path, "ranker")
    with closing(RankerService(tmp_path / "bundles")) as service:
        service.wait()
        for client in service.clients:
            assert_responses(client, ranker, trained, sent, "ranker")
        assert service.has_loaded_tensorflow
