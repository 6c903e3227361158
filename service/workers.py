"""The processes of a service: binds the endpoints, runs one worker or uvicorn's supervisor of
several.

Workers are whole services over one page cache. They listen on the same ports (SO_REUSEPORT) and
follow one desired-state file. A private run directory passes the settings down and the workers'
status up.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from service.admin.status import read_statuses
from service.config import ServiceSettings
from service.exit_codes import EXIT_BUG, EXIT_OK, EXIT_USAGE
from service.observability import logging
from service.security.exposure import on_loopback, warn_of_exposed_secrets, warn_of_open_endpoints

if TYPE_CHECKING:
    import uvicorn

log = logging.logger(__name__)

RUN_DIRECTORY = "ROWCAST_RUN_DIRECTORY"
GRPC_PORT = "ROWCAST_BOUND_GRPC_PORT"
_BACKLOG = 2048
_OPEN_FILES = 1 << 16
_ADMIN_PORT = 8090
_POLL_S = 0.02
_WATCHDOG_S = 5.0
_HEALTHCHECK_S = 20
"""A worker that starts on a busy host answers within it; one killed while it is asked is replaced
after it.
"""
_UVICORN: dict[str, Any] = {
    **dict.fromkeys(("access_log", "server_header", "proxy_headers"), False),
    "log_config": None,
    "ws": "none",
}
"""Options of every HTTP server."""
_SETTINGS = "settings.json"
_EXIT_CODE = "exit-code"


def run_directory() -> Path:
    """Returns the private directory of the running service."""
    return Path(os.environ[RUN_DIRECTORY])


def read_settings_file(directory: Path) -> ServiceSettings:
    """Returns the settings that the parent process wrote."""
    return ServiceSettings(**orjson.loads((directory / _SETTINGS).read_bytes()))


def write_exit_code(directory: Path, code: int) -> None:
    """Records the exit code of the service; the first one counts."""
    with contextlib.suppress(FileExistsError), (directory / _EXIT_CODE).open("x") as file:
        file.write(str(code))


def notify(state: str) -> None:
    """Reports the state of the service to systemd (sd_notify(3)), if it expects it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.setblocking(False)
        end.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
        end.send(state.encode())


def serve(settings: ServiceSettings) -> int:
    """Runs the service until a signal; returns the exit code."""
    try:
        with contextlib.ExitStack() as opened:
            return _serve(settings, opened)
    except OSError as problem:
        log.error("cannot_start", extra=logging.fields(problem=str(problem)))
        return EXIT_USAGE


def _serve(settings: ServiceSettings, opened: contextlib.ExitStack) -> int:
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    _raise_open_files_limit()
    bind: Callable[[str, str, int], socket.socket] = listen if settings.workers == 1 else _reserve
    http = opened.enter_context(bind("HTTP", settings.host, settings.http_port))
    grpc = opened.enter_context(_reserve("gRPC", settings.host, settings.grpc_port))
    admin = _listen_admin(settings)
    directory = Path(tempfile.mkdtemp(prefix="rowcast-"))  # mode 0700
    opened.callback(shutil.rmtree, directory, ignore_errors=True)
    (directory / _SETTINGS).write_text(settings.model_dump_json())
    os.environ[RUN_DIRECTORY] = str(directory)
    os.environ[GRPC_PORT] = str(_port(grpc))
    if settings.workers > 1:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    config = http_config(
        settings,
        "service.app:create_app",
        factory=True,
        loop="uvloop",
        lifespan="on",
        workers=settings.workers,
        timeout_worker_healthcheck=_HEALTHCHECK_S,
    )
    ports = {
        "http": _port(http),
        "grpc": _port(grpc),
        **({} if admin is None else {"admin": _port(admin)}),
    }
    listener = threading.Thread(
        target=_announce, args=(settings, directory, ports, admin), daemon=True
    )
    listener.start()
    if settings.workers == 1:
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # uvicorn raises it again once it has shut down
            signal.signal(number, lambda *_: None)
        try:
            uvicorn.Server(config).run([http])
        except SystemExit:  # the startup failed, and the log has the reason
            write_exit_code(directory, EXIT_BUG)
    else:
        Multiprocess(config, [http]).run()
    code = directory / _EXIT_CODE
    return int(code.read_text()) if code.exists() else EXIT_OK


def http_config(settings: ServiceSettings, app: Any, **options: Any) -> uvicorn.Config:
    """Returns the configuration of uvicorn for the HTTP endpoint of an application, with further
    `options`.
    """
    import uvicorn

    from service.http.protocol import HttpProtocol

    return uvicorn.Config(
        app,
        http=HttpProtocol,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        ssl_context_factory=None
        if settings.tls_cert is None
        else functools.partial(_ssl_context, settings),
        **_UVICORN,
        **options,
    )


def _announce(
    settings: ServiceSettings, directory: Path, ports: dict[str, int], admin: socket.socket | None
) -> None:
    """Logs where the service listens once every worker does, then serves the admin API."""
    while len(read_statuses(directory)) < settings.workers:
        time.sleep(_POLL_S)
    if settings.ports_file is not None:
        _write_ports(settings.ports_file, ports)
    log.info(
        "listening", extra=logging.fields(host=settings.host, **ports, workers=settings.workers)
    )
    notify("READY=1")
    if settings.workers > 1:
        threading.Thread(target=_feed_watchdog, daemon=True).start()
    warn_of_open_endpoints(settings)
    warn_of_exposed_secrets(settings)
    if admin is not None:
        _serve_admin(settings, directory, admin)


def _feed_watchdog() -> None:
    """Reports to systemd that the supervisor runs; it restarts hung workers itself."""
    while True:
        notify("WATCHDOG=1")
        time.sleep(_WATCHDOG_S)


def _ssl_context(settings: ServiceSettings, *_: object) -> ssl.SSLContext:
    """Returns the TLS context of an HTTP server; uvicorn's factory."""
    from service.security.tls import Certificates

    certificates = Certificates.of(settings)
    assert certificates is not None  # noqa: S101 - only called where the settings name them
    return certificates.ssl_context()


def _serve_admin(settings: ServiceSettings, directory: Path, listener: socket.socket) -> None:
    """Runs the admin API in the calling thread, for as long as the process lives."""
    import uvicorn

    from service.admin.api import create_admin_app
    from service.http.protocol import HttpProtocol
    from service.security.tokens import TokenStore

    tokens = TokenStore.of(settings.admin_tokens, "admin_tokens")
    plain = settings.tls_cert is None or on_loopback(settings.admin_host)
    config = uvicorn.Config(
        create_admin_app(settings, directory, tokens),
        http=HttpProtocol,
        loop="asyncio",  # uvloop crashes when a process ends beside its thread
        lifespan="off",
        ssl_context_factory=None if plain else functools.partial(_ssl_context, settings),
        **_UVICORN,
    )
    uvicorn.Server(config).run([listener])


def listen(what: str, host: str, port: int, shared: bool = False) -> socket.socket:
    """Listens on an address; an error names it.

    Args:
      what: name of the endpoint.
      shared: other processes of the service listen on the port as well.
    """
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port),
            family=_family(host),
            backlog=_BACKLOG,
            reuse_port=shared,
            dualstack_ipv6=both,
        )
    except OSError as problem:
        raise _bind_error(what, host, port, problem) from problem


class SharedPort(socket.socket):
    """A bound port. A worker process that is passed the socket listens on the same port with a
    socket of its own, so that the kernel spreads the connections: on a shared socket the first
    worker to wake up takes all that wait.
    """

    def __reduce__(self) -> tuple[Callable[..., socket.socket], tuple[str, str, int, bool]]:
        """Pickles the address."""
        host, port = self.getsockname()[:2]
        return listen, ("HTTP", host, port, True)


def _reserve(what: str, host: str, port: int) -> SharedPort:
    """Binds a port that the workers can bind as well, unless another service has it."""
    with listen(what, host, port) as free:
        port = _port(free)
    bound = SharedPort(_family(host), socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if host == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
    except OSError as problem:
        bound.close()
        raise _bind_error(what, host, port, problem) from problem
    return bound


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listen_admin(settings: ServiceSettings) -> socket.socket | None:
    """Listens for operators; a default port that another service has is no reason not to start."""
    if not settings.admin:
        return None
    if settings.admin_port is not None:
        return listen("admin", settings.admin_host, settings.admin_port)
    try:
        return listen("admin", settings.admin_host, _ADMIN_PORT)
    except OSError:
        return listen("admin", settings.admin_host, 0)


def _bind_error(what: str, host: str, port: int, problem: OSError) -> OSError:
    # The address is named anyway.
    reason = (problem.strerror or str(problem)).partition(" (while")[0]
    hint = "; is another service running there?" if problem.errno == errno.EADDRINUSE else ""
    return OSError(f"{what} cannot listen on {host}:{port}: {reason}{hint}")


def _raise_open_files_limit() -> None:
    """Raises the soft limit on open files towards the hard one: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _write_ports(path: Path, ports: dict[str, int]) -> None:
    """Writes the bound ports in one rename, so that a reader never sees half of them."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_bytes(orjson.dumps(ports))
        staged.replace(path)
    except OSError as problem:
        log.error(
            "ports_file_unwritable",
            extra=logging.fields(file=str(path), problem=problem.strerror or ""),
        )
