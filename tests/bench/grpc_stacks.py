"""What a gRPC call costs before any work: the service's own stack beside those that may be had, each in one process.

`python -m tests.bench.grpc_stacks` calls an empty method (480 bytes there and back) of each in turns and prints CPU of
the server a call and the calls that one core would answer. Stacks that are not installed are named as such.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from service.rpc.transport.limits import Limits
from service.rpc.transport.listener import Listener
from service.rpc.transport.messages import OK
from service.rpc.transport.room import Room
from service.rpc.transport.streams import Finish, Method, Stream
from tests.bench.load import Door, Load
from tests.bench.services import Program

METHOD, BODY = "/Echo/Echo", bytes(480)
CALLERS = (1, 8, 32)
OWN = "rowcast"


class _Echo:
    """Answers as the service's hot calls do, by callback."""

    def __init__(self, stream: Stream, finish: Finish) -> None:
        self._stream, self._finish = stream, finish

    def begin(self) -> None:
        self._finish(self._stream, self._stream.message_now(), OK)

    def cancel(self) -> None:
        """Never: it is answered at once."""


async def _own(port: int) -> None:
    await Listener(Room({METHOD.encode(): Method(work=_Echo)}, Limits(), 1.0)).start("127.0.0.1", port)
    await asyncio.Event().wait()


def _handlers(echo: Callable[[bytes, Any], Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler("Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})


async def _aio(port: int) -> None:
    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handlers(echo),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def _pygrpc_native(port: int) -> None:
    import pygrpc_native.aio  # type: ignore[import-not-found]

    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    server = pygrpc_native.aio.server()
    server.add_registered_method_handlers("Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def _grpclib(port: int) -> None:
    from grpclib import const, server  # type: ignore[import-not-found]

    class Raw:
        __content_subtype__ = "proto"

        def encode(self, message: bytes, _kind: Any) -> bytes:
            return message

        def decode(self, data: bytes, _kind: Any) -> bytes:
            return data

    class Echo:
        def __mapping__(self) -> dict[str, Any]:
            return {METHOD: const.Handler(self.echo, const.Cardinality.UNARY_UNARY, bytes, bytes)}

        async def echo(self, stream: Any) -> None:
            await stream.send_message(await stream.recv_message())

    serving = server.Server([Echo()], codec=Raw())
    await serving.start("127.0.0.1", port)
    await serving.wait_closed()


def _threads(port: int) -> None:
    def echo(request: bytes, _context: Any) -> bytes:
        return request

    server = grpc.server(ThreadPoolExecutor(4), handlers=(_handlers(echo),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


@dataclass(frozen=True)
class Stack:
    """A way to serve gRPC from Python: what it needs installed, and what serves by it."""

    needs: str
    serve: Callable[[int], Coroutine[Any, Any, None]] | Callable[[int], None]
    uvloop: bool = True


STACKS = {
    OWN: Stack("hpack", _own),
    "grpc.aio": Stack("grpc", _aio, uvloop=False),
    "grpc.aio, uvloop": Stack("grpc", _aio),
    "grpc.server, 4 threads": Stack("grpc", _threads),
    "grpclib": Stack("grpclib", _grpclib),
    "pygrpc-native": Stack("pygrpc_native", _pygrpc_native),
}


@dataclass(frozen=True)
class Cost:
    """Of one stack: least CPU microseconds a call by number of callers."""

    name: str
    cpu_us: dict[int, float]


def measure(names: Sequence[str], rounds: int, seconds: float, scratch: Path) -> list[Cost]:
    """Measures stacks in turns, the others stopped.

    Raises:
      RuntimeError: a call failed.
    """
    from tests.bench.peers.contenders import free_ports

    running: dict[str, tuple[Program, Load]] = {}
    least: dict[str, dict[int, float]] = {}
    try:
        for name, port in zip(names, free_ports(len(names)), strict=True):
            command = [sys.executable, "-m", "tests.bench.grpc_stacks", "--serve", name, "--port", str(port)]
            door = Door(port, METHOD)
            program = Program(command, partial(_answers, port), scratch / f"{port}.log")
            running[name] = program, Load(door, [BODY])
            running[name][0].pause()
        for _ in range(rounds):
            for name, (program, load) in running.items():
                program.go_on()
                for callers in CALLERS:
                    before = program.cpu_s()
                    found = load.closed(callers, seconds)
                    if found.failed:
                        raise RuntimeError(f"{name}: {found.failed} calls failed")
                    spent = (program.cpu_s() - before) / found.answered * 1e6
                    costs = least.setdefault(name, {})
                    costs[callers] = min(costs.get(callers, spent), spent)
                program.pause()
    finally:
        for program, load in running.values():
            program.close()
            load.close()
    return [Cost(name, costs) for name, costs in least.items()]


def _answers(port: int) -> bool:
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            return bool(channel.unary_unary(METHOD)(BODY, timeout=5) == BODY)
    except grpc.RpcError:
        return False


def show(costs: Sequence[Cost], console: Console) -> None:
    """Prints a row for each stack."""
    table = Table(
        "stack", *(f"CPU us a call, {callers} callers" for callers in CALLERS), "calls/s of one core, at best"
    )
    for cost in costs:
        best = min(cost.cpu_us.values())
        told = f"{1e6 / best:,.0f}" if best else "-"
        table.add_row(cost.name, *(f"{cost.cpu_us[callers]:.1f}" for callers in CALLERS), told)
    console.print(table)


def main() -> None:
    """Measures, or serves as one of the stacks."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.grpc_stacks", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block")
    options.add_argument("--serve", help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        _serve(STACKS[given.serve], given.port)
        return
    console = Console(width=140)
    there = [name for name, stack in STACKS.items() if importlib.util.find_spec(stack.needs)]
    scratch = Path("build/bench/grpc_stacks")
    scratch.mkdir(parents=True, exist_ok=True)
    show(measure(there, given.rounds, given.seconds, scratch), console)
    for name in STACKS:
        if name not in there:
            console.print(f"{name}: not installed (pip install {name})")


def _serve(stack: Stack, port: int) -> None:
    import uvloop

    serving = stack.serve(port)
    if serving is not None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if stack.uvloop else None) as runner:
            runner.run(serving)


if __name__ == "__main__":
    main()
