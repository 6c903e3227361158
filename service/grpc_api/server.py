"""The gRPC server: its address, its limits, health and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.config import ServiceSettings
from service.dataplane import Dataplane
from service.grpc_api.descriptions import Methods, pool_of
from service.grpc_api.interceptors import METADATA_BYTES, CallInterceptor
from service.grpc_api.probes import MAX_STREAMS, ProbeInterceptor
from service.grpc_api.servicer import GrpcService

_HANDSHAKE_MS = 10_000
"""Time for a client to complete the handshakes of TLS and HTTP/2."""
_PING_S = 30
"""Interval between two pings of the server."""
_PING_TIMEOUT_S = 10
"""Time within which a client must acknowledge a ping."""
_CLIENT_PINGS_S = 10
"""Minimum interval between two pings of a client."""
_PENDING_CALLS = 10_000
"""Maximum number of calls that wait in gRPC's core. It ends further calls as CANCELLED, which does
not show clients an overload; its own limit is 1,000.
"""
_RPCS_PER_REQUEST = 4
"""Number of calls that `grpc.aio` accepts for each that is admitted. Admission rejects the others,
with details and retry-after, which `grpc.aio` would not send.
"""

_REFLECTION = (reflection.SERVICE_NAME, reflection.SERVICE_NAME.replace("v1alpha", "v1"))


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc] # grpc is untyped
    """Reports the state of the data plane at each check. Watches learn of it by `set`, which waits
    for clients that read slowly.
    """

    def __init__(self, dataplane: Dataplane) -> None:
        """Creates the servicer; `dataplane` knows whether calls should be sent."""
        super().__init__()
        self._dataplane = dataplane

    async def Check(  # noqa: N802 - as the protocol has it
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Responds to a check, unless there is no such service."""
        response = await super().Check(request, context)
        response.status = health_pb2.HealthCheckResponse.SERVING
        if self._dataplane.problem():
            response.status = health_pb2.HealthCheckResponse.NOT_SERVING
        return response


class GrpcServer:
    """Serves the data plane over gRPC. Health begins as NOT_SERVING."""

    def __init__(
        self,
        dataplane: Dataplane,
        services: Sequence[GrpcService],
        services_off: Mapping[str, str],
    ) -> None:
        """Creates a server that does not listen yet.

        Args:
          dataplane: Executes the calls.
          services: The services that the server registers.
          services_off: The protocols that the service could speak, by the names of their services.
        """
        self._dataplane = dataplane
        self._services = services
        self._names = [service.name for service in services]
        self._calls = CallInterceptor(dataplane, services, services_off)
        self._probes = ProbeInterceptor(self._calls)
        self._health = HealthServicer(dataplane)
        self._server: grpc.aio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, host: str, port: int, shared: bool = False) -> int:
        """Begins to listen.

        Args:
          host: An address of this machine.
          port: The port; 0: any free one.
          shared: Whether other processes of the service listen on the port as well. Otherwise a
            port in use is an error.

        Returns:
          The bound port.

        Raises:
          OSError: The address cannot be bound.
        """
        settings = self._dataplane.settings
        certificates = self._dataplane.certificates
        # Streams of probes must not take the room of calls.
        rpcs_max = settings.max_concurrent_requests * _RPCS_PER_REQUEST + MAX_STREAMS
        server = grpc.aio.server(
            interceptors=(self._calls, self._probes),
            options=[("grpc.so_reuseport", int(shared)), *options_of(settings)],
            maximum_concurrent_rpcs=rpcs_max,
        )
        self._server = server

        for service in self._services:
            service.register(self._dataplane, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        messages = {service.name: service.messages for service in self._services}
        further_names = (health.SERVICE_NAME, reflection.SERVICE_NAME)
        server.add_generic_rpc_handlers(reflection_handlers(messages, further_names))

        if ":" in host:
            host = f"[{host}]"
        address = f"{host}:{port}"
        try:
            if certificates is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, certificates.grpc_credentials())
        except RuntimeError as problem:
            # gRPC's message names no reason.
            raise OSError(
                f"gRPC cannot listen on {address}; is another service running there?"
            ) from problem
        self._loop = asyncio.get_running_loop()
        await self._publish(False)
        await server.start()
        return int(bound)

    def set_serving(self, serving: bool) -> None:
        """Sets what watches of the health report. Any thread may call it."""
        if self._loop is not None and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._publish(serving), self._loop)

    async def stop(self, grace_s: float) -> None:
        """Stops accepting calls, waits for those in progress at most `grace_s` seconds, then
        cancels them.
        """
        # Watches receive the new status before they end; without this they would never end.
        await self._health.enter_graceful_shutdown()
        self._probes.end_streams()
        if self._server is not None:
            await self._server.stop(grace_s)

    async def _publish(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.NOT_SERVING
        if serving:
            status = health_pb2.HealthCheckResponse.SERVING
        # The empty name stands for the whole server (grpc.health.v1).
        for service in ("", *self._names):
            await self._health.set(service, status)


def reflection_handlers(
    services: Mapping[str, Methods], further_names: Sequence[str]
) -> list[grpc.GenericRpcHandler]:
    """Returns handlers that describe services. Version 1 renamed v1alpha, which is all that the
    library has.

    Args:
      services: The messages of services, by their full names; none if a proto file describes them.
      further_names: The full names of further services, which proto files describe.
    """
    described = [name for name, messages in services.items() if not messages]
    undescribed = {name: messages for name, messages in services.items() if messages}
    pool = pool_of(undescribed, [*described, *further_names])
    servicer = reflection.aio.ReflectionServicer((*services, *further_names), pool)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in _REFLECTION
    ]


def options_of(settings: ServiceSettings) -> list[tuple[str, int]]:
    """Returns the options of gRPC's core. Names and meanings: grpc/impl/channel_arg_names.h."""
    ping_timeout_ms = min(settings.keep_alive_s, _PING_TIMEOUT_S) * 1000
    options = {
        "grpc.max_receive_message_length": settings.max_request_bytes,
        # Messages are decompressed by the data plane, one at a time, as the bodies over HTTP are.
        "grpc.per_message_decompression": 0,
        # Unlimited here, since `max_response_bytes` is checked before a response is computed.
        "grpc.max_send_message_length": -1,
        "grpc.max_metadata_size": METADATA_BYTES,
        "grpc.absolute_max_metadata_size": METADATA_BYTES,
        "grpc.max_allowed_incoming_connections": settings.max_connections,
        "grpc.max_concurrent_streams": settings.max_concurrent_streams,
        "grpc.server.max_pending_requests": _PENDING_CALLS,
        "grpc.server.max_pending_requests_hard_limit": 2 * _PENDING_CALLS,
        # The probe would let clients fill megabytes of each stream before anything is read.
        "grpc.http2.bdp_probe": 0,
        "grpc.keepalive_time_ms": min(settings.keep_alive_s, _PING_S) * 1000,
        "grpc.keepalive_timeout_ms": ping_timeout_ms,
        # Without it, a ping that the client does not acknowledge has no effect.
        "grpc.http2.ping_timeout_ms": ping_timeout_ms,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": _CLIENT_PINGS_S * 1000,
        "grpc.http2.max_ping_strikes": 2,
        "grpc.max_connection_idle_ms": settings.keep_alive_s * 1000,
        "grpc.server_handshake_timeout_ms": _HANDSHAKE_MS,
    }
    # Clients connect again, so that they spread over replicas that were added.
    if settings.max_connection_age_s:
        options["grpc.max_connection_age_ms"] = int(settings.max_connection_age_s * 1000)
        options["grpc.max_connection_age_grace_ms"] = int(settings.request_timeout_s * 1000)
    return list(options.items())
