"""The protocols that the settings name."""

from __future__ import annotations

from typing import NamedTuple

from service.config import Protocol, ServiceSettings
from service.grpc_api.servicer import GrpcService
from service.http.other_protocols import OtherProtocol
from service.protocols.open_inference import protocol as open_inference
from service.protocols.tensorflow_serving import protocol as tensorflow_serving


class _Transports(NamedTuple):
    """A protocol over both transports.

    Attributes:
      http: The protocol over HTTP.
      services: The gRPC services of the protocol.
    """

    http: OtherProtocol
    services: tuple[GrpcService, ...]


_PROTOCOLS: dict[Protocol, _Transports] = {
    "tensorflow-serving": _Transports(tensorflow_serving.HTTP, tensorflow_serving.GRPC),
    "open-inference": _Transports(open_inference.HTTP, open_inference.GRPC),
}


def http_protocols(settings: ServiceSettings) -> tuple[OtherProtocol, ...]:
    """Returns the protocols over HTTP."""
    return tuple([_PROTOCOLS[name].http for name in settings.protocols])


def http_protocols_off(settings: ServiceSettings) -> dict[str, OtherProtocol]:
    """Returns the protocols over HTTP that the settings do not name, by their names."""
    return {name: transports.http for name, transports in _off(settings)}


def grpc_services(settings: ServiceSettings) -> tuple[GrpcService, ...]:
    """Returns the services of the protocols over gRPC."""
    services: list[GrpcService] = []
    for name in settings.protocols:
        services += _PROTOCOLS[name].services
    return tuple(services)


def grpc_services_off(settings: ServiceSettings) -> dict[str, str]:
    """Returns the protocols that the settings do not name, by the names of their services."""
    return {
        service.name: name for name, transports in _off(settings) for service in transports.services
    }


def _off(settings: ServiceSettings) -> list[tuple[Protocol, _Transports]]:
    return [item for item in _PROTOCOLS.items() if item[0] not in settings.protocols]
