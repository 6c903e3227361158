"""A worker's place among the workers of a service: what its parent hands down to it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.workers.board import Board, Door


@dataclass(frozen=True)
class Place:
    """What a worker is given.

    Attributes:
      index: which of the workers it is, from 0; kept by the one that takes its place when it ends.
      board: what all know of each other.
      bells: an eventfd of each worker, rung when the board has news.
      directory: private to the service's user: a socket and the last told counters of each worker.
      listeners: of the doors, which all workers take connections from.
      parent: process id.
      admin: the socket of the admin listener, which the first worker serves; None: there is none.
    """

    index: int
    board: Board
    bells: tuple[int, ...]
    directory: Path
    listeners: Mapping[Door, socket.socket]
    parent: int
    admin: socket.socket | None = None

    @property
    def bell(self) -> int:
        """The eventfd that this worker listens to."""
        return self.bells[self.index]

    @property
    def orphaned(self) -> bool:
        """Whether the parent is gone."""
        return os.getppid() != self.parent

    def socket_of(self, worker: int) -> Path:
        """The Unix socket that a worker answers the others on."""
        return self.directory / f"{worker}.sock"

    def told_by(self, worker: int) -> Path:
        """The file of the counters that a worker told last."""
        return self.directory / f"{worker}.told"


def ring(bells: tuple[int, ...]) -> None:
    """Tells workers that the board has news."""
    for bell in bells:
        with contextlib.suppress(BlockingIOError):  # nobody listened to the last 2^64 - 2: it rings anyway
            os.eventfd_write(bell, 1)
