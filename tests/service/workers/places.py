"""Places of workers that are no processes: several in one, as a parent would hand them down."""

from __future__ import annotations

import os
from pathlib import Path

from service.sockets import listen
from service.workers.board import Board, Door
from service.workers.place import Place


def places(directory: Path, workers: int = 2) -> list[Place]:
    """Returns a place for each worker; `close` them."""
    board = Board(workers)
    bells = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(workers))
    listeners = {door: listen(door.name, "127.0.0.1", 0) for door in Door}
    return [Place(index, board, bells, directory, listeners, os.getppid()) for index in range(workers)]


def close(several: list[Place]) -> None:
    """Closes what places hold."""
    for bell in several[0].bells:
        os.close(bell)
    for listener in several[0].listeners.values():
        listener.close()
