"""A ranker of a candidate behind a history: what a service responds is what the model gives, and
the history is computed once for all candidates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graphs.loading import load_tensorflow
from tests.differential.random_models.serving import response_to
from tests.differential.served_rankers import write_recipe
from tests.models import sequence_ranker
from tests.units.export.movies_job import export

pytestmark = pytest.mark.slow

tf = load_tensorflow()
INPUTS: dict[str, dict[str, Any]] = {
    "history": {"dtype": "int64", "shape": [sequence_ranker.EVENTS]},
    "movie": {"dtype": "int64"},
}
HEADS = ("click", "like")
COUNTS = (7, 1, 12, 3)
"""The number of candidates of each context."""


def histories() -> NDArray[np.int64]:
    random = np.random.default_rng(3)
    ids = random.integers(1, sequence_ranker.MOVIES, (len(COUNTS), sequence_ranker.EVENTS))
    for context, padding in enumerate((0, 4, sequence_ranker.EVENTS - 1, 11)):
        ids[context, :padding] = 0
    return ids


def scores_of(response: dict[str, Any]) -> list[dict[int, list[float]]]:
    """Returns the scores of the heads by the position of the candidate, for each context."""
    return [
        {
            position: [result["heads"][head][place] for head in HEADS]
            for place, position in enumerate(result["positions"])
        }
        for result in response["results"]
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    directory = tmp_path_factory.mktemp("sequences")
    tf.keras.utils.set_random_seed(5)
    model = sequence_ranker.build()
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt" / "model"))
    recipe = write_recipe(
        directory,
        f"{sequence_ranker.__file__}:build",
        INPUTS,
        HEADS,
        ("history",),
        "random",
        code=", table_threshold = 0",
        checkpoint=', object_path = "model"',
    )
    return directory / "bundles", model, export(recipe)


def test_scores_of_several_contexts_are_those_of_the_model(
    exported: tuple[Path, Any, Any],
) -> None:
    root, model, published = exported
    context_part, candidate_part = published.manifest.towers["ranking"].parts
    assert (context_part.per, candidate_part.is_of_one_context) == ("context", True)
    assert not [note for note in published.notes if "split" in note or "divided" in note]

    random = np.random.default_rng(4)
    movies = [random.integers(1, sequence_ranker.MOVIES, count) for count in COUNTS]
    requests = [
        {
            "context": {"history": history.tolist()},
            "candidate_features": {"movie": ids.tolist()},
        }
        for history, ids in zip(histories(), movies, strict=True)
    ]
    together = scores_of(response_to(root, "rank", {"requests": requests, "heads": [*HEADS]}))
    trained = model(
        {
            "history": tf.constant(histories().repeat(COUNTS, axis=0)),
            "movie": tf.constant(np.concatenate(movies)),
        }
    )
    expected = np.stack([trained[head].numpy() for head in HEADS], axis=1)
    firsts = np.cumsum([0, *COUNTS])
    for context, count in enumerate(COUNTS):
        actual = [together[context][position] for position in range(count)]
        wanted = expected[firsts[context] : firsts[context + 1]]
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
        alone = {"requests": [requests[context]], "heads": [*HEADS]}
        assert scores_of(response_to(root, "rank", alone)) == [together[context]]
