"""Trains the layers and the experiments of RecML, for a few steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns, size, take
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from examples.zoo.viewings import MOVIES

BATCH = 64
STEPS = 3
RECORDED = 100
"""The number of requests whose responses are compared."""
LENGTH = 20
HSTU_LENGTH = 50
LISTED_STEPS = 20
"""Number of steps after which layers of the same shapes differ enough to be distinguished."""
EXAMPLES = 64
"""Number of examples with recorded outputs, for the export."""
CRITEO_BATCH = 128
"""Number of examples in a batch of the DLRM."""
CORES = 32
"""Number of SparseCores of the slice of 2x2x2 chips for which the DLRM is saved."""


def sasrec(run: Run) -> Recorded:
    """Trains the layer without its head."""
    return _sequence_layer(run, "sasrec")


def bert4rec(run: Run) -> Recorded:
    """Trains the layer without its head."""
    return _sequence_layer(run, "bert4rec")


def _sequence_layer(run: Run, name: str) -> Recorded:
    """Trains a layer to predict the next movie from the one before, and records its vectors."""
    import keras
    import tensorflow as tf

    model = run.built(name)
    table = model.get_layer(name).item_embedding
    optimizer = keras.optimizers.Adam(1e-3)
    watched = run.viewings.draw(BATCH * STEPS)["history"][:, : LENGTH + 1]
    for histories in np.split(watched, STEPS):
        before = histories[:, :-1]
        after = histories[:, 1:]
        with tf.GradientTape() as tape:
            preference = table(after) - table(before)
            products = tf.reduce_sum(model(before, training=True) * preference, axis=-1)
            loss = -tf.reduce_mean(tf.math.log_sigmoid(products))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
    model.save_weights(run.folder / "model.weights.h5")

    histories = run.viewings.draw(RECORDED // 2, seed=2)["history"][:, :LENGTH]
    movies = run.viewings.draw(RECORDED // 2, seed=3)["movie_id"]
    vectors = recorded.embeddings("query", {"history": histories}, model(histories))
    return vectors + recorded.embeddings("candidate", {"movie_id": movies}, table(movies))


def hstu_keras(run: Run) -> Recorded:
    """Trains the experiment of train_hstu_keras.py with RecML's trainer, which saves the model."""
    from recml.core.training import core, keras_trainer

    task = _hstu_task(run, "train_hstu_keras.py")
    trainer = keras_trainer.KerasTrainer(
        model_dir=str(run.folder / "model"), train_steps=STEPS, steps_per_loop=STEPS
    )
    core.run_experiment(core.Experiment(task, trainer), core.Experiment.Mode.TRAIN)

    model = task.create_model()
    model.load_weights(run.folder / "model" / "model.keras")
    histories, _ = _watched(run, RECORDED, seed=2)
    return recorded.embeddings("query", {"history": histories}, model.predict(histories))


def hstu_jax(run: Run) -> Recorded:
    """Trains the experiment of train_hstu_jax.py with RecML's trainer, which saves lists."""
    from recml.core.training import core, jax_trainer, partitioning

    task = _hstu_task(run, "train_hstu_jax.py")
    states: list[Any] = []
    task.export_model = lambda state, _: states.append(state)
    trainer = jax_trainer.JaxTrainer(
        partitioner=partitioning.DataParallelPartitioner(),
        model_dir=str((run.folder / "model").resolve()),
        train_steps=LISTED_STEPS,
        steps_per_loop=LISTED_STEPS,
    )
    core.run_experiment(core.Experiment(task, trainer), core.Experiment.Mode.TRAIN)

    (state,) = states
    state.sync_model_variables()
    histories, _ = _watched(run, EXAMPLES, seed=3)
    scores = state.model.predict(histories)
    _write_examples(run, {"history": histories, "scores": scores})
    histories, _ = _watched(run, RECORDED, seed=2)
    return recorded.embeddings("query", {"history": histories}, state.model.predict(histories))


def _hstu_task(run: Run, script: str) -> Any:
    """Returns the task of a script that trains an HSTU, with data of MovieLens."""
    published = run.published(f"RecML/recml/examples/{script}")
    records = run.folder / "train.tfrecord"
    histories, movies = _watched(run, BATCH * STEPS, seed=1)
    _write_records(records, histories, movies)
    data = published.TFRecordDataFactory(
        path=str(records), batch_size=BATCH, max_sequence_length=HSTU_LENGTH
    )
    config = published.HSTUModelConfig(
        vocab_size=MOVIES + 1, max_sequence_length=HSTU_LENGTH, num_layers=2
    )
    return published.HSTUTask(config, data, data)


def dlrm(run: Run) -> Recorded:
    """Trains the module of dlrm_model.py on a CPU, and saves it as dlrm_main.py does on a TPU.

    Only the lookup is replaced, as it runs on a SparseCore alone. The tables are saved as that
    takes them: stacked and distributed over the cores.
    """
    import jax
    import jax.numpy as jnp
    import optax
    import orbax.checkpoint as ocp
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
    from jax_tpu_embedding.sparsecore.lib.nn import embedding, table_stacking

    sizes = run.built("criteo_sizes")
    features = run.built("criteo_features")
    model = run.built("dlrm_model", features=features, embed=_lookups())
    optimizer = optax.adagrad(0.0034)

    def arguments(batch: Columns) -> tuple[Any, ...]:
        ids = {name: column for name, column in batch.items() if name != "dense_features"}
        small = {name: column for name, column in ids.items() if name not in features}
        large = {name: column for name, column in ids.items() if name in features}
        return batch["dense_features"], small, large

    @jax.jit
    def predict(parameters: Any, batch: Columns) -> Any:
        return model.apply(parameters, *arguments(batch))

    @jax.jit
    def step(parameters: Any, state: Any, batch: Columns, labels: Any) -> Any:
        def loss(parameters: Any) -> Any:
            return jnp.mean((predict(parameters, batch) - labels) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(parameters), state)
        return optax.apply_updates(parameters, updates), state

    batches = [_criteo(sizes, CRITEO_BATCH, seed) for seed in range(STEPS)]
    parameters = jax.jit(model.init)(jax.random.key(42), *arguments(batches[0]))
    state = optimizer.init(parameters)
    for batch in batches:
        parameters, state = step(parameters, state, batch, batch["7"][:, 0] % 2)

    specs = {name: feature.table_spec for name, feature in features.items()}
    tables = parameters["params"]["SparseCoreEmbed_0"]
    stacks = table_stacking.stack_and_shard_tables(specs, tables, CORES, pad_value=0)
    variables = {}
    for name, shards in stacks.items():
        stack = shards.reshape(-1, shards.shape[-1])
        slots = (jnp.full_like(stack, 0.1),)
        variables[name] = embedding.EmbeddingVariables(table=stack, slot=slots)
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    placed = embed.WithSparseCoreLayout(variables, names=("x", None), mesh=mesh)
    layer = {"SparseCoreEmbed_0": {"sc_embedding_variables": placed}}
    saved = {"params": {**parameters["params"], **layer}}
    with ocp.CheckpointManager((run.folder / "checkpoints").resolve()) as manager:
        contents = {"params": saved, "opt_state": state, "step": STEPS}
        manager.save(STEPS, args=ocp.args.PyTreeSave(contents), force=True)

    examples = _criteo(sizes, CRITEO_BATCH, seed=STEPS)
    _write_examples(run, {**examples, "click": predict(parameters, examples)})
    contexts = _criteo(sizes, RECORDED, seed=STEPS + 1)
    del contexts["7"]
    candidates = _criteo(sizes, RECORDED * recorded.CANDIDATES, seed=STEPS + 2)

    def clicks(pairs: Columns) -> Any:
        scores = []
        for start in range(0, size(pairs), CRITEO_BATCH):
            positions = np.arange(start, start + CRITEO_BATCH) % size(pairs)
            scores.append(predict(parameters, take(pairs, positions)))
        return np.concatenate(scores)[: size(pairs)]

    return recorded.rankings(contexts, {"7": candidates["7"]}, clicks)


def _lookups() -> Any:
    """Returns a module with a SparseCoreEmbed that runs on a CPU: a table for each feature."""
    from flax import linen as nn

    class SparseCoreEmbed(nn.Module):
        feature_specs: Any
        mesh: Any
        sharding_axis: str

        @nn.compact
        def __call__(self, ids: Any) -> Any:
            sums = {}
            for name, feature in self.feature_specs.items():
                spec = feature.table_spec
                shape = (spec.vocabulary_size, spec.embedding_dim)
                table = self.param(name, spec.initializer, shape)
                sums[name] = table[ids[name]].sum(axis=1)
            return sums

    return SimpleNamespace(SparseCoreEmbed=SparseCoreEmbed)


def _criteo(sizes: list[tuple[int, int]], count: int, seed: int) -> dict[str, Any]:
    """Returns random numbers and ids in the form of Criteo's data set.

    Args:
      sizes: The number of rows, and of ids per example, of each feature of ids.
      count: The number of examples.
      seed: The seed of the generator.
    """
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, 13)).astype(np.float32)
    columns: dict[str, Any] = {"dense_features": numbers}
    for name, (rows, ids) in enumerate(sizes):
        columns[str(name)] = random.integers(0, rows, (count, ids)).astype(np.int32)
    return columns


def _write_examples(run: Run, columns: Mapping[str, Any]) -> None:
    """Writes inputs, and what the trained model returned for them, for the export."""
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows]
    (run.folder / "examples.jsonl").write_text("".join(lines), encoding="utf-8")


def _watched(run: Run, count: int, seed: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns histories and targets; none is empty, since the experiments read the last movie."""
    viewings = run.viewings.draw(count, seed)
    histories = viewings["history"]
    histories[:, 0] = np.maximum(histories[:, 0], 1)
    return histories, viewings["movie_id"]


def _write_records(path: Path, histories: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
    """Writes the examples that the experiments of RecML read."""
    import tensorflow as tf

    def integers(values: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for history, target in zip(histories, targets, strict=True):
            features = {
                "sequence": integers(history[history > 0]),
                "target": integers([target]),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
