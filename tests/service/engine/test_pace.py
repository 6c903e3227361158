"""Which kinds of calls are computed on the event loop. Times are told: never slept."""

from __future__ import annotations

from typing import cast

from service.engine.pace import Began, Paces, Where
from service.generations.generation import Generation

LIMIT_S = 0.004


class _Loaded:
    """Stands for a generation: all that is asked of it is which one it is, and of which model."""

    def __init__(self, model: str) -> None:
        self.model = model


def generation(model: str = "movies") -> Generation:
    return cast(Generation, _Loaded(model))


def burnt(limits: float = 100) -> Began:
    """Tells since when something that took so many limits was computed."""
    now = Began.now()
    return Began(now.clock_s - limits * LIMIT_S, now.cpu_s - limits * LIMIT_S)


def away(paces: Paces, loaded: Generation, kind: str) -> int:
    """How many calls go to the threads before the next is computed on the loop."""
    return next(count for count in range(100_000) if paces.where(loaded, kind) is Where.AT_ONCE)


def test_kind_is_short_once_a_call_of_it_was_and_only_with_that_model() -> None:
    paces, loaded, other = Paces(LIMIT_S, 0), generation(), generation("books")
    assert paces.where(loaded, "a") is Where.THREAD
    paces.computed(loaded, "a", LIMIT_S / 3)
    assert paces.where(loaded, "a") is Where.AT_ONCE
    assert paces.where(loaded, "b") is Where.THREAD
    assert paces.where(other, "a") is Where.THREAD


def test_slow_kind_is_never_short() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    for _ in range(1000):
        paces.computed(loaded, "a", LIMIT_S * 0.6)  # may take twice as long on the loop
        assert paces.where(loaded, "a") is Where.THREAD


def test_calls_that_waited_for_a_core_do_not_hide_how_long_computing_takes() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    paces.computed(loaded, "a", LIMIT_S / 4)
    for _ in range(10):
        paces.computed(loaded, "a", LIMIT_S * 100)
    assert paces.where(loaded, "a") is Where.AT_ONCE


def test_kind_that_turns_slow_for_good_is_found_slow_in_the_threads() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    paces.computed(loaded, "a", LIMIT_S / 100)
    for _ in range(200):
        paces.computed(loaded, "a", LIMIT_S * 100)
    assert paces.where(loaded, "a") is Where.THREAD


def test_limit_of_zero_lets_nothing_be_short() -> None:
    paces, loaded = Paces(0, 0), generation()
    paces.computed(loaded, "a", 1e-9)
    assert paces.where(loaded, "a") is Where.THREAD


def test_call_that_held_the_loop_up_sends_more_of_its_kind_away_each_time() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    for kind in ("a", "b"):
        paces.computed(loaded, kind, LIMIT_S / 10)
    seen = []
    for _ in range(3):
        paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
        seen.append(away(paces, loaded, "a"))
    assert seen == [8, 16, 32]
    assert paces.where(loaded, "b") is Where.AT_ONCE


def test_call_that_takes_a_little_too_long_is_blamed_only_where_that_is_usual() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    paces.computed(loaded, "a", LIMIT_S / 10)
    for _ in range(50):
        paces.held_up(loaded, "a", burnt(3), Where.AT_ONCE)
        for _ in range(9):
            paces.held_up(loaded, "a", burnt(0.1), Where.AT_ONCE)
    assert paces.where(loaded, "a") is Where.AT_ONCE
    for _ in range(10):
        paces.held_up(loaded, "a", burnt(3), Where.AT_ONCE)
    assert away(paces, loaded, "a") == 8


def test_kind_that_holds_the_loop_up_now_and_then_is_forgiven() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    paces.computed(loaded, "a", LIMIT_S / 10)
    for _ in range(3):
        paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
        for _ in range(30):
            paces.held_up(loaded, "a", Began.now(), Where.AT_ONCE)
    paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
    assert away(paces, loaded, "a") < 3 * 8


def test_call_that_only_waited_for_a_core_is_not_blamed() -> None:
    paces, loaded = Paces(LIMIT_S, 0), generation()
    paces.computed(loaded, "a", LIMIT_S / 10)
    now = Began.now()
    paces.held_up(loaded, "a", Began(now.clock_s - 1, now.cpu_s), Where.AT_ONCE)
    assert paces.where(loaded, "a") is Where.AT_ONCE


def test_kind_that_is_not_short_waits_for_the_loop_then_for_whoever_is_free_and_a_long_one_for_a_thread() -> None:
    paces, loaded = Paces(LIMIT_S, 3 * LIMIT_S), generation()
    for kind, seconds, where in (
        ("short", LIMIT_S / 3, Where.AT_ONCE),
        ("nearly short", LIMIT_S, Where.LOOP),
        ("middle", LIMIT_S * 1.2, Where.ANYWHERE),
        ("long", LIMIT_S * 2, Where.THREAD),
    ):
        paces.computed(loaded, kind, seconds)
        assert paces.where(loaded, kind) is where


def test_short_kind_that_held_the_loop_up_waits_for_the_loop_and_goes_to_the_threads_once_a_turn_did() -> None:
    paces, loaded = Paces(LIMIT_S, 1000 * LIMIT_S), generation()
    paces.computed(loaded, "a", LIMIT_S / 10)
    paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
    assert [paces.where(loaded, "a") for _ in range(9)] == [Where.LOOP] * 8 + [Where.AT_ONCE]
    paces = Paces(LIMIT_S, LIMIT_S)
    paces.computed(loaded, "a", LIMIT_S / 10)
    paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
    paces.held_up(loaded, "a", burnt(), Where.LOOP)
    assert [paces.where(loaded, "a") for _ in range(17)] == [Where.THREAD] * 16 + [Where.AT_ONCE]


def test_calls_that_were_sent_at_once_together_are_blamed_once() -> None:
    paces, loaded = Paces(LIMIT_S, 1000 * LIMIT_S), generation()
    paces.computed(loaded, "a", LIMIT_S / 10)
    for _ in range(5):
        paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
    assert away(paces, loaded, "a") == 8
    paces.held_up(loaded, "a", burnt(), Where.AT_ONCE)
    assert away(paces, loaded, "a") == 16


def test_turn_that_held_the_loop_up_longer_than_a_turn_may_sends_its_kind_away() -> None:
    paces, loaded = Paces(0, LIMIT_S), generation()
    paces.computed(loaded, "a", LIMIT_S / 3)
    paces.held_up(loaded, "a", burnt(2), Where.ANYWHERE, calls=2)
    assert paces.where(loaded, "a") is Where.ANYWHERE
    paces.held_up(loaded, "a", burnt(), Where.ANYWHERE)
    assert [paces.where(loaded, "a") for _ in range(9)] == [Where.THREAD] * 8 + [Where.ANYWHERE]


def test_new_version_begins_with_what_calls_of_the_one_before_it_took() -> None:
    paces, before, after = Paces(LIMIT_S, 0), generation(), generation()
    paces.computed(before, "a", LIMIT_S / 3)
    paces.computed(before, "b", LIMIT_S)
    for kind, where in (("a", Where.AT_ONCE), ("b", Where.THREAD), ("c", Where.THREAD)):
        assert paces.where(after, kind) is where
    paces.held_up(after, "a", burnt(), Where.AT_ONCE)
    assert paces.where(after, "a") is Where.THREAD
    assert paces.where(before, "a") is Where.AT_ONCE
