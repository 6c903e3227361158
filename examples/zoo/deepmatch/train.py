"""Trains the models of DeepMatch as its examples do, on random data."""

from __future__ import annotations

from functools import partial

from examples.zoo.random_rankings import train_ranker

VALUES = {"user_id": range(611), "user_gender": range(2), "movie_id": range(9_743)}

ncf = partial(train_ranker, values=VALUES)
