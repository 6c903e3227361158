"""rowcast as an application of Ray Serve, which places, replaces, updates and scales the replicas.

    serve deploy deploy/ray/replicas.yaml

A replica runs the service in its process. Clients call the endpoints of the node, HTTP and gRPC,
which its replicas share; the same FastAPI application is behind Serve's ingress too. No other
module imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import math
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import ray
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray.serve.config import AutoscalingContext
from starlette.types import ASGIApp

from bundle.format.manifest import Manifest
from bundle.tables.sharding import manifest_of_process
from service.app import Worker
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from service.config import ServiceSettings, SettingsError, read_settings
from service.coordinator import Coordinator
from service.errors import NotReady
from service.observability import logging
from service.security.exposure import warn_of_exposed_secrets, warn_of_open_endpoints
from service.versions.desired_state import DesiredModel, Name, first_error
from service.versions.state_file import StateFile
from service.workers.sockets import http_config, listen, ssl_context

log = logging.logger(__name__)

DEPLOYMENT = "replicas"
INFLIGHT = "inflight_requests"
"""The statistic by which replicas report their requests in progress to the autoscaling policy."""
_RAY_MIN = (2, 60)
"""The first supported release."""
_RAY_END = (3, 0)
"""The first release that is not supported."""
_NOT_OF_REPLICAS = (
    "workers",
    "worker_timeout_s",
    "ports_file",
    "health_host",
    "health_port",
    "health_grpc_port",
    "admin",
    "admin_host",
    "admin_port",
    "admin_tokens",
)
"""Settings without a meaning in a replica, which has no supervisor and no admin API."""
_POLL_S = 0.02
"""Time between two looks at the state of the versions while a replica starts."""
_SHARDS_S = 300
"""How long a router waits for its shards, which are deployed with it."""
_SPARE_S = 10
"""Time between the longest drain and the end of a replica's process by force."""


def check_ray(version: str) -> None:
    """Checks the version of Ray.

    Raises:
      SettingsError: The version is not supported.
    """
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not _RAY_MIN <= release < _RAY_END:
        raise SettingsError(
            f"Ray {version} is installed; 2.60 or a later release of 2 was expected; run `pip "
            "install 'rowcast[serve,ray]'`"
        )


check_ray(ray.__version__)


class UserConfig(BaseModel):
    """The `user_config` of the deployment, which changes while replicas run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bundles: tuple[str, ...] = ()
    """URLs of bundles; the URL of a model stands for its newest version. Each node pulls them into
    its root once.
    """
    keep: Annotated[int, Field(ge=1)] | None = None
    """The number of a model's newest versions that stay under the root after a pull; None: all."""
    models: dict[Name, DesiredModel] = {}
    """Pins and labels by model, as in the file of the desired state."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> UserConfig:
        """Reads the configuration that Serve passes to a replica.

        Raises:
          SettingsError: A field has another value than expected; the message names the field.
        """
        try:
            return cls.model_validate_json(orjson.dumps(value))
        except ValidationError as problem:
            raise SettingsError(f"user_config: {first_error(cls, problem)}") from None


def read_options(args: Mapping[str, Any], **overrides: Any) -> ServiceSettings:
    """Reads the settings of a replica from `args` of the application.

    Args:
      args: The settings by name.
      overrides: Settings that replace those in `args`.

    Raises:
      SettingsError: A setting is unknown, out of range, or has no meaning in a replica.
    """
    if unknown := sorted(args.keys() - ServiceSettings.model_fields.keys()):
        raise SettingsError(
            f"args has {unknown[0]!r}, which is not a setting; `rowcast-serve --help` lists them"
        )
    for name in _NOT_OF_REPLICAS:
        if name in args:
            raise SettingsError(f"args has {name!r}, which has no meaning in a replica; omit it")
    return read_settings({**args, **overrides})


@serve.ingress()
class Replica:
    """One serving process, started, updated and stopped by Serve."""

    def __init__(self, args: dict[str, Any]) -> None:
        """Creates the service; `args` are its settings by name."""
        settings = read_options(args)
        # Several replicas share the cores of their node, so each computes with the cores that Ray
        # assigned to it.
        if not settings.threads and not settings.shard_addresses:
            cores = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
            settings = settings.model_copy(update={"threads": max(1, math.ceil(cores))})
        self._settings = settings
        self._required = set(settings.require)
        logging.configure(
            settings.log_level, pid=os.getpid(), replica=serve.get_replica_context().replica_tag
        )
        self._opened = contextlib.AsyncExitStack()
        # A missing model fails the start of the replica, below, not the process.
        self._worker = Worker(
            settings.model_copy(update={"require": ()}), Coordinator(), grpc_port=None
        )
        self._app = self._worker.http_app()
        self._app.router.lifespan_context = self._lifespan
        self._front = self._worker.http_front(self._app)
        self._started = False

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # Serve prescribes the name.
        return self._front

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Drains once Serve has routed the last request here."""
        try:
            yield
        finally:
            await self._opened.aclose()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Pulls bundles, follows pins and labels, and returns when their versions are loaded.

        Raises:
          SettingsError: The configuration is wrong.
          PullError: A bundle cannot be pulled.
          NotReady: A required model is not available.
        """
        # After an error, Serve stops the update and replaces this replica alone.
        config = UserConfig.of(user_config)
        await asyncio.to_thread(self._prepare, config)
        if self._started:
            await asyncio.to_thread(self._worker.poller.scan)
        else:
            self._started = True
            await self._start()

    def _prepare(self, config: UserConfig) -> None:
        root = self._settings.root
        for url in config.bundles:
            with (root / ".rowcast-pull.lock").open("ab") as lock:
                # The other replicas of the node find the bundle that the first one has pulled.
                fcntl.flock(lock, fcntl.LOCK_EX)
                pulled = pull(find_bundle(url), root, config.keep, select_part=self._held)
            extra = logging.fields(
                model=pulled.model, version=pulled.version, downloaded_bytes=pulled.downloaded_bytes
            )
            log.info("bundle_pulled", extra=extra)
        # All replicas of the node share the file. The first one writes it.
        state = StateFile.of(self._settings)
        if state.read().models != config.models:
            state.update(lambda desired: desired.model_copy(update={"models": dict(config.models)}))

    def _held(self, manifest: Manifest) -> Manifest:
        settings = self._settings
        return manifest_of_process(
            manifest, settings.shard, bool(settings.shard_addresses), settings.shard_min_bytes
        )

    async def _start(self) -> None:
        """Loads the models, and then listens on the ports of the node."""
        settings = self._settings
        worker = self._worker
        context = serve.get_replica_context()
        owner = f"{context.app_name}/{context.deployment}"
        # A port 0 is any free port, which no other replica shares.
        for port in filter(None, (settings.http_port, settings.grpc_port)):
            self._opened.enter_context(claim_port(settings.host, port, owner))
        await self._opened.enter_async_context(worker.lifespan(self._app))
        await self._await_models()

        # Only now: clients of the shared ports would reach it while the others are ready.
        await worker.grpc.start(settings.host, settings.grpc_port, shared=True)
        worker.grpc.set_serving(True)
        listener = listen("HTTP", settings.host, settings.http_port, shared=True)
        ssl_context_factory = None
        if settings.tls_cert is not None:
            ssl_context_factory = functools.partial(ssl_context, settings)
        config = http_config(
            self._front,
            keep_alive_s=settings.keep_alive_s,
            drain_timeout_s=settings.drain_timeout_s,
            max_connections=settings.max_connections,
            ssl_context_factory=ssl_context_factory,
            # Serve runs the lifespan of the same application.
            lifespan="off",
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))

        async def stop() -> None:
            drained = asyncio.Event()
            worker.drain(drained.set)
            await drained.wait()
            server.should_exit = True
            await serving

        # Closed in reverse: the endpoints drain before the worker's own lifespan ends.
        self._opened.push_async_callback(stop)
        warn_of_open_endpoints(settings)
        warn_of_exposed_secrets(settings)

    async def _await_models(self) -> None:
        """Waits until the versions under the root are loaded, or failed.

        Raises:
          NotReady: A required model is not available, or the service has another problem.
        """
        worker = self._worker
        while not worker.versions.settled:
            await asyncio.sleep(_POLL_S)
        wait_s = 0
        if self._settings.shard_addresses:
            wait_s = _SHARDS_S
        end = time.monotonic() + wait_s
        while worker.engine.problem and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)

        problem = worker.engine.problem
        if missing := sorted(self._required - worker.versions.available()):
            problem = f"required models {missing} are not available"
        if problem:
            raise NotReady(f"{self._settings.root}: {problem}")

    def check_health(self) -> None:
        """Raises NotReady if no model can be served; Serve then replaces the replica."""
        if problem := self._worker.engine.problem:
            raise NotReady(problem)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the number of requests in progress, over the ingress or not."""
        return {INFLIGHT: self._worker.engine.inflight}


@contextlib.contextmanager
def claim_port(host: str, port: int, owner: str) -> Iterator[None]:
    """Holds a port of this node for the replicas of one deployment, which share it.

    Raises:
      SettingsError: Replicas of another deployment hold the port.
      OSError: Another program listens on the port.
    """
    path = Path(tempfile.gettempdir()) / f"rowcast-{os.getuid()}-{port}.lock"
    with open(path, "a+b", opener=_private) as file:
        # Only the first replica gets an exclusive lock, since all hold a shared lock from below on.
        # It checks the port and writes the name of its deployment.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listen("a replica", host, port).close()
            file.truncate(0)
            file.write(owner.encode())
            file.flush()
        fcntl.flock(file, fcntl.LOCK_SH)
        file.seek(0)
        if (holder := file.read().decode()) != owner:
            raise SettingsError(
                f"port {port} of this node is used by {holder}; set another http_port or grpc_port "
                f"for {owner}"
            )
        yield


def _private(path: str, flags: int) -> int:
    # The directory is open to all users, who could have left a link to another file.
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def scale_by_inflight(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Returns the number of replicas with which each has `target_ongoing_requests` in progress; an
    autoscaling policy of Serve.
    """
    # Serve counts what passes its ingress, so replicas report their requests themselves. Until they
    # do, the number stays.
    inflight = (context.aggregated_metrics or {}).get(INFLIGHT)
    if not inflight:
        return context.target_num_replicas, {}
    return sum(inflight.values()) / context.config.target_ongoing_requests, {}


def replicas(args: dict[str, Any]) -> serve.Application:
    """Returns the application.

    Args:
      args: Settings of `rowcast-serve` by name. `root` is required.

    Raises:
      SettingsError: A setting is wrong or missing.
    """
    if "root" not in args:
        raise SettingsError("args has no 'root', the directory of the bundles on every node")
    # The directory exists on the nodes, maybe not on this machine; any other one passes the check.
    settings = read_options(args, root=os.sep)
    longest_drain_s = settings.drain_delay_s + 2 * settings.drain_timeout_s
    deployment = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        # Without a configuration, Serve does not call `reconfigure`, which starts the replica.
        user_config={},
        max_ongoing_requests=settings.max_concurrent_requests,
        max_queued_requests=settings.max_concurrent_requests,
        graceful_shutdown_timeout_s=longest_drain_s + _SPARE_S,
    )
    return deployment.bind(args)
