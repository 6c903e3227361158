"""The page that workers share: what one process writes, another that was forked from the same reads."""

from __future__ import annotations

import multiprocessing

from service.workers.board import Board, Door, State


def test_board_slots_are_apart_and_begin_empty() -> None:
    board = Board(3)
    board.tell(1, State.OPEN, "no bundle has come into the root yet")
    board.hold(1, Door.GRPC, 7)
    board.beat(1)
    board.restarted(1)
    told = [
        (board.state(each), board.problem(each), board.beats(each), board.restarts(each), board.connections(each, door))
        for each in range(3)
        for door in Door
    ]
    assert told[:2] == told[4:] == [(State.DOWN, "", 0, 0, 0)] * 2
    assert told[2:4] == [(State.OPEN, "no bundle has come into the root yet", 1, 1, held) for held in (0, 7)]


def test_tell_twice_the_same_is_no_news() -> None:
    board = Board(1)
    assert [board.tell(0, State.OPEN, "a"), board.tell(0, State.OPEN, "a"), board.tell(0, State.READY)] == [
        True,
        False,
        True,
    ]
    assert board.problem(0) == ""


def test_problem_longer_than_its_slot_is_cut_between_characters() -> None:
    board = Board(2)
    told = "x" + "é" * 300
    assert board.tell(0, State.OPEN, told)
    assert board.problem(0) == "x" + "é" * 95
    assert board.state(1) is State.DOWN
    assert board.problem(1) == ""


def test_what_a_forked_process_writes_is_read_here() -> None:
    board = Board(2)

    def write() -> None:
        board.tell(1, State.READY)
        board.hold(1, Door.HTTP, 5)

    child = multiprocessing.get_context("fork").Process(target=write)
    child.start()
    child.join(30)
    assert (board.state(1), board.connections(1, Door.HTTP)) == (State.READY, 5)
