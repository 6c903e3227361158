"""The main path with real processes and sockets: a model is trained, planned, exported, explained,
verified, served and queried.

Every response is compared with what TensorFlow computes from the original model, restored from the
same checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from rowcast_client import Client

from export.model_code.factories import load_factory
from tests.e2e.process import WAIT_S
from tests.e2e.services import launching, workers_of
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import (
    MOVIE_IDS,
    MOVIES,
    changed,
    genres_of,
    recipe_of,
    title_of,
    write_project,
    year_of,
)
from tests.units.export.traced_models import MODELS, movies_recipe, save_checkpoint

pytestmark = pytest.mark.slow

Array = NDArray[Any]
Example = dict[str, Any]
EXAMPLES: list[Example] = [
    {"user_id": 3, "history": [MOVIE_IDS[2], MOVIE_IDS[5], MOVIE_IDS[2]], "hour": 7},
    {"user_id": 49, "history": [], "hour": 0},
    {"user_id": 0, "history": MOVIE_IDS[::3], "hour": 23},
]


class Original:
    """The uncut model of one checkpoint: for each example its query, and every candidate's vector
    and score.
    """

    def __init__(self, prefix: Path) -> None:
        model = load_factory("two_towers.py:build_movies", MODELS)()
        tf.train.Checkpoint(model=model).restore(str(prefix)).expect_partial()
        self.tables: dict[str, Array] = {
            config.name: table.numpy() for config, table in model.embedding.embedding_tables.items()
        }
        self.queries = []
        self.scores = []
        for example in EXAMPLES:
            history = [MOVIE_IDS.index(movie) for movie in example["history"]]
            actual = model(
                {
                    "user_id": tf.fill([MOVIES], tf.constant(example["user_id"], tf.int64)),
                    "history": tf.ragged.constant([history] * MOVIES, tf.int64, ragged_rank=1),
                    "hour": tf.fill([MOVIES], tf.constant(example["hour"], tf.int64)),
                    "movie_id": tf.range(MOVIES, dtype=tf.int64),
                    "genres": tf.ragged.constant(
                        [genres_of(row) for row in range(MOVIES)], tf.int64
                    ),
                    "year": tf.constant([float(year_of(row)) for row in range(MOVIES)]),
                }
            )
            self.queries.append(actual["query"].numpy()[0])
            self.candidates = actual["candidate"].numpy()
            self.scores.append(actual["score"].numpy())

    def nearest(self, place: int, k: int) -> tuple[list[int], Array]:
        return best(self.candidates.astype(np.float64) @ self.queries[place].astype(np.float64), k)


def best(scores: Array, k: int) -> tuple[list[int], Array]:
    order = np.argsort(-scores, kind="stable")[:k]
    return [MOVIE_IDS[row] for row in order], scores[order]


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def check_all(client: Client, original: Original) -> None:
    """Sends every call, one request and several, and compares with the original model."""
    for place, example in enumerate(EXAMPLES):
        retrieved = client.retrieve(example, k=5, attributes=["title", "year"])[0]
        ids, scores = original.nearest(place, 5)
        assert retrieved.ids.tolist() == ids
        close(retrieved.scores, scores)
        titles = [title_of(MOVIE_IDS.index(movie)) for movie in ids]
        assert retrieved.attributes["title"] == titles
        ranked = client.rank(example, MOVIE_IDS[::-1])[0]
        assert [candidate.id for candidate in ranked] == MOVIE_IDS[::-1]
        close(ranked.scores, original.scores[place][::-1])
        recommended = client.recommend(example, k=4, pool_size=12, attributes=["title"])
        near = {MOVIE_IDS.index(movie) for movie in original.nearest(place, 12)[0]}
        kept = np.where([row in near for row in range(MOVIES)], original.scores[place], -np.inf)
        ids, scores = best(kept, 4)
        assert recommended[0].ids.tolist() == ids
        close(recommended[0].scores, scores)
        close(client.embed(example, tower="query").vectors[0], original.queries[place])
    several = client.retrieve(EXAMPLES, k=3, exclude_ids=MOVIE_IDS[:20])
    for place in range(len(EXAMPLES)):
        reached = original.candidates @ original.queries[place]
        reached[:20] = -np.inf
        assert several[place].ids.tolist() == best(reached, 3)[0]
    movie = {"movie_id": MOVIE_IDS[7], "genres": genres_of(7), "year": float(year_of(7))}
    close(client.embed(movie, tower="candidate").vectors[0], original.candidates[7])
    rows = client.lookup("history", [MOVIE_IDS[4], MOVIE_IDS[0]])
    assert np.array_equal(rows.vectors, original.tables["movies"][[4, 0]])


def test_exported_model_gives_the_results_of_the_original_over_both_transports(
    tmp_path: Path,
) -> None:
    prefix = save_checkpoint(movies_recipe(), tmp_path)
    original = Original(prefix)
    recipe = changed(recipe_of(prefix), "indexes.movies.partitions", 3)
    project = write_project(tmp_path, recipe)
    forked = ForkedRuns()
    bundle = str(tmp_path / "bundles/movies/1")
    for command, words in (
        (["plan", str(project)], "each million of candidates, 3 partitions:"),
        (["run", str(project)], "index movies, brute_force, 3 partitions"),
        (["explain", bundle], "index movies: query finds movies, 3 partitions"),
        (["verify", bundle], "index movies, 3 partitions"),
    ):
        output = tmp_path / "output"
        assert forked.run(command, output) == 0, output.read_text()
        assert words in " ".join(output.read_text().split())
    with launching(tmp_path / "bundles") as launch:
        service = launch()
        service.event("version_available")
        service.event("listening")
        ports = service.ports
        for url in (f"grpc://127.0.0.1:{ports['grpc']}", f"http://127.0.0.1:{ports['http']}"):
            with Client(url, timeout_s=WAIT_S) as client:
                check_all(client, original)
        (worker,) = workers_of(service)
        maps = Path(f"/proc/{worker.pid}/maps").read_text()
        assert "litert" in maps.lower()
        assert "libtensorflow" not in maps
        assert service.stop() == 0
        service.event("stopped")
        assert service.others == [], "not all of the log is JSON"
