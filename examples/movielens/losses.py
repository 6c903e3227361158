"""The losses of both stages: a sampled softmax over a batch, and a softmax over what is ranked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

MASKED = -1e9


def retrieval_loss(products: Any, batch: Mapping[str, Any]) -> Any:
    """Softmax of the watched movie among all movies of the batch, corrected for how likely each was
    drawn (logQ).

    Args:
      products: [b, b + s], the dot products of b contexts with the movies, of which the first b
        were watched by the contexts, in order.
      batch: The tensors allowed [b, b + s] bool, weights [b], and log_expected [b + s]: the log of
        how often each movie is expected in a batch.

    Source: Yi et al. 2019, Sampling-Bias-Corrected Neural Modeling; Yang et al. 2020, Mixed
    Negative Sampling.
    """
    logits = tf.where(batch["allowed"], products - batch["log_expected"], MASKED)
    watched = tf.range(tf.shape(products)[0])
    return tf.reduce_mean(
        batch["weights"] * tf.nn.sparse_softmax_cross_entropy_with_logits(watched, logits)
    )


def ranking_loss(scores: Any, watched: Any) -> Any:
    """Listwise softmax of the watched movies among those that are ranked.

    Args:
      scores: [b, depth], the scores of the movies.
      watched: [b, depth], 1 where the movie was watched, else 0. Each row has a 1.
    """
    share = watched / tf.reduce_sum(watched, 1, keepdims=True)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(share, scores))
