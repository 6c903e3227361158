"""Trains rankers of Keras on random examples of the inputs that their recipes declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.columns import Columns, size
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from export.recipe.schema import InputSection, read_recipe

BATCH = 500
STEPS = 3
RECORDED = 100
"""The number of requests whose responses are compared."""

Values = Mapping[str, Sequence[Any] | None]
"""The possible values of each input; None: numbers from 0 to 1."""


def fit(model: Any, examples: Columns) -> None:
    """Trains a model on labels that are drawn at random."""
    labels = np.random.default_rng(0).integers(2, size=size(examples)).astype(np.float32)
    model.compile("adam", "binary_crossentropy")
    model.fit(dict(examples), labels, batch_size=BATCH, verbose=0)


def fit_own_loss(model: Any, examples: Columns) -> None:
    """Trains a model that adds its loss itself."""
    model.compile("adam")
    model.fit(dict(examples), batch_size=BATCH, verbose=0)


def save_hdf5(model: Any, folder: Path) -> None:
    """Saves the weights in one file."""
    model.save_weights(folder / "model.weights.h5")


def save_older_hdf5(model: Any, folder: Path) -> None:
    """Saves the weights in one file, as Keras 2 does for this name."""
    model.save_weights(folder / "model.h5")


def save_checkpoint(model: Any, folder: Path) -> None:
    """Saves the weights in TensorFlow's format."""
    model.save_weights(folder / "weights" / "model")


def predict(model: Any, columns: Columns) -> Any:
    """Returns what the trained model predicts."""
    return model.predict(dict(columns), verbose=0)


def train_ranker(
    run: Run,
    values: Values,
    *,
    model: Any = None,
    unsent: Sequence[str] = (),
    fit: Callable[[Any, Columns], None] = fit,
    save: Callable[[Any, Path], None] = save_hdf5,
    predict: Callable[[Any, Columns], Any] = predict,
) -> Recorded:
    """Trains and saves the model of an entry, and records its rankings.

    Args:
      run: The run. A factory has the name of its entry.
      values: The values of the inputs, in the order of training, which need not be the recipe's.
      model: The model; None: the factory of the entry constructs it.
      unsent: Inputs of the call that requests do not send.
      fit: Trains a model on examples.
      save: Saves a model in a folder, as its documentation does.
      predict: Returns the scores of a trained model, or its outputs by name.
    """
    job = read_recipe(run.folder / "recipe.toml")
    is_candidate = {
        name: name in job.features and job.features[name].role == "candidate" for name in values
    }

    def draw(names: Sequence[str], count: int, seed: int) -> dict[str, Any]:
        return {name: drawn(job.inputs[name], values[name], count, seed) for name in names}

    model = model or run.built(run.name)
    fit(model, draw(list(values), BATCH * STEPS, seed=1))
    save(model, run.folder)

    def call(columns: Columns) -> Any:
        inputs = {**columns, **draw(unsent, size(columns), seed=4)}
        return predict(model, {name: inputs[name] for name in values})

    requested = [name for name in values if name not in unsent]
    contexts = draw([name for name in requested if not is_candidate[name]], RECORDED, seed=2)
    candidates = draw(
        [name for name in requested if is_candidate[name]], RECORDED * recorded.CANDIDATES, seed=3
    )
    (tower,) = job.towers.values()
    return recorded.rankings(contexts, candidates, call, tuple(tower.outputs) or ("score",))


def drawn(section: InputSection, values: Sequence[Any] | None, count: int, seed: int) -> Any:
    """Returns [count, *shape] random values of an input."""
    random = np.random.default_rng(seed)
    shape = (count, *section.shape)
    if values is None:
        return random.uniform(size=shape).astype(np.float32)
    chosen = np.asarray(values)[random.integers(len(values), size=shape)]
    if section.dtype == "string":
        return chosen.astype(str)
    return chosen.astype(section.dtype)
