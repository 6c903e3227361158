"""Workload R as its author would serve it without rowcast: one SavedModel with the tables inside.

It is written from a bundle of R in a process of its own, which needs TensorFlow, and memory for two
copies of the tables. Its signature takes ids: `context_ids` [13] int64, `numbers` [13] float32 and
`candidate_ids` [n, 13] int64; it returns `score` [n] float32. The signature `batch` takes b such
requests, [b, 13], [b, 13] and [b, n, 13], and returns [b, n].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload_towers import CANDIDATE, CONTEXT, NUMBERS, dcn, ranking_weights, variables
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from tests.models.tensorflow_process import with_tensorflow


def write_whole_model(bundle: Path, directory: Path) -> Path:
    """Writes the SavedModel of a bundle of R, unless it is there; returns its directory."""
    if not (directory / "saved_model.pb").exists():
        with_tensorflow(_write, bundle, directory)
    return directory


def _write(bundle: Path, directory: Path) -> None:
    import tensorflow as tf

    manifest = read_manifest(bundle)
    module = tf.Module()
    module.tables = {}
    for name in (*CONTEXT, *CANDIDATE):
        reader = TableReader(bundle, manifest.tables[name])
        rows = reader.gather(np.arange(manifest.tables[name].rows))
        module.tables[name] = tf.Variable(rows, trainable=False)
        reader.close()
    module.weights = variables(tf, ranking_weights())

    def score(context_ids: Any, numbers: Any, candidate_ids: Any) -> dict[str, Any]:
        context = [
            tf.gather(module.tables[name], context_ids[column])
            for column, name in enumerate(CONTEXT)
        ]
        context_vector = tf.concat([*context, tf.math.log1p(numbers)], 0)[tf.newaxis]
        candidates = [
            tf.gather(module.tables[name], candidate_ids[:, column])
            for column, name in enumerate(CANDIDATE)
        ]
        inputs = tf.concat(
            [tf.repeat(context_vector, tf.shape(candidate_ids)[0], 0), *candidates], 1
        )
        scores: dict[str, Any] = dcn(tf, module.weights, inputs)
        return scores

    def score_batch(context_ids: Any, numbers: Any, candidate_ids: Any) -> dict[str, Any]:
        context = [
            tf.gather(module.tables[name], context_ids[:, column])
            for column, name in enumerate(CONTEXT)
        ]
        contexts = tf.concat([*context, tf.math.log1p(numbers)], 1)
        shape = tf.shape(candidate_ids)[:2]
        flat = tf.reshape(candidate_ids, [-1, len(CANDIDATE)])
        candidates = [
            tf.gather(module.tables[name], flat[:, column]) for column, name in enumerate(CANDIDATE)
        ]
        inputs = tf.concat([tf.repeat(contexts, shape[1], 0), *candidates], 1)
        return {"score": tf.reshape(dcn(tf, module.weights, inputs)["score"], shape)}

    def traced(function: Any, *batch: None) -> Any:
        return tf.function(function).get_concrete_function(
            tf.TensorSpec([*batch, len(CONTEXT)], tf.int64, "context_ids"),
            tf.TensorSpec([*batch, NUMBERS], tf.float32, "numbers"),
            tf.TensorSpec([*batch, None, len(CANDIDATE)], tf.int64, "candidate_ids"),
        )

    signatures = {"serving_default": traced(score), "batch": traced(score_batch, None)}
    tf.saved_model.save(module, str(directory), signatures=signatures)
