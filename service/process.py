"""One serving process: builds loader > engine > doors, handles signals, drains; the one room that knows everyone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from pathlib import Path

import orjson

from service import logs
from service.engine.desk import Desk
from service.engine.engine import Engine
from service.exits import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED, EXIT_REQUIRED, EXIT_USAGE
from service.generations.loader import Loader
from service.generations.switch import Switch
from service.generations.watcher import Watcher
from service.metrics import Metrics
from service.rest.server import HttpServer
from service.rpc.server import RpcServer
from service.security.guards import guards_of, tell_open_doors
from service.settings import ServiceSettings, usable_cores

log = logs.logger(__name__)

_CLOSING_S = 1.0
"""Least time that the doors get to write answers that are already computed."""
_NOTICE_S = 0.2
"""How long new calls are still answered, with NOT_READY: once the door closes, gRPC cancels what is on its way."""


class Service:
    """One running service: what is built at start, and how it goes down."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        threads = settings.threads or max(1, usable_cores() // settings.workers)
        self._metrics = Metrics()
        self._switch = Switch()
        self._engine = Engine(self._switch, settings, self._metrics, threads)
        loader = Loader(
            root=settings.root,
            precision=settings.precision,
            verify=settings.verify,
            threads=threads,
            load_bytes_max=settings.load_bytes_max,
            warm_up=self._engine.warm_up,
            device=settings.device,
        )
        self._watcher = Watcher(
            settings.root,
            loader,
            self._switch,
            self._metrics,
            poll_s=settings.poll_s,
            verify_bytes_per_s=settings.verify_bytes_per_s,
        )
        self._guards = guards_of(settings)
        desk = Desk(self._engine, settings, self._metrics, lambda: self._engine.problem, lambda: True, self._guards)
        self._rpc = RpcServer(desk)
        self._http = HttpServer(desk)
        self._exit_code = EXIT_DONE
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._required_checked = False
        self._told = self._engine.problem

    async def run(self) -> int:
        """Serves until a signal, then drains; returns the exit code.

        Raises:
          OSError: an address cannot be bound, or the ports file cannot be written.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._look_again)
        listener = _listen(self._settings.host, self._settings.http_port)
        http_port = int(listener.getsockname()[1])
        grpc_port = await self._rpc.start(self._settings.host, self._settings.grpc_port)
        http = asyncio.create_task(self._http.serve([listener]))
        while not self._http.started and not http.done():
            await asyncio.sleep(0.001)
        if self._settings.ports_file is not None:
            _write_ports(self._settings.ports_file, http_port, grpc_port)
        log.info("listening", extra=logs.fields(host=self._settings.host, http=http_port, grpc=grpc_port))
        tell_open_doors(self._settings)
        self._switch.subscribe(self._changed)
        self._watcher.start()
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((http, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self._drain(http)
        return self._exit_code

    def idle(self) -> bool:
        """Tells whether no call is computing any more."""
        return self._engine.in_flight == 0

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
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
            missing = sorted(set(self._settings.require) - self._switch.available())
            if missing:
                log.error("required_models_missing", extra=logs.fields(models=missing))
                self._exit_code = EXIT_REQUIRED
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _announce(self) -> None:
        problem = self._engine.problem
        self._metrics.ready.set(not problem)
        self._rpc.set_serving(not problem)
        told, self._told = self._told, problem
        if problem == told:
            return
        if problem:
            log.warning("not_ready", extra=logs.fields(problem=problem))
        else:
            log.info("ready")

    async def _drain(self, http: asyncio.Task[None]) -> None:
        """Not ready at once; what is in flight ends; then the doors close."""
        end = time.monotonic() + self._settings.drain_s
        self._watcher.stop()
        self._engine.drain()
        self._announce()
        notice = asyncio.create_task(asyncio.sleep(min(_NOTICE_S, self._settings.drain_s)))
        drained = await self._engine.drained(self._settings.drain_s)
        await notice
        if not drained:
            log.warning("drain_incomplete", extra=logs.fields(in_flight=self._engine.in_flight))
        left_s = max(_CLOSING_S, end - time.monotonic())
        self._http.should_exit = True
        await asyncio.gather(self._rpc.stop(left_s if drained else 0), asyncio.wait([http], timeout=left_s))
        self._engine.close()
        if drained:
            self._switch.close()
        log.info("stopped", extra=logs.fields(drained=drained))


async def serve(settings: ServiceSettings) -> int:
    """Runs a service until it ends; returns the exit code, having told what went wrong in the log."""
    service = Service(settings)
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as problem:
        raise OSError(f"HTTP cannot listen on {host}:{port}: {problem.strerror or problem}") from problem


def _write_ports(path: Path, http: int, grpc: int) -> None:
    """Writes the bound ports in one rename, so that a waiting reader never sees half of them."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(orjson.dumps({"http": http, "grpc": grpc}))
    aside.replace(path)
