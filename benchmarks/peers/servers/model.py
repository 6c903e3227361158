"""The whole SavedModel of workload R, as every peer loads it; runs in the peers' own
environments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

Score = Callable[[ArrayLike, ArrayLike, ArrayLike], NDArray[np.float32]]
ONE = "serving_default"
BATCH = "batch"
"""Signature that takes several requests, with as many candidates each."""


def load(name: str = ONE) -> Score:
    """Loads a signature of the model that `PEER_MODEL` names: takes context ids, numbers and
    candidate ids, returns scores.

    One thread an operation and two operations at a time: two callers run beside each other, which
    is the best on two cores (more threads in one operation lose at 200 candidates).
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("PEER_CORES", "2")))
    model: Any = tf.saved_model.load(os.environ["PEER_MODEL"])
    signature = model.signatures[name]

    def score(
        context_ids: ArrayLike, numbers: ArrayLike, candidate_ids: ArrayLike
    ) -> NDArray[np.float32]:
        outputs = signature(
            context_ids=tf.constant(context_ids, tf.int64),
            numbers=tf.constant(numbers, tf.float32),
            candidate_ids=tf.constant(candidate_ids, tf.int64),
        )
        scores: NDArray[np.float32] = outputs["score"].numpy()
        return scores

    score.model = model  # type: ignore[attr-defined]  # its variables live as long as it
    return score
