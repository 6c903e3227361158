"""Rankers as users write them: what both transports serve equals what the trained model gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client, RowcastError

from export.graphs.loading import load_tensorflow
from tests.cases.models.ranker_recipes import LOOKUP_RANKERS
from tests.differential.served_rankers import (
    Inputs,
    RankerService,
    assert_ranked,
    serving,
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
      sent: Makes the features of candidates that a client sends.
      tables: The number of tables that the service reads; others stay inside the tower.
      by_tensorflow: Whether the tower's computation is beyond LiteRT.
      rejected: Inputs, each with a value that is rejected and the error's message.
      code: The recipe's further entries of `code`, from a comma on.
    """

    factory: str
    sent: Callable[[np.random.Generator], Sent]
    tables: int = 0
    heads: tuple[str, ...] = ("score",)
    by_tensorflow: bool = False
    rejected: tuple[tuple[str, Any, str], ...] = ()
    code: str = ", table_threshold = 0"

    @property
    def inputs(self) -> Inputs:
        """The recipe's entry of each input."""
        inputs: Inputs = LOOKUP_RANKERS.variants[self.factory].sections["inputs"]
        return inputs


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


def fields(random: np.random.Generator) -> Sent:
    ids = random.integers(0, models.SIZES, (2, N, models.FIELDS))
    numbers = random.lognormal(0, 2, (N, models.NUMBERS)) * random.choice([1, 1, 1, -1], (N, 1))
    row = np.concatenate([numbers, ids[1] + random.choice([0, 0.5], (N, models.FIELDS))], 1).astype(
        np.float32
    )
    return {"ids": ids[0].tolist(), "row": row.tolist()}


def rules(random: np.random.Generator) -> Sent:
    far = 1 << 60
    return {
        "gender": texts(random, "m", "f", "?"),
        "city": texts(random, "o1", "o19", "", "Zürich"),
        "user": random.integers(0, 10**9, N).tolist(),
        "item": random.integers(0, 6000, N).tolist(),
        "hour": random.uniform(0, 24, N).tolist(),
        **{name: random.integers(-far, far, N).tolist() for name in ("a", "b", "c", "d", "code")},
    }


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
    Ranker("Fields", fields, 4),
    Ranker("Rules", rules, 8, ("finish", "like")),
    Ranker("watched", watched, 3),
    Ranker(
        "Bags",
        lambda r: {
            "tags": bags(r, 0, 1 << 40),
            "words": bags(r, 0, 1 << 30, last=0),
            "seen": bags(r, 0, 5000),
            "recent": r.integers(-2, 1 << 40, (N, 4)).tolist(),
        },
        rejected=(
            ("words", [[1] * 6] * N, "6 values in example 0; a list of at most 5"),
            ("seen", [[9999]] * N, BEYOND),
        ),
    ),
    Ranker("Beyond", beyond, by_tensorflow=True, rejected=(("tags", [[9999] * 6] * N, BEYOND),)),
    Ranker("Columns", columns, 16, code=""),
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
    """Saves a model; returns the scores of its heads."""
    tf.keras.utils.set_random_seed(5)
    model = getattr(models, ranker.factory)()
    scores = model(tensors(ranker, sent))
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt" / "model"))
    return {head: scores[head].numpy() for head in ranker.heads}


def recipe_of(
    ranker: Ranker,
    directory: Path,
    output: str = "",
    contexts: tuple[str, ...] = (),
    model: str = "ranker",
) -> Path:
    factory = f"{models.__file__}:{ranker.factory}"
    message = {"checkpoint": ', object_path = "model"', "output": output}
    return write_recipe(
        directory,
        factory,
        ranker.inputs,
        ranker.heads,
        contexts,
        model,
        code=ranker.code,
        **message,
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankerService]:
    """Serves the rankers that tests publish; none of them needs TensorFlow."""
    root = tmp_path_factory.mktemp("rankers") / "bundles"
    root.mkdir()
    with closing(RankerService(root)) as service:
        yield service


def export_trained(ranker: Ranker, sent: Sent, directory: Path, model: str) -> dict[str, Any]:
    """Trains and exports a ranker; returns the scores of its heads."""
    trained = train(ranker, sent, directory)
    page = export(recipe_of(ranker, directory, model=model)).manifest
    assert len(page.tables) == ranker.tables
    kinds = {"saved_model"} if ranker.by_tensorflow else {"saved_model", "litert"}
    assert {form.kind for form in page.towers["ranking"].forms} == kinds
    return trained


def assert_responses(
    client: Client, ranker: Ranker, trained: dict[str, Any], sent: Sent, model: str
) -> None:
    """Checks the scores of candidates, and what is rejected."""
    assert_ranked(client, trained, sent, {}, model)
    for name, value, message in ranker.rejected:
        with pytest.raises(RowcastError, match=message) as rejected:
            client.rank({}, candidate_features={**sent, name: value}, model=model)
        assert rejected.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("ranker", COMPILED, ids=lambda each: each.factory)
def test_scores_over_both_transports_equal_the_trained_model(
    ranker: Ranker, service: RankerService, tmp_path: Path
) -> None:
    model = ranker.factory
    sent = ranker.sent(np.random.default_rng(7))
    trained = export_trained(ranker, sent, tmp_path, model)
    service.publish(tmp_path / "bundles" / model)
    for client in service.clients:
        assert_responses(client, ranker, trained, sent, model)
    assert not service.has_loaded_tensorflow


def test_scores_of_a_tower_beyond_litert_equal_the_trained_model(tmp_path: Path) -> None:
    (ranker,) = (each for each in RANKERS if each.by_tensorflow)
    sent = ranker.sent(np.random.default_rng(7))
    trained = export_trained(ranker, sent, tmp_path, "ranker")
    with serving(tmp_path / "bundles", by_tensorflow=True) as clients:
        for client in clients:
            assert_responses(client, ranker, trained, sent, "ranker")


def test_bag_of_a_context_beside_bags_of_candidates_equals_the_trained_model(
    service: RankerService, tmp_path: Path
) -> None:
    ranker = next(each for each in RANKERS if each.factory == "Bags")
    tags = [3, 1 << 33, 3, 77]
    sent = ranker.sent(np.random.default_rng(7))
    trained = train(ranker, {**sent, "tags": [tags] * N}, tmp_path)
    model = "context-bags"
    export(recipe_of(ranker, tmp_path, contexts=("tags",), model=model))
    del sent["tags"]
    service.publish(tmp_path / "bundles" / model)
    for client in service.clients:
        assert_ranked(client, trained, sent, {"tags": tags}, model)
