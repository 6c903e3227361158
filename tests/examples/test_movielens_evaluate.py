"""The example's figures against values computed by hand."""

import math

import numpy as np
import pytest

from examples.movielens import data, evaluate
from examples.movielens.evaluate import Ask
from examples.movielens.examples import encode, requests


def ask(seen: list[int], wanted: list[int]) -> Ask:
    return Ask(1, np.array(seen[-2:]), 3, np.array(seen), np.array(wanted))


def test_measure_of_two_viewers_is_the_hand_computed_one() -> None:
    questions = [ask([100], [1, 2, 3]), ask([200], [50])]
    answers = [np.array([9, 1, 8, 3, *range(10, 16)]), np.arange(10, 20)]
    quality = evaluate.measure("x", questions, answers)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert quality.viewers == 2
    assert quality.hit_rate.value == 0.5
    assert quality.ndcg.value == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal / 2)


def test_measure_looks_at_ten_places_only() -> None:
    quality = evaluate.measure("x", [ask([100], [11])], [np.arange(1, 12)])
    assert quality.hit_rate.value == 0
    assert quality.ndcg.value == 0


def test_measure_of_a_perfect_answer_is_one() -> None:
    quality = evaluate.measure("x", [ask([100], list(range(1, 13)))], [np.arange(1, 11)])
    assert (quality.hit_rate.value, quality.ndcg.value) == (1, 1)


@pytest.mark.parametrize("answer", [[1, 1], [100, 2]])
def test_measure_refuses_repeated_and_seen_movies(answer: list[int]) -> None:
    with pytest.raises(ValueError, match="repeats a movie or holds one already seen"):
        evaluate.measure("x", [ask([100], [1])], [np.array(answer)])


def test_wilson_is_the_published_interval() -> None:
    # 81 of 263: 0.2553 to 0.3662, the worked example of Newcombe 1998, Statistics in Medicine 17, table I.
    interval = evaluate.wilson(81, 263)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


def test_mean_of_four_values_is_the_hand_computed_one() -> None:
    interval = evaluate.mean(np.array([0.4, 0.6, 0.6, 0.4]))
    assert interval.value == 0.5
    assert interval.high - 0.5 == pytest.approx(1.959964 * math.sqrt(0.04 / 3) / 2)
    assert 0.5 - interval.low == pytest.approx(interval.high - 0.5)


def test_mean_near_zero_has_no_negative_share() -> None:
    interval = evaluate.mean(np.array([0.0, 0.0, 0.0, 0.5]))
    assert interval.low == 0
    assert interval.high > 0.25


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
    found = small()
    encoded = encode(found)
    parts = data.split(found.ratings, held_out=1)
    first, second = evaluate.asks(encoded, requests(encoded, parts.test, history=2))
    assert (first.user_id, first.hour) == (5, 1)
    assert first.history.tolist() == [20, 30]
    assert first.seen.tolist() == [10, 20, 30]
    assert first.wanted.tolist() == [40]
    assert (second.user_id, second.seen.tolist(), second.wanted.tolist()) == (7, [40, 30], [10])


def test_encode_numbers_users_from_one_and_genres_by_name() -> None:
    encoded = encode(small())
    assert encoded.users.tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert encoded.genres == ("X", "Y")
    assert encoded.movie_genres[np.array([3, 1, 2])].values.tolist() == [1, 1, 0]
    assert encoded.movie_genres[np.array([3, 1, 2])].offsets.tolist() == [0, 1, 3, 3]


def test_popularity_leaves_out_what_was_seen_and_orders_ties_by_id() -> None:
    encoded = encode(small())
    answer = evaluate.popularity(encoded, np.arange(7))
    assert answer([ask([], [1]), ask([30], [1])])[0].tolist() == [10, 30, 40, 20]
    assert answer([ask([], [1]), ask([30], [1])])[1].tolist() == [10, 40, 20]
