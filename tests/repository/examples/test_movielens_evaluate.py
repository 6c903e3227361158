"""The example's figures against values computed by hand."""

import math

import numpy as np
import pytest

from examples.movielens import data, evaluate
from examples.movielens.evaluate import Question
from examples.movielens.examples import encode, requests


def question(seen: list[int], wanted: list[int]) -> Question:
    return Question(1, np.array(seen[-2:]), 3, np.array(seen), np.array(wanted))


def test_measure_of_two_viewers_is_the_hand_computed_one() -> None:
    questions = [question([100], [1, 2, 3]), question([200], [50])]
    results = [np.array([9, 1, 8, 3, *range(10, 16)]), np.arange(10, 20)]
    quality = evaluate.measure("x", questions, results)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert quality.hits.tolist() == [1, 0]
    assert quality.hit_rate.value == 0.5
    assert quality.ndcg.value == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal / 2)


@pytest.mark.parametrize("result", [[1, 1], [100, 2]])
def test_measure_rejects_repeated_and_seen_movies(result: list[int]) -> None:
    with pytest.raises(ValueError, match="repeats a movie or holds one already seen"):
        evaluate.measure("x", [question([100], [1])], [np.array(result)])


def small() -> data.MovieLens:
    movies = data.Movies(
        np.array([10, 20, 30, 40], np.int64),
        ("a", "b", "c", "d"),
        np.array([1990, 0, 2000, 2001], np.int64),
        (("X",), ("Y", "X"), (), ("Y",)),
    )
    users = np.array([5, 5, 5, 5, 7, 7, 7], np.int64)
    rated = np.array([10, 20, 30, 40, 40, 30, 10], np.int64)
    times = np.array([0, 3600, 7200, 25 * 3600, 1, 2, 3], np.int64)
    return data.MovieLens(movies, data.ordered(users, rated, times), "by hand")


def test_requests_stop_where_the_held_out_ones_begin() -> None:
    movielens = small()
    encoded = encode(movielens)
    parts = data.split(movielens.ratings, held_out=1)
    first, second = evaluate.questions_of(encoded, requests(encoded, parts.test, history=2))
    assert (first.user_id, first.hour) == (5, 1)
    assert first.history.tolist() == [20, 30]
    assert first.seen.tolist() == [10, 20, 30]
    assert first.watched_next.tolist() == [40]
    assert (second.user_id, second.seen.tolist(), second.watched_next.tolist()) == (
        7,
        [40, 30],
        [10],
    )
