"""Runs the scripts of SparrowRecSys, on random data."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from examples.zoo.entries import entries_of
from examples.zoo.random_rankings import BATCH, STEPS, drawn, train_ranker
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from export.recipe.schema import read_recipe

GENRES = ("Action", "Comedy", "Crime", "Drama", "Romance", "Sci-Fi", "Thriller", "Western")
VALUES: dict[str, Any] = {
    "movieAvgRating": None,
    "movieRatingStddev": None,
    "movieRatingCount": range(1, 900),
    "userAvgRating": None,
    "userRatingStddev": None,
    "userRatingCount": range(1, 100),
    "releaseYear": range(1950, 2020),
    "movieId": range(1, 1001),
    "userId": range(1, 30_001),
    "userRatedMovie1": range(1, 1001),
    "userRatedMovie2": range(1, 1001),
    "userRatedMovie3": range(1, 1001),
    "userRatedMovie4": range(1, 1001),
    "userRatedMovie5": range(1, 1001),
    "userGenre1": GENRES,
    "userGenre2": GENRES,
    "userGenre3": GENRES,
    "userGenre4": GENRES,
    "userGenre5": GENRES,
    "movieGenre1": GENRES,
    "movieGenre2": GENRES,
    "movieGenre3": GENRES,
}


def _train(run: Run) -> Recorded:
    """Runs the whole script, which trains its model, and saves that."""
    import tensorflow as tf

    job = read_recipe(run.folder / "recipe.toml")
    values = {name: VALUES[name] for name in VALUES if name in job.inputs}
    samples = run.folder / "samples.csv"
    columns = {
        name: drawn(job.inputs[name], values[name], BATCH * STEPS, seed=1) for name in values
    }
    columns["label"] = np.random.default_rng(0).integers(2, size=BATCH * STEPS)
    with samples.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))

    (entry,) = entries_of([f"sparrow/{run.name}"])
    script = run.folder / entry.source.folder / entry.file
    # The script names files of its author's machine.
    with mock.patch.object(tf.keras.utils, "get_file", return_value=str(samples)):
        model = runpy.run_path(str(script))["model"]
    return train_ranker(run, values, model=model, fit=lambda *_: None, save=_save)


def _save(model: Any, folder: Path) -> None:
    model.save(folder / "model.h5")


neural_cf = din = wide_n_deep = _train
