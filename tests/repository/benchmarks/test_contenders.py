"""Contestants with other results than the model are not measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load import Endpoint
from benchmarks.peers.contenders import OtherResults, Target, check_scores, recall_of


def test_peer_with_other_scores_is_rejected() -> None:
    class Zeros(Target):
        def call(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            return np.zeros(2, np.float32)

    target = Zeros(Endpoint(0, "/"), [], lambda _: np.zeros(0, np.float32))
    check_scores(target, [np.zeros(2, np.float32)])
    with pytest.raises(OtherResults, match="request 0"):
        check_scores(target, [np.array([0, 1e-3], np.float32)])


def test_index_with_less_recall_is_rejected() -> None:
    class Fixed(Target):
        def call(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.arange(10)

    target = Fixed(Endpoint(0, "/"), [], lambda _: np.zeros(0))
    assert recall_of(target, np.arange(10)[np.newaxis]) == 1
    with pytest.raises(OtherResults, match=r"recall 0\.500"):
        recall_of(target, np.arange(5, 15)[np.newaxis])
