"""The workers of a service as one of them sees them: what the service as a whole says, whichever worker is asked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable

import orjson
from pydantic import TypeAdapter

from service import logs
from service.engine.descriptions import ModelState
from service.metrics import Metrics, beside_calls
from service.workers.board import Door, State
from service.workers.exchange import Answers, ask
from service.workers.families import Family, Totals, merged, read, rendered, told_last, written
from service.workers.models import agreed
from service.workers.place import Place, ring

_log = logs.logger(__name__)

BEAT_S = 1.0
_STUCK_BEATS = 120
"""Own beats in which another worker gave none, after which the service is told not to be alive: its parent should have
replaced that one long before."""
_METRICS, _MODELS, _REVISION = "metrics", "models", "revision"
_STATES = TypeAdapter(tuple[ModelState, ...])


class Crew:
    """Speaks for all workers. Its methods run on the event loop of its worker, but for `tell`."""

    def __init__(
        self,
        place: Place,
        metrics: Metrics,
        models: Callable[[], tuple[ModelState, ...]],
        revision: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """Joins the others.

        Args:
          place: of this worker.
          metrics: its own.
          models: tells its own models and versions.
          revision: tells which revision of what is wanted it does.
          changed: called on the event loop when another worker has become ready, or ceased to be.
        """
        self._place, self._models, self._revision, self._changed = place, models, revision, changed
        self._totals = Totals(place.told_by(place.index), metrics.registry)
        self._answers = Answers(
            place.socket_of(place.index),
            {
                _METRICS: self._own_metrics,
                _MODELS: self._own_models,
                _REVISION: self._own_revision,
            },
        )
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.TimerHandle | None = None
        self._heard = dict.fromkeys(self._others, (-1, 0))

    async def start(self) -> None:
        """Begins to answer the others and to hear them.

        Raises:
          OSError: the socket cannot be made.
        """
        await self._answers.start()
        self._loop.add_reader(self._place.bell, self._rung)
        self._beat()

    async def stop(self) -> None:
        """Answers nobody any more."""
        if self._beating is not None:
            self._beating.cancel()
        self._loop.remove_reader(self._place.bell)
        await self._answers.stop()

    def tell(self, state: State, problem: str = "") -> None:
        """Tells the others how far this worker is. Any thread may call it."""
        if self._place.board.tell(self._place.index, state, problem):
            ring(tuple(bell for bell in self._place.bells if bell != self._place.bell))

    @property
    def serving(self) -> bool:
        """Whether another worker answers calls, so that this one need not hurry to open its doors."""
        return any(self._place.board.state(each) is State.READY for each in self._others)

    @property
    def problem(self) -> str:
        """Why callers should not be sent here for the sake of another worker; empty: none of them is in the way.

        One that has no open doors is in nobody's way: no caller reaches it.
        """
        for worker in self._others:
            if self._place.board.state(worker) is State.OPEN:
                return f"worker {worker}: {self._place.board.problem(worker)}"
        return ""

    @property
    def live(self) -> bool:
        """Whether no worker stands still without being replaced."""
        return all(missed < _STUCK_BEATS for _, missed in self._heard.values())

    async def metrics_page(self) -> bytes:
        """Returns the page of `/metrics` for all workers."""
        return await beside_calls(functools.partial(self._page, await self._ask(_METRICS)))

    def _page(self, answers: dict[int, bytes | None]) -> bytes:
        told = {self._place.index: self._totals.tell()}
        for worker, answer in answers.items():
            told[worker] = told_last(self._place.told_by(worker)) if answer is None else read(answer)
        return rendered([*merged(dict(sorted(told.items()))), *self._of_workers(answers)])

    async def _own_metrics(self) -> bytes:
        return await beside_calls(lambda: written(self._totals.tell()))

    async def _own_models(self) -> bytes:
        return orjson.dumps(self._models())

    async def _own_revision(self) -> bytes:
        return b"%d" % self._revision()

    async def models(self) -> tuple[ModelState, ...]:
        """Returns the models and versions of all workers; where these differ, what is in the way of some."""
        answers = await self._ask(_MODELS)
        states = {each: _STATES.validate_json(answer) for each, answer in answers.items() if answer is not None}
        return agreed({self._place.index: self._models(), **states})

    async def revision(self) -> int:
        """Returns the revision of what is wanted that all workers do which answer."""
        answers = await self._ask(_REVISION)
        return min(self._revision(), *(int(answer) for answer in answers.values() if answer is not None), 2**63)

    @property
    def _others(self) -> list[int]:
        return [each for each in range(self._place.board.workers) if each != self._place.index]

    async def _ask(self, what: str) -> dict[int, bytes | None]:
        """Asks all others at once; None: no answer in time."""
        asked: list[Awaitable[bytes | None]] = [ask(self._place.socket_of(each), what) for each in self._others]
        return dict(zip(self._others, await asyncio.gather(*asked), strict=True))

    def _of_workers(self, answers: dict[int, bytes | None]) -> list[Family]:
        board = self._place.board
        states = {"answering": 1, "silent": 0, "down": 0}
        for worker, answer in answers.items():
            down = board.state(worker) is State.DOWN
            states["answering" if answer is not None else "down" if down else "silent"] += 1
        every = range(board.workers)
        name = "rowcast_worker_connections"
        held = [
            (name, {"worker": str(each), "door": door.name.lower()}, float(board.connections(each, door)))
            for each in every
            for door in Door
        ]
        restarts = float(sum(board.restarts(each) for each in every))
        return [
            Family(
                "rowcast_workers",
                "Processes that serve, by whether they answered for this page",
                "gauge",
                [("rowcast_workers", {"state": state}, float(count)) for state, count in states.items()],
            ),
            Family(name, "Connections that a worker holds, by door", "gauge", held),
            Family(
                "rowcast_worker_restarts",
                "Workers started again after they had ended",
                "counter",
                [("rowcast_worker_restarts_total", {}, restarts)],
            ),
        ]

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._place.bell)
        self._changed()

    def _beat(self) -> None:
        board = self._place.board
        board.beat(self._place.index)
        for worker, (before, missed) in self._heard.items():
            beats = board.beats(worker)
            still = beats == before and board.state(worker) in (State.OPEN, State.READY)
            self._heard[worker] = (beats, missed + 1 if still else 0)
        self._beating = self._loop.call_later(BEAT_S, self._beat)
