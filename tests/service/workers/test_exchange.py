"""Workers that ask each other over a Unix socket."""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial
from pathlib import Path

from service.workers import exchange
from service.workers.exchange import Answers, ask


async def said(answer: bytes) -> bytes:
    return answer


def asked(path: Path, words: dict[str, bytes], *questions: str) -> list[bytes | None]:
    async def run() -> list[bytes | None]:
        answers = Answers(path, {word: partial(said, told) for word, told in words.items()})
        await answers.start()
        told = list(await asyncio.gather(*(ask(path, each) for each in questions)))
        await answers.stop()
        return told

    return asyncio.run(run())


def test_ask_returns_the_whole_answer_of_each_word(tmp_path: Path) -> None:
    large = b"x" * (3 << 20)
    assert asked(tmp_path / "a.sock", {"metrics": large, "models": b"[]"}, "models", "metrics") == [b"[]", large]


def test_ask_a_worker_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert asyncio.run(ask(tmp_path / "gone.sock", "metrics")) is None


def test_ask_a_worker_that_never_answers_is_none_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        began = time.monotonic()
        assert asyncio.run(ask(path, "metrics")) is None
        assert time.monotonic() - began < 5 * exchange.ANSWER_S_MAX


def test_word_that_fails_is_no_answer_and_ends_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path / "a.sock", {"models": b"[]"}, "unknown", "models") == [None, b"[]"]


def test_answers_take_the_place_of_a_socket_that_is_left_over(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert asked(path, {"models": b"[1]"}, "models") == [b"[1]"]
