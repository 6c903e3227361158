"""The joint loss: a sampled softmax for retrieval, and one over retrieval's own favourites for the ranking head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from examples.movielens.model import MovieModel
from examples.movielens.settings import Settings

MASKED = -1e9


def joint_loss(model: MovieModel, features: Mapping[str, Any], batch: Mapping[str, Any], settings: Settings) -> Any:
    """Returns the weighted sum of both losses over one batch.

    Args:
      features: contexts [b] and movies [b + s], of which the first b were watched by the contexts, in order.
      batch: allowed [b, b + s] bool, weights [b], log_expected [b + s]: the log of how often each movie is expected in
        a batch.
    """
    context, movie = model.activations(features, training=True)
    query, candidate = model.query(context), model.candidate(movie)
    products = tf.matmul(query, candidate, transpose_b=True)
    retrieval = _retrieval_loss(products, batch)
    chosen, offered = _hard_negatives(products, batch, settings)
    askers = tf.repeat(tf.range(settings.rank_contexts), settings.rank_negatives + 1)
    asked = tf.reshape(chosen, [-1])
    # The head reads the activations as they are and moves the towers only: with so few ratings it would else bend the
    # tables to its own noise, and was the worse for it on the validation split.
    sides = tf.stop_gradient(tf.gather(context, askers)), tf.stop_gradient(tf.gather(movie, asked))
    scores = model.score(*sides, tf.gather(query, askers), tf.gather(candidate, asked))
    logits = tf.reshape(scores, tf.shape(chosen)) - offered
    ranking = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(tf.zeros_like(chosen[:, 0]), chosen.shape[1]), logits)
    return retrieval + settings.rank_weight * tf.reduce_mean(batch["weights"][: settings.rank_contexts] * ranking)


def _retrieval_loss(products: Any, batch: Mapping[str, Any]) -> Any:
    """Softmax of the watched movie among all movies of the batch, corrected for how likely each was drawn (logQ).

    Source: Yi et al. 2019, Sampling-Bias-Corrected Neural Modeling; Yang et al. 2020, Mixed Negative Sampling.
    """
    logits = tf.where(batch["allowed"], products - batch["log_expected"], MASKED)
    watched = tf.range(tf.shape(products)[0])
    return tf.reduce_mean(batch["weights"] * tf.nn.sparse_softmax_cross_entropy_with_logits(watched, logits))


def _hard_negatives(products: Any, batch: Mapping[str, Any], settings: Settings) -> tuple[Any, Any]:
    """Draws movies that retrieval takes for likely, as its softmax has it.

    Returns:
      chosen: [contexts, 1 + negatives] int32 columns of `products`, the watched movie first.
      offered: [contexts, 1 + negatives] log of how likely each was to be drawn, up to a constant for each context. The
        ranking loss subtracts it, or its head would learn what retrieval has missed instead of what will be watched.
    """
    contexts = settings.rank_contexts
    likely = tf.stop_gradient(products[:contexts])
    gumbel = -tf.math.log(-tf.math.log(tf.random.uniform(tf.shape(likely), 1e-6, 1.0 - 1e-6)))
    noisy = tf.linalg.set_diag(
        tf.where(batch["allowed"][:contexts], likely + gumbel, MASKED), tf.fill([contexts], MASKED)
    )
    _, negatives = tf.math.top_k(noisy, settings.rank_negatives)
    chosen = tf.concat([tf.expand_dims(tf.range(contexts), 1), negatives], 1)
    return chosen, tf.gather(likely + batch["log_expected"], chosen, batch_dims=1)
