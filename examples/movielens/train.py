"""Trains the example: both stages, an ordinary checkpoint of them, and the files that its export
reads.

python -m examples.movielens.train [--data DIR] [--out DIR]   all but each viewer's last 10
python -m examples.movielens.train --select                   chooses the settings again (slow)
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from examples.movielens import companions, data, evaluate, training
from examples.movielens.companions import Companions
from examples.movielens.examples import Encoded, Requests, encode, requests
from examples.movielens.model import DIRECTORY
from examples.movielens.settings import Settings

REPLAYED = 256
"""Number of examples that are written for the export to replay."""
POPULAR = 100
"""Length of the list of popular movies."""
GRID: dict[str, tuple[float, ...]] = {
    "table_rate": (0.05, 0.1, 0.15),
    "dropout": (0.2, 0.3, 0.4),
    "gap": (0, 9),
    "balance": (0.3, 0.5, 0.8),
    "epochs": (5, 6),
    "later_epochs": (1, 2),
    "rank_depth": (100, 200),
    "rank_epochs": (10, 20, 40),
}
"""The values that --select tries, one setting after the other, each with the best values of the
settings before.

More epochs do not fit the minute that the training may take; 8 were 0.002 of NDCG better.
"""


def train(movielens: data.MovieLens, out: Path, settings: Settings) -> training.Trained:
    """Trains on all but the test split, and writes checkpoint, sizes, vocabularies, corpus and
    examples to `out`.
    """
    encoded = encode(movielens)
    parts = data.split(movielens.ratings)
    rows = np.union1d(parts.train, parts.validation)
    trained = training.fit(encoded, rows, settings, _printed_progress(settings))
    out.mkdir(parents=True, exist_ok=True)
    test_requests = requests(encoded, parts.test, settings.history)
    write_inputs(encoded, movielens.movies, test_requests, companions.count(encoded, rows), out)
    write_popular(encoded, rows, out)
    training.sizes_of(encoded, settings).write(out)
    checkpoint = tf.train.Checkpoint(
        model=trained.model,
        optimizer=trained.optimizer,
        dense_optimizer=trained.dense_optimizer,
        rank_optimizer=trained.rank_optimizer,
        step=trained.step,
    )
    manager = tf.train.CheckpointManager(checkpoint, str(out / "checkpoint"), max_to_keep=1)
    print(f"checkpoint: {manager.save(checkpoint_number=int(trained.step))}")
    return trained


def _printed_progress(settings: Settings) -> training.Progress:
    start = time.monotonic()

    def show(epoch: int, loss: float) -> None:
        seconds = time.monotonic() - start
        print(f"epoch {epoch} of {settings.epochs}: loss {loss:.3f}, {seconds:.0f} s", flush=True)

    return show


def write_inputs(
    encoded: Encoded, movies: data.Movies, test_requests: Requests, close: Companions, out: Path
) -> None:
    """Writes the files that the recipe names beside the checkpoint: vocabularies, the movies, and
    examples to replay.
    """
    import pyarrow as pa
    from pyarrow import parquet

    for name, keys in (
        ("users", encoded.user_ids),
        ("movies", encoded.movie_ids),
        ("genres", encoded.genres),
    ):
        (out / f"{name}.txt").write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
    companion_ids = [
        encoded.movie_ids[close.movies[row]].tolist() for row in range(len(movies.ids))
    ]
    columns = {
        "movie_id": pa.array(movies.ids),
        "title": pa.array(movies.titles),
        "year": pa.array(movies.years, mask=movies.years == 0),
        "genres": pa.array([list(names) for names in movies.genres], pa.list_(pa.string())),
        "companions": pa.array(companion_ids, pa.list_(pa.int64())),
        "closeness": pa.array(list(close.closeness), pa.list_(pa.float32())),
    }
    parquet.write_table(pa.table(columns), out / "movies.parquet")
    with (out / "examples.jsonl").open("w", encoding="utf-8") as file:
        for question in evaluate.questions_of(encoded, test_requests)[:REPLAYED]:
            movie = int(np.searchsorted(movies.ids, question.watched_next[0]))
            example = {
                "user_id": question.user_id,
                "history": question.history.tolist(),
                "hour": question.hour,
                "movie_id": int(movies.ids[movie]),
                "genres": list(movies.genres[movie]),
                "year": float(movies.years[movie]),
                "companions": companion_ids[movie],
                "closeness": close.closeness[movie].tolist(),
            }
            file.write(json.dumps(example) + "\n")


def write_popular(encoded: Encoded, rows: data.Ints, out: Path) -> None:
    """Writes the movies that most viewers watched in `rows`, most popular first."""
    counts = np.bincount(encoded.movies[rows], minlength=len(encoded.movie_ids))
    popular = encoded.movie_ids[np.argsort(-counts, kind="stable")][:POPULAR]
    lines = ["movie_id", *map(str, popular.tolist())]
    (out / "popular.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def quality(
    trained: training.Trained,
    encoded: Encoded,
    held_out: data.Ints,
    seen: data.Ints,
    settings: Settings,
) -> tuple[evaluate.Quality, ...]:
    """Measures popularity, retrieval, and retrieval with ranking, all computed exactly in
    TensorFlow.
    """
    held_out_requests = requests(encoded, held_out, settings.history)
    questions = evaluate.questions_of(encoded, held_out_requests)
    close = companions.count(encoded, seen)
    retrieved, scores = training.recommend(
        trained.model, encoded, held_out_requests, close, settings.rank_depth
    )
    ranked = np.take_along_axis(retrieved, np.argsort(-scores, axis=1, kind="stable"), 1)
    lists = {
        "popularity": evaluate.popularity(encoded, seen, questions),
        "retrieval": list(encoded.movie_ids[retrieved]),
        "retrieval + ranking": list(encoded.movie_ids[ranked]),
    }
    return tuple(evaluate.measure(name, questions, ids) for name, ids in lists.items())


def select(movielens: data.MovieLens, settings: Settings) -> Settings:
    """Chooses the settings again: trains on the training split, and compares NDCG@10 on the
    validation split.

    The measure is the mean of retrieval alone and retrieval with ranking. The test split is not
    looked at.
    """
    encoded = encode(movielens)
    parts = data.split(movielens.ratings)

    def mean_ndcg(settings: Settings) -> float:
        trained = training.fit(encoded, parts.train, settings, lambda *_: None)
        _, retrieval, ranking = quality(trained, encoded, parts.validation, parts.train, settings)
        print(f"{settings}: NDCG {retrieval.ndcg.value:.4f} / {ranking.ndcg.value:.4f}", flush=True)
        return (retrieval.ndcg.value + ranking.ndcg.value) / 2

    best = settings
    best_ndcg = mean_ndcg(settings)
    for name, values in GRID.items():
        # All values of a setting vary the best settings from before it.
        candidates = [
            replace(best, **{name: value})  # type: ignore[arg-type]
            for value in values
            if value != getattr(best, name)
        ]
        for candidate in candidates:
            ndcg = mean_ndcg(candidate)
            if ndcg > best_ndcg:
                best = candidate
                best_ndcg = ndcg
    return best


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.movielens.train", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--data", type=Path, help="folder with MovieLens' movies.csv and ratings.csv"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DIRECTORY,
        help="where checkpoint and files go (default: build/demo)",
    )
    parser.add_argument(
        "--select", action="store_true", help="choose the settings again, on the validation split"
    )
    arguments = parser.parse_args()
    movielens = data.find(arguments.data, DIRECTORY.parent)
    print(f"data: {movielens.source}")
    if arguments.select:
        print(f"chosen: {select(movielens, Settings())}")
        return
    train(movielens, arguments.out, Settings())


if __name__ == "__main__":
    main()
