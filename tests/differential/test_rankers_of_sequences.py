"""A ranker of a candidate behind a history: what a service responds is what the model gives, and
the history is computed once for all candidates.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graphs.loading import load_tensorflow
from tests.differential.random_models.serving import response_to, responses_to
from tests.differential.served_rankers import Inputs, write_recipe
from tests.models import sequence_ranker
from tests.units.export.movies_job import export

pytestmark = pytest.mark.slow

tf = load_tensorflow()
INPUTS: dict[str, dict[str, Any]] = {
    "history": {"dtype": "int64", "shape": [sequence_ranker.EVENTS], "pad": 0},
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


def export_of(
    directory: Path, function: str, seed: int = 5, inputs: Inputs = INPUTS
) -> tuple[Path, Any, Any]:
    """Exports a model; returns the root of the bundles, the model and what was published."""
    tf.keras.utils.set_random_seed(seed)
    model = getattr(sequence_ranker, function)()
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt" / "model"))
    recipe = write_recipe(
        directory,
        f"{sequence_ranker.__file__}:{function}",
        inputs,
        HEADS,
        ("history",),
        "random",
        code=", table_threshold = 0",
        checkpoint=', object_path = "model"',
    )
    return directory / "bundles", model, export(recipe)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    return export_of(tmp_path_factory.mktemp("sequences"), "build")


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


def growing_histories(count: int) -> Iterator[list[int]]:
    """Yields histories of a few people: most have new events, others lost or changed some, or are
    those of somebody else; several begin alike.
    """
    random = np.random.default_rng(6)

    def events(size: int) -> list[int]:
        return [int(movie) for movie in random.integers(1, sequence_ranker.MOVIES, size)]

    shared = events(9)
    people = [shared + events(size) for size in (1, 3, 20)] + [events(size) for size in (2, 12)]
    for _ in range(count):
        person = int(random.integers(len(people)))
        history = people[person]
        chance = random.random()
        if chance < 0.6:
            history = history + events(int(random.integers(0, 4)))
        elif chance < 0.7:
            history = history[: -int(random.integers(1, 3))] or events(1)
        elif chance < 0.8:
            changed = int(random.integers(len(history)))
            history = [*history[:changed], *events(1), *history[changed + 1 :]]
        elif chance < 0.9:
            history = people[int(random.integers(len(people)))]
        if len(history) > sequence_ranker.EVENTS:
            history = history[: int(random.integers(2, 12))]
        people[person] = history
        yield history


def flip_bits(files: Sequence[Path]) -> None:
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        content[number * 997 % len(content)] ^= 1 << number % 8
        file.write_bytes(content)


def exchange(files: Sequence[Path]) -> None:
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)


def cut(files: Sequence[Path]) -> None:
    for number, file in enumerate(files):
        os.truncate(file, file.stat().st_size * number // len(files))


def test_stored_states_give_the_scores_of_the_model(
    exported: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    root, model, published = exported
    assert published.manifest.towers["ranking"].extension is not None, published.notes
    random = np.random.default_rng(7)
    histories = [*growing_histories(200)]
    movies = random.integers(1, sequence_ranker.MOVIES, (len(histories), 3))
    bodies = [
        {
            "context": {"history": history},
            "candidate_features": {"movie": ids.tolist()},
            "heads": [*HEADS],
        }
        for history, ids in zip(histories, movies, strict=True)
    ]
    padded = np.zeros((len(histories), sequence_ranker.EVENTS), np.int64)
    for row, history in zip(padded, histories, strict=True):
        row[: len(history)] = history
    trained = model(
        {"history": tf.constant(padded.repeat(3, axis=0)), "movie": tf.constant(movies.reshape(-1))}
    )
    expected = np.stack([trained[head].numpy().reshape(-1, 3) for head in HEADS], axis=1)
    directory = tmp_path / "states"

    def outcomes_of(rows: slice) -> dict[str, float]:
        """Compares responses of a process of the service; returns how it got their states."""
        responses, metrics = responses_to(root, "rank", bodies[rows], context_states=directory)
        actual = [[response["heads"][head] for head in HEADS] for response in responses]
        np.testing.assert_allclose(actual, expected[rows], rtol=1e-5, atol=1e-5)
        return {
            line.partition('outcome="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
            for line in metrics.splitlines()
            if line.startswith("rowcast_context_states_total{")
        }

    half = len(bodies) // 2
    outcomes = outcomes_of(slice(half))
    assert outcomes["extended"] > outcomes["computed"] > 0
    assert outcomes["found"] > 0
    # The next process goes on with what the first one has stored.
    assert outcomes_of(slice(half, None))["extended"] > 0
    last = slice(len(bodies) - 1, None)
    assert outcomes_of(last) == {"found": 1}
    for damage in (exchange, flip_bits, cut):
        damage(sorted(path for path in directory.rglob("*") if path.is_file()))
        assert outcomes_of(last) == {"computed": 1}
        outcomes_of(slice(0, None, 5))


def test_states_are_not_stored_where_padding_is_seen(tmp_path: Path) -> None:
    _, _, published = export_of(tmp_path, "build_with_padding")
    tower = published.manifest.towers["ranking"]
    assert [part.per for part in tower.parts] == ["context", "candidate"]
    assert tower.extension is None
    (note,) = [note for note in published.notes if "not stored" in note]
    assert "lies" in note


def test_model_of_lists_is_exported_by_lists_of_one_candidate(tmp_path: Path) -> None:
    inputs = {"history": INPUTS["history"], "movies": {"dtype": "int64", "shape": [1]}}
    root, model, published = export_of(tmp_path, "build_of_lists", inputs=inputs)
    tower = published.manifest.towers["ranking"]
    assert [part.per for part in tower.parts] == ["context", "candidate"]
    assert tower.parts[1].is_of_one_context
    assert tower.extension is not None
    history = histories()[0].tolist()
    movies = [7, 250, 7, 31]
    response = response_to(
        root,
        "rank",
        {
            "context": {"history": history},
            "candidate_features": {"movies": [[movie] for movie in movies]},
            "heads": [*HEADS],
        },
    )
    # In training, they were one list.
    expected = model({"history": tf.constant([history]), "movies": tf.constant([movies])})
    for head in HEADS:
        np.testing.assert_allclose(response["heads"][head], expected[head][0], rtol=1e-5, atol=1e-5)
