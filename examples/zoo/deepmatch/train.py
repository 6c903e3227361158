"""Trains the models of DeepMatch as its examples do, on random data."""

from __future__ import annotations

from functools import partial

import numpy as np

from examples.zoo import recorded
from examples.zoo.random_rankings import BATCH, RECORDED, STEPS, drawn, train_ranker
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from export.recipe.schema import read_recipe

VALUES = {"user_id": range(611), "user_gender": range(2), "movie_id": range(9_743)}
RETRIEVED = {**VALUES, "hist_movie_id": range(1, 9_743), "hist_len": range(1, 11)}

ncf = partial(train_ranker, values=VALUES)


def _train(run: Run) -> Recorded:
    """Trains a model with sampled movies; its two parts compute the vectors that are served."""
    from deepmatch.utils import sampledsoftmaxloss

    job = read_recipe(run.folder / "recipe.toml")
    parts = run.built(run.name)
    examples = {
        name: drawn(job.inputs[name], values, BATCH * STEPS, seed=1)
        for name, values in RETRIEVED.items()
    }
    parts.model.compile("adam", loss=sampledsoftmaxloss)
    parts.model.fit(examples, np.ones(BATCH * STEPS), batch_size=BATCH, verbose=0)
    parts.model.save_weights(run.folder / "model_w.h5")

    movie = {"movie_id": examples.pop("movie_id")[: RECORDED // 2]}
    user = {name: column[: RECORDED // 2] for name, column in examples.items()}
    queries = recorded.embeddings("query", user, parts.user.predict(user))
    return queries + recorded.embeddings("candidate", movie, parts.movie.predict(movie))


youtubednn = mind = dssm = _train
