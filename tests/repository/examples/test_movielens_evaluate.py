"""The example's figures against values computed by hand."""

import math

import numpy as np
import pytest

from examples.movielens import companions, data, evaluate
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


def test_measure_looks_at_ten_places_only() -> None:
    quality = evaluate.measure("x", [question([100], [11])], [np.arange(1, 12)])
    assert quality.hit_rate.value == 0
    assert quality.ndcg.value == 0


def test_measure_of_a_perfect_list_is_one() -> None:
    quality = evaluate.measure("x", [question([100], list(range(1, 13)))], [np.arange(1, 11)])
    assert (quality.hit_rate.value, quality.ndcg.value) == (1, 1)


@pytest.mark.parametrize("result", [[1, 1], [100, 2]])
def test_measure_rejects_repeated_and_seen_movies(result: list[int]) -> None:
    with pytest.raises(ValueError, match="repeats a movie or holds one already seen"):
        evaluate.measure("x", [question([100], [1])], [np.array(result)])


def test_bootstrap_is_close_to_the_normal_interval_of_many_values() -> None:
    values = np.random.default_rng(1).exponential(size=2_000)
    interval = evaluate.bootstrap(values)
    half = 1.959964 * values.std() / math.sqrt(len(values))
    assert interval.value == values.mean()
    assert (interval.value - interval.low, interval.high - interval.value) == pytest.approx(
        (half, half), rel=0.1
    )


def test_bootstrap_of_paired_differences_finds_what_single_intervals_hide() -> None:
    values = np.random.default_rng(2).exponential(size=200)
    better = values + np.random.default_rng(3).normal(0.05, 0.02, 200)
    assert evaluate.bootstrap(better).low < evaluate.bootstrap(values).high
    assert evaluate.bootstrap(better - values).low > 0


def test_interval_is_written_with_both_ends() -> None:
    assert str(evaluate.bootstrap(np.ones(3))) == "1.0000 (1.0000 to 1.0000)"


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


def test_encode_numbers_users_from_one_and_genres_by_name() -> None:
    encoded = encode(small())
    assert encoded.users.tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert encoded.genres == ("X", "Y")
    assert encoded.movie_genres[np.array([3, 1, 2])].values.tolist() == [1, 1, 0]
    assert encoded.movie_genres[np.array([3, 1, 2])].offsets.tolist() == [0, 1, 3, 3]


def test_popularity_leaves_out_what_was_seen_and_orders_ties_by_id() -> None:
    first, second = evaluate.popularity(
        encode(small()), np.arange(7), [question([], [1]), question([30], [1])]
    )
    assert first.tolist() == [10, 30, 40, 20]
    assert second.tolist() == [10, 40, 20]


def test_companions_are_what_was_watched_before_by_the_same_viewer_closest_first() -> None:
    encoded = encode(small())  # one viewer watched rows 0, 1, 2, 3, another 3, 2, 0
    counted = companions.count(encoded, np.arange(7))
    # 0 was watched 2 times, 1 once, 2 and 3 twice; closeness is 10 over the root of (times + 10) of
    # both.
    assert [counted.movies[row].tolist() for row in range(4)] == [[2, 3], [0], [1, 0, 3], [1, 0, 2]]
    assert counted.closeness[1, :2].tolist() == pytest.approx([10 / math.sqrt(12 * 11), 0])
    assert counted.closeness[3, :3].tolist() == pytest.approx(
        [10 / math.sqrt(12 * 11), 10 / 12, 10 / 12]
    )


def test_companions_count_nothing_of_other_rows() -> None:
    counted = companions.count(encode(small()), np.array([0, 1, 4]))
    assert [counted.movies[row].tolist() for row in range(4)] == [[], [0], [], []]
