"""Trains the models of keras_3.py in JAX and saves them in every form that Keras has: a program of
its own, since Keras has one backend in a process.

KERAS_BACKEND=jax python train_keras_3.py FOLDER
"""

# mypy: ignore-errors

import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import keras_3 as models
import numpy as np
import orbax.checkpoint as ocp

EXAMPLES = 24


def drawn(shape, high):
    return np.random.default_rng(high).integers(0, high, shape).astype(np.int32)


def train(folder, model, inputs, arrays, epochs=0, **callback):
    """Saves a model as `.keras`, `.weights.h5` and by Orbax, with what it returns. Without epochs,
    its variables and those of its optimizer are drawn: JAX compiles each training for seconds.
    """
    folder.mkdir()
    model(inputs)  # before JAX compiles it
    model.compile("adam", "mse")
    saved = keras.callbacks.OrbaxCheckpoint(
        str(folder / "orbax"), save_on_background=False, **callback
    )
    if epochs:
        labels = np.random.default_rng(5).random(EXAMPLES).astype(np.float32)
        model.fit(inputs, labels, batch_size=EXAMPLES, epochs=epochs, verbose=0, callbacks=[saved])
    else:
        random = np.random.default_rng(5)
        model.optimizer.build(model.trainable_variables)
        for variable in (*model.trainable_variables, *model.optimizer.variables):
            if "float" in variable.dtype:
                variable.assign(random.uniform(-0.5, 0.5, variable.shape))
        saved.set_model(model)
        saved.on_train_begin()
        saved.on_epoch_end(0)
        saved.on_train_end()
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    values = {variable.path: np.asarray(variable.value) for variable in model.variables}
    results = {name: np.asarray(call(inputs)) for name, call in arrays.items()}
    np.savez(folder / "expected.npz", **inputs, **results)
    np.savez(folder / "variables.npz", **{path.replace("/", "."): values[path] for path in values})


def save_lists(folder, model):
    """Saves the variables of a model as lists, as RecML's trainers do, and under Keras' names."""
    trainable = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    optimizer = [variable.value for variable in model.optimizer.variables]
    with ocp.CheckpointManager(
        folder / "keras_trainer", checkpointers=ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    ) as manager:
        manager.save(step=0, items=(trainable, others, optimizer))

    # The fields of a KerasState; its optimizer has a dict by the paths of variables.
    moments = {variable.path: variable.value for variable in model.trainable_variables}
    state = {
        "step": np.int32(7),
        "tvars": trainable,
        "ntvars": others,
        "opt_state": ({"count": np.int32(7), "mu": moments}, {}),
    }
    with ocp.CheckpointManager(folder / "jax_trainer") as manager:
        manager.save(7, args=ocp.args.Composite(state=ocp.args.StandardSave(state)))

    named = {"trainable_variables": trainable, "non_trainable_variables": others}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "lists", named)


def save_by_recml(folder, model):
    """Saves the variables of a model by a trainer of RecML, whose one step changes none."""
    import optax
    import tensorflow as tf
    from recml.core.training.jax import JaxTask, JaxTrainer, KerasState

    class Task(JaxTask):
        def create_datasets(self):
            return tf.data.Dataset.from_tensors({"unused": [0.0]})

        def create_state(self, batch, rng):
            return KerasState.create(model=model, tx=optax.adam(0.0))

        def train_step(self, batch, state, rng):
            return state.update(grads=state.tvars), {}

        def eval_step(self, batch, state):
            return {}

        def export_model(self, state, model_dir):
            pass

    JaxTrainer(model_dir=str(folder / "recml"), train_steps=1).train(Task())


def main(root):
    backend = keras.backend.backend()
    assert backend == "jax", backend
    keras.utils.set_random_seed(3)
    inputs = {
        "user": drawn(EXAMPLES, models.USERS),
        "age": np.linspace(-1, 1, EXAMPLES, dtype=np.float32),
        "movie": drawn(EXAMPLES, models.MOVIES),
        "genres": drawn((EXAMPLES, models.SLOTS), models.GENRES),
    }
    first = models.build()
    first.ages.adapt(inputs["age"][:, None])
    calls = {"query": first.query, "candidate": first.candidate}
    train(root / "first", first, inputs, calls, epochs=2)
    second = models.build()
    second.ages.adapt(inputs["age"][:, None])
    calls = {"query": second.query, "candidate": second.candidate}
    train(root / "second", second, inputs, calls, save_weights_only=True)

    save_lists(root / "first", first)
    if find_spec("recml"):
        save_by_recml(root / "first", first)

    keras.utils.clear_session()
    twins = models.build_twins()
    numbers = {"numbers": np.ones((EXAMPLES, 2), np.float32)}
    train(root / "twins", twins, numbers, {"call": twins})
    save_lists(root / "twins", twins)

    keras.utils.clear_session()
    ids = {
        "user": drawn((EXAMPLES, models.SLOTS), models.USERS),
        "movie": drawn((EXAMPLES, models.SLOTS), models.MOVIES),
    }
    ranker = models.build_ranker()
    train(root / "ranker", ranker, ids, {"score": ranker})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
