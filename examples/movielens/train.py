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
"""Examples written for the export to replay."""
POPULAR = 100
"""Movies in the list of popular ones."""
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
"""What --select tries, one setting after the other, each with the best of those before it.

More epochs do not fit the minute that the training may take; 8 were 0.002 of NDCG better.
"""


def train(found: data.MovieLens, out: Path, settings: Settings) -> training.Trained:
    """Trains on all but the test split, and writes checkpoint, sizes, vocabularies, corpus and
    examples to `out`.
    """
    encoded = encode(found)
    parts = data.split(found.ratings)
    rows = np.union1d(parts.train, parts.validation)
    trained = training.fit(encoded, rows, settings, _tell(settings))
    out.mkdir(parents=True, exist_ok=True)
    asked = requests(encoded, parts.test, settings.history)
    write_inputs(encoded, found.movies, asked, companions.count(encoded, rows), out)
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


def _tell(settings: Settings) -> training.Progress:
    start = time.monotonic()

    def tell(epoch: int, loss: float) -> None:
        print(
            f"epoch {epoch} of {settings.epochs}: loss {loss:.3f}, {time.monotonic() - start:.0f} "
            "s",
            flush=True,
        )

    return tell


def write_inputs(
    encoded: Encoded, movies: data.Movies, asked: Requests, close: Companions, out: Path
) -> None:
    """Writes what the recipe names beside the checkpoint: vocabularies, the movies, and examples to
    replay.
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
        for question in evaluate.asks(encoded, asked)[:REPLAYED]:
            movie = int(np.searchsorted(movies.ids, question.wanted[0]))
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
    """Measures popularity, retrieval, and retrieval with ranking by exact answers in TensorFlow."""
    asked = requests(encoded, held_out, settings.history)
    questions = evaluate.asks(encoded, asked)
    close = companions.count(encoded, seen)
    found, scores = training.answer(trained.model, encoded, asked, close, settings.rank_depth)
    ranked = np.take_along_axis(found, np.argsort(-scores, axis=1, kind="stable"), 1)
    answers = {
        "popularity": evaluate.popularity(encoded, seen, questions),
        "retrieval": list(encoded.movie_ids[found]),
        "retrieval + ranking": list(encoded.movie_ids[ranked]),
    }
    return tuple(evaluate.measure(name, questions, rows) for name, rows in answers.items())


def select(found: data.MovieLens, settings: Settings) -> Settings:
    """Redoes the choice of the settings: trains on the training split, compares NDCG@10 on the
    validation split.

    The test split is not looked at. What counts is the mean of retrieval alone and retrieval with
    ranking.
    """
    encoded = encode(found)
    parts = data.split(found.ratings)

    def worth(tried: Settings) -> float:
        trained = training.fit(encoded, parts.train, tried, lambda *_: None)
        _, retrieval, ranking = quality(trained, encoded, parts.validation, parts.train, tried)
        print(f"{tried}: NDCG {retrieval.ndcg.value:.4f} / {ranking.ndcg.value:.4f}", flush=True)
        return (retrieval.ndcg.value + ranking.ndcg.value) / 2

    reached = worth(settings)
    best = settings
    for name, values in GRID.items():
        for tried in [
            replace(best, **{name: value}) for value in values if value != getattr(best, name)
        ]:  # type: ignore[arg-type]
            if (this := worth(tried)) > reached:
                reached = this
                best = tried
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
    found = data.find(arguments.data, DIRECTORY.parent)
    print(f"data: {found.source}")
    if arguments.select:
        print(f"chosen: {select(found, Settings())}")
        return
    train(found, arguments.out, Settings())


if __name__ == "__main__":
    main()
