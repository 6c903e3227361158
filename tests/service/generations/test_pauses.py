"""Pauses of a load: long enough beside calls, none without."""

from __future__ import annotations

import time

from service.generations.pauses import PIECE_S, SHARE, Pauses


def work(seconds: float) -> float:
    """Keeps this thread computing; returns the CPU it took, seconds."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return time.thread_time() - began


def test_work_beside_calls_is_followed_by_a_pause_that_leaves_it_its_share() -> None:
    slept: list[float] = []
    pause = Pauses(lambda: 1, slept.append)
    pause.begin()
    worked = work(4 * PIECE_S)
    pause()
    assert len(slept) == 1
    assert slept[0] >= worked * (1 / SHARE - 1)


def test_pieces_too_small_for_a_pause_are_added_up() -> None:
    slept: list[float] = []
    pause = Pauses(lambda: 1, slept.append)
    pause.begin()
    while not slept:
        work(PIECE_S / 100)
        pause()
    assert slept[0] >= PIECE_S * (1 / SHARE - 1)


def test_without_calls_nothing_pauses() -> None:
    slept: list[float] = []
    pause = Pauses(lambda: 0, slept.append)
    pause.begin()
    work(4 * PIECE_S)
    pause()
    assert slept == []
