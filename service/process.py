"""One serving process: builds loader > engine > doors, handles signals, drains; the one room that knows everyone."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import os
import shutil
import signal
import socket
import threading
import time

from bundle import native
from service import logs, supervision
from service.control.app import AdminApp
from service.control.control import Control
from service.control.listener import admin_listener, admin_tokens, port_of
from service.control.server import AdminServer
from service.cores import usable_cores
from service.engine.desk import Desk
from service.engine.engine import Engine
from service.engine.occupancy import Occupancy
from service.exits import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED, EXIT_REQUIRED, EXIT_USAGE
from service.generations.generation import Generation
from service.generations.loader import Loader
from service.generations.pauses import Pauses
from service.generations.policy import Policy
from service.generations.state_file import NAME, StateFile
from service.generations.switch import Switch
from service.generations.warming import Warming
from service.generations.watcher import Watcher
from service.metrics import Metrics
from service.ports_file import write_ports
from service.recordings.recording import Recording
from service.rest.server import HttpServer
from service.rpc.server import RpcServer
from service.security.certificates import HTTP
from service.security.guards import guards_of, on_loopback, tell_exposed_secrets, tell_open_doors
from service.settings import ServiceSettings
from service.sockets import Take, listen, take_all
from service.threads import set_threads
from service.workers.accepting import sharing
from service.workers.board import Door, State
from service.workers.crew import Crew
from service.workers.place import Place

log = logs.logger(__name__)

_CLOSING_S = 1.0
"""Least time that the doors get to write answers that are already computed."""
_NOTICE_S = 0.2
"""How long new calls are still answered: those who keep connections have to learn that they end here."""
_CLOSED_S = 0.2
"""Uvicorn looks ten times a second whether it is to close its door; until then calls come."""
_GOING_DOWN = "the service is going down"
_SETTLING_S = 0.02
_OVERDUE_S = 10
"""After the time to drain, a worker that is still there is ended."""


class Service:
    """One running service: what is built at start, and how it goes down."""

    def __init__(self, settings: ServiceSettings, place: Place | None = None) -> None:
        """Builds a service; `place`: among the workers of which this process is one."""
        self._settings, self._place = settings, place
        threads = set_threads(settings.workers, settings.threads).compute
        self._metrics = Metrics()
        self._switch = Switch()
        self._engine = Engine(self._switch, settings, self._metrics, threads, _occupancy(place))
        self._recording = Recording(settings, self._switch, "0" if place is None else str(place.index))
        self._metrics.recordings(self._recording.outcomes)
        loader = Loader(
            root=settings.root,
            precision=settings.precision,
            verify=settings.verify,
            threads=threads,
            load_bytes_max=settings.load_bytes_max,
            warm_up=self._warm_up,
            device=settings.device,
            processes=lambda: self._loading_processes,
            pause=Pauses(lambda: self._engine.in_flight),
        )
        policy = Policy(settings.versions_latest, settings.keep_previous)
        state = StateFile(settings.state_file or settings.root / NAME)
        self._watcher = Watcher(
            settings.root,
            loader,
            self._switch,
            self._metrics,
            poll_s=settings.poll_s,
            verify_bytes_per_s=-(-settings.verify_bytes_per_s // settings.workers),  # each worker looks for itself
            policy=policy,
            state=state,
            wanted=lambda desired: logs.set_level(desired.log_level or settings.log_level),
        )
        self._warming = Warming(self._switch, self._metrics, settings.warm_bytes_max, settings.warm_bytes_per_s)
        self._guards = guards_of(settings)
        self._metrics.certificates(self._guards.expiries)
        self._crew = None
        if place is not None:
            self._crew = Crew(place, self._metrics, self._engine.models, lambda: self._watcher.revision, self._announce)
        desk = Desk(
            self._engine,
            settings,
            self._metrics,
            self._problem,
            lambda: self._crew is None or self._crew.live,
            self._guards,
            self._crew,
            *_ways(place),
            self._recording.record,
        )
        self._rpc = RpcServer(desk)
        self._http = HttpServer(desk)
        done = None if self._crew is None else self._crew.revision
        control = Control(settings, policy, self._switch, self._watcher, state, desk.models, done)
        self._admin_app = AdminApp(control, admin_tokens(settings))
        self._admin_listener: socket.socket | None = None
        self._admin: AdminServer | None = None
        self._exit_code = EXIT_DONE
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._open = self._required_checked = False
        self._announcing = threading.Lock()
        self._told = self._engine.problem
        self._beating: asyncio.Task[None] | None = None

    def _warm_up(self, generation: Generation, pause: Pauses) -> None:
        """Has a version answer made-up requests, and recorded ones, before it is served."""
        self._engine.warm_up(generation, pause)
        self._recording.try_out(generation, pause)

    async def run(self) -> int:
        """Serves until a signal, then drains; returns the exit code.

        Raises:
          OSError: an address cannot be bound, or the ports file cannot be written.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._look_again)
        self._switch.subscribe(self._changed)
        if native.MISSING:
            log.warning("rows_by_numpy", extra=logs.fields(problem=native.MISSING))
        self._warming.start()
        if self._crew is not None:
            await self._crew.start()
        await self._open_admin()
        if self._crew is not None and self._crew.serving:
            self._watcher.start()  # whose place this worker takes is not missed: it comes when it can answer
            while not (self._switch.settled or self._stopping.is_set()):
                await asyncio.sleep(_SETTLING_S)
            http = await self._open_doors()
        else:
            http = await self._open_doors()
            self._watcher.start()
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((http, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self._drain(http)
        return self._exit_code

    async def _open_doors(self) -> asyncio.Task[None]:
        """Begins to listen, as a worker on what its parent bound; returns what serves HTTP."""
        settings, place = self._settings, self._place
        if place is None:
            listener = listen("HTTP", settings.host, settings.http_port)
            grpc_port = await self._rpc.start(settings.host, settings.grpc_port)
        else:
            listener = place.listeners[Door.HTTP]
            grpc_port = await self._rpc.start(settings.host, 0, place.listeners[Door.GRPC])
        http_port = int(listener.getsockname()[1])
        http = asyncio.create_task(self._http.serve([listener]))
        while not self._http.started and not http.done():
            await asyncio.sleep(0.001)
        if place is None:  # else the parent tells, once all workers are here
            if settings.ports_file is not None:
                write_ports(settings.ports_file, http_port, grpc_port, port_of(self._admin_listener))
            ports = {"http": http_port, "grpc": grpc_port, "admin": port_of(self._admin_listener)}
            log.info("listening", extra=logs.fields(host=settings.host, **ports))
            supervision.tell(supervision.READY)
            self._beating = asyncio.create_task(supervision.beat())
        if place is None or place.index == 0:
            tell_open_doors(settings)
            tell_exposed_secrets(settings)
            self._guards.tell()
        self._open = True
        self._announce()
        return http

    async def _open_admin(self) -> None:
        """Begins to listen to operators, whatever else is ready; of several workers, the first one does."""
        place = self._place
        if place is None:
            self._admin_listener = admin_listener(self._settings)
        elif place.index == 0:
            self._admin_listener = place.admin
        if self._admin_listener is not None:
            certificates = self._guards.certificates
            tls = None
            if certificates is not None and not on_loopback(self._settings.admin_host):
                tls = certificates.context(HTTP)
            self._admin = AdminServer(self._admin_app, self._metrics, self._admin_listener, tls)
            await self._admin.start()

    @property
    def _loading_processes(self) -> int:
        """How many load a version when this one does: one that takes the place of another is alone in that."""
        alone = self._crew is not None and self._crew.serving and not self._switch.settled
        return 1 if alone else self._settings.workers

    def idle(self) -> bool:
        """Tells whether no call is computing any more."""
        return self._engine.in_flight == 0

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            if self._place is not None:  # a second signal is the parent's, which ends its workers by SIGKILL
                return
            log.warning("interrupted", extra=logs.fields(signal=number.name))
            logging.shutdown()
            os._exit(EXIT_INTERRUPTED)
        log.info("draining", extra=logs.fields(signal=number.name, drain_s=self._settings.drain_s))
        self._stopping.set()

    def _look_again(self) -> None:
        log.info("looking_again", extra=logs.fields(signal=signal.SIGHUP.name))
        self._watcher.look_again()
        self._guards.follow()

    def _changed(self) -> None:
        """Passes on what the switch tells, in the thread that changed it."""
        self._announce()
        versions = [(name, each.version, each.state) for name, all_ in self._switch.models().items() for each in all_]
        self._metrics.versions(versions)
        if self._switch.settled and not self._required_checked:
            self._required_checked = True
            gc.freeze()  # what the first load imported stays, too: full collections had taken up to 46 ms for it
            missing = sorted(set(self._settings.require) - self._switch.available())
            if missing:
                log.error("required_models_missing", extra=logs.fields(models=missing))
                self._exit_code = EXIT_REQUIRED
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _problem(self) -> str:
        """Why callers should not be sent to this service, be it for the sake of another worker."""
        problem = _GOING_DOWN if self._stopping.is_set() else self._engine.problem
        return problem or ("" if self._crew is None else self._crew.problem)

    def _announce(self) -> None:
        with self._announcing:
            problem = _GOING_DOWN if self._stopping.is_set() else self._engine.problem
            self._metrics.ready.set(not problem)
            if self._crew is not None:
                self._crew.tell(self._state(problem), problem)
            self._rpc.set_serving(not self._problem())
            told, self._told = self._told, problem
        if problem == told:
            return
        if problem:
            log.warning("not_ready", extra=logs.fields(problem=problem))
        else:
            log.info("ready")

    def _state(self, problem: str) -> State:
        if self._stopping.is_set():
            return State.DRAINING
        if not self._open:
            return State.STARTING
        return State.OPEN if problem else State.READY

    async def _drain(self, http: asyncio.Task[None]) -> None:
        """Not ready at once; for a moment calls are answered that come nonetheless, each as the last of its connection;
        then the doors close, and what is in flight ends."""
        end = time.monotonic() + self._settings.drain_s
        if self._place is None:
            supervision.tell(supervision.STOPPING)
        else:  # whatever it hangs in, and whether or not its parent is there to end it
            signal.alarm(math.ceil(self._settings.drain_s + _OVERDUE_S))
        self._watcher.stop()
        self._warming.stop()
        self._announce()
        self._http.leave()
        self._rpc.leave()
        await asyncio.sleep(min(_NOTICE_S, self._settings.drain_s))
        left_s = max(0.0, end - time.monotonic())
        self._http.should_exit = True
        doors = asyncio.gather(self._rpc.stop(left_s + _CLOSING_S), asyncio.wait([http], timeout=left_s + _CLOSING_S))
        await asyncio.sleep(min(_CLOSED_S, left_s))
        self._engine.drain()
        drained = await self._engine.drained(max(0.0, end - time.monotonic()))
        if not drained:
            log.warning("drain_incomplete", extra=logs.fields(in_flight=self._engine.in_flight))
        await doors
        self._engine.close()
        self._recording.close()
        if drained:
            self._switch.close()
        if self._admin is not None:
            await self._admin.stop()
        if self._crew is not None:
            await self._crew.stop()
        if self._place is not None and self._place.orphaned:
            shutil.rmtree(self._place.directory, ignore_errors=True)
        log.info("stopped", extra=logs.fields(drained=drained))


async def serve(settings: ServiceSettings, place: Place | None = None) -> int:
    """Runs a service, or one worker of it, until it ends; returns the exit code, having told in the log what failed."""
    service = Service(settings, place)
    try:
        code = await service.run()
    except OSError as problem:
        log.error("cannot_start", extra=logs.fields(problem=str(problem)))
        code = EXIT_USAGE
    except Exception:
        log.exception("crashed")
        code = EXIT_BUG
    if not service.idle():  # a thread that computes cannot be stopped, and would keep the process
        logging.shutdown()
        os._exit(code)
    return code


def _ways(place: Place | None) -> tuple[Take, Take]:
    """How connections of HTTP and of gRPC are taken."""
    return (take_all, take_all) if place is None else (sharing(place, Door.HTTP), sharing(place, Door.GRPC))


def _occupancy(place: Place | None) -> Occupancy:
    """What tells whether cores are idle, in whatever worker."""
    if place is None:
        return Occupancy(usable_cores())
    keep, beside = place.board.keep_at_work, place.board.at_work_beside
    return Occupancy(usable_cores(), functools.partial(keep, place.index), functools.partial(beside, place.index))
