"""Trains the models of RecLearn as its examples do, on random data."""

from __future__ import annotations

from functools import partial

from examples.zoo.random_rankings import (
    fit_own_loss,
    predict,
    save_checkpoint,
    save_older_hdf5,
    train_ranker,
)

RANKING = {
    "user_id": range(611),
    "movie_id": range(9_743),
    "user_gender": range(2),
    "bucketized_user_age": range(60),
}
PAIRS = {"user": range(1, 611), "pos_item": range(1, 9_743), "neg_item": range(1, 9_743)}
SEQUENCES = {"click_seq": range(9_743), "pos_item": range(1, 9_743), "neg_item": range(1, 9_743)}

dcn = deepfm = xdeepfm = partial(train_ranker, values=RANKING, save=save_checkpoint)
fm = partial(train_ranker, values=RANKING, save=save_older_hdf5)
_matching = partial(
    train_ranker,
    unsent=["neg_item"],
    fit=fit_own_loss,
    save=save_checkpoint,
    predict=lambda model, columns: predict(model, columns)[:, 0],
)
bpr = ncf = partial(_matching, values=PAIRS)
sasrec = mind = gru4rec = youtubednn = partial(_matching, values=SEQUENCES)
