"""Takes what jax-tpu-embedding's samples trained on a TPU."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

SAMPLES = "jax-tpu-embedding/jax_tpu_embedding/sparsecore/examples"
RECORDED = 100
"""The number of requests whose responses are compared."""
FEATURE = "shakespeare_feature"
BATCH = 256
LENGTH = 16
ROWS = 2048
DIM = 8
CORES = 32
"""SparseCores of the slice of 2x2x2 chips that trained."""


def shakespeare(run: Run) -> Recorded:
    """Takes the checkpoint of the repository, which a TPU wrote, and calls the model on a CPU.

    Only the lookup is replaced, as it runs on a SparseCore alone.

    Raises:
      ValueError: the model does not tell the next words, which it was trained on.
    """
    archive = run.folder / SAMPLES / "shakespeare/testdata/checkpoint-2x2x2.tgz"
    with tarfile.open(archive) as files:
        files.extractall(run.folder, filter="data")
    checkpoint = (run.folder / "1000").rename(run.folder / "checkpoint")
    trained = _arrays((checkpoint / "model").resolve())

    stack = trained["embedding_layer"]["embedding_table"]["value"]["shakespeare_table"]["table"]
    table = stack.reshape(CORES, ROWS // CORES, DIM).swapaxes(0, 1).reshape(ROWS, DIM)

    def lookup(words: Any, step: Any) -> Any:  # noqa: ARG001 - as the model calls it
        return {FEATURE: table[words]}

    model = run.built("model", embed=SimpleNamespace(SparseCoreEmbed=lambda **_: lookup))
    for name in ("dense_layer_1", "dense_layer_2"):
        layer = getattr(model, name)
        layer.kernel.value = trained[name]["kernel"]["value"]
        layer.bias.value = trained[name]["bias"]["value"]

    dataset = run.published(f"{SAMPLES}/models/shakespeare/dataset.py")
    features, labels = dataset.word_id_batches(dataset.load_shakespeare(ROWS), 1, BATCH, LENGTH, 1)
    words = features["words_0"][0][..., 0]
    scores = np.asarray(model(words))
    right = int(np.sum(scores.argmax(axis=1) == labels[0]))
    if right < BATCH:
        raise ValueError(f"the model knows {right} of the {BATCH} words that it was trained on")
    return recorded.embeddings("query", {FEATURE: words[:RECORDED]}, scores[:RECORDED])


def _arrays(step: Path) -> Any:
    """Returns the arrays of a checkpoint of Orbax, on whatever devices it was saved."""
    import jax
    import orbax.checkpoint as ocp

    array = ocp.RestoreArgs(restore_type=np.ndarray)
    with ocp.PyTreeCheckpointer() as checkpointer:
        saved = checkpointer.metadata(step).item_metadata.tree
        return checkpointer.restore(step, restore_args=jax.tree.map(lambda _: array, saved))
