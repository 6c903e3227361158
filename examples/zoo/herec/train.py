"""Trains the models of HERec on random data, and saves them as its trainer does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns
from examples.zoo.flax_rankers import FlaxRanker
from examples.zoo.random_rankings import STEPS, train_ranker
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

VALUES = {"user": range(611), "movie": range(9_743)}


def _train(run: Run) -> Recorded:
    module = run.built(f"{run.name}_module")
    model = FlaxRanker(module, _pairs)
    return train_ranker(
        run, VALUES, model=model, fit=FlaxRanker.fit, save=_save, predict=FlaxRanker.predict
    )


def _pairs(columns: Columns) -> NDArray[np.int32]:
    """Returns users and movies as the loader of HERec gives them: [n, 2]."""
    return np.stack([np.asarray(columns[name]) for name in VALUES], axis=1)


def _save(model: FlaxRanker, folder: Path) -> None:
    import orbax.checkpoint
    from flax.training import orbax_utils

    parameters = model.variables["params"]
    manager = orbax.checkpoint.CheckpointManager(
        (folder / "checkpoints").resolve(), orbax.checkpoint.PyTreeCheckpointer()
    )
    save_args = orbax_utils.save_args_from_target(parameters)
    manager.save(STEPS, parameters, save_kwargs={"save_args": save_args})
    manager.close()


neumf = protomf = _train
