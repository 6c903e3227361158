"""Trains the model of PAIR's jax-recommenders on random data.

Its trainer imports `flax.optim`, which Flax removed: the state of training is that of Flax.
"""

from __future__ import annotations

from pathlib import Path

from examples.zoo.flax_rankers import FlaxRanker
from examples.zoo.random_rankings import STEPS, train_ranker
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

VALUES = {"user_id": range(611), "item_id": range(9_743)}


def cf_dnn(run: Run) -> Recorded:
    """Trains the ranker, and saves the state of training as its trainer does."""
    model = FlaxRanker(run.built("cf_dnn_module"), dict)
    return train_ranker(
        run, VALUES, model=model, fit=FlaxRanker.fit, save=_save, predict=FlaxRanker.predict
    )


def _save(model: FlaxRanker, folder: Path) -> None:
    import optax
    from flax.training import checkpoints, train_state

    state = train_state.TrainState.create(
        apply_fn=model.module.apply, params=model.variables["params"], tx=optax.adam(3e-3)
    )
    checkpoints.save_checkpoint((folder / "checkpoints").resolve(), state, step=STEPS)
