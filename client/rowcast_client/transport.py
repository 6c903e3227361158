"""What both transports share: TLS, headers, and the failures that the service does not report."""

from __future__ import annotations

import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from google.protobuf.message import DecodeError

from rowcast_client.addresses import SCHEMES, Address
from rowcast_client.calls import Call
from rowcast_client.errors import (
    DeadlineExceeded,
    InvalidArgument,
    InvalidResponse,
    NotReady,
    RowcastError,
    TlsFailed,
    Unreachable,
)
from rowcast_client.model_details import ModelState
from rowcast_client.retries import Deadline

File = str | PathLike[str] | None
# What both HTTP/1.1 and the metadata of gRPC accept.
HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
HEADER_VALUE = re.compile(r"([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?", re.ASCII)
CONNECT_TIMEOUT_S = 1.0
"""Maximum time to open a connection. Networks open one in milliseconds; packets to a machine that
is gone are lost without a response.
"""
RESPONSE_BYTES_MAX = (1 << 30) + (1 << 20)
"""Maximum size of a response: the largest `max_response_bytes` of a service, and its framing."""
TLS_MARKS = ("ssl", "tls", "certificate", "handshake")
"""Words that identify a failure of TLS in the reason of a failed connection."""
PROTOCOL_MARKS = ("wrong version number", "wrong_version_number", "failed parsing http/2", "alpn")
"""Words by which libraries report that the server does not speak the protocol of the scheme."""


class Tls:
    """Whom a client trusts over TLS, and the certificate that it shows.

    Attributes:
      context: The TLS context for HTTP.
      pems: The authorities, key and certificate, for gRPC in its order; None: the authorities that
        gRPC ships, no certificate.
    """

    def __init__(self, ca_file: File, cert_file: File, key_file: File) -> None:
        """Reads the files, PEM without a password.

        Raises:
          InvalidArgument: A file is missing, or does not hold what it should; names it.
        """
        if (cert_file is None) != (key_file is None):
            raise InvalidArgument(
                "cert_file and key_file must be set together: one of them is missing"
            )
        try:
            self.context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise InvalidArgument(
                f"ca_file '{ca_file}' holds no certificates as PEM: {_reason(error)}"
            ) from error
        try:
            # An empty password: without one, OpenSSL would prompt for it on the terminal.
            if cert_file is not None:
                self.context.load_cert_chain(cert_file, key_file, password=lambda: b"")
        except OSError as error:
            raise InvalidArgument(
                f"cert_file '{cert_file}' and key_file '{key_file}' are not a certificate and its "
                f"key, as PEM without a password: {_reason(error)}"
            ) from error
        # Bytes, for gRPC does not read files. What OpenSSL accepted above is readable.
        self.pems: list[bytes | None] = []
        for file in (ca_file, key_file, cert_file):
            content = None
            if file is not None:
                content = Path(file).read_bytes()
            self.pems.append(content)


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns headers that both transports can send.

    Raises:
      InvalidArgument: A header cannot be sent; names it, never its value, which may be a secret.
    """
    for name, value in headers.items():
        are_texts = isinstance(name, str) and isinstance(value, str)
        if not (are_texts and HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value)):
            raise InvalidArgument(
                f"header {name!r} cannot be sent: expected a name of letters, digits and -_. with "
                "a value of printable ASCII characters without surrounding spaces"
            )
    return {name.lower(): value for name, value in headers.items()}


class Transport(ABC):
    """Sends calls to one address, for both clients. `AsyncClient` awaits the results of `send` and
    `send_probe`.
    """

    errors: ClassVar[type[Exception] | tuple[type[Exception], ...]]
    """The exceptions that `send` raises."""
    names_model: ClassVar[bool] = False
    """Whether each call has to name a model, as a URL does and a message does not."""
    only_model = ""
    """The service's only model, once it is known."""
    close: Any
    """Closes the connections; an asynchronous client awaits it."""

    def __init__(self, address: Address) -> None:
        self.address = address

    @abstractmethod
    def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once and returns the response."""

    @abstractmethod
    def read(self, call: Call[Any], response: Any) -> Any:
        """Reads the result of a call from the response.

        Raises:
          RowcastError: The response is an error, or not of a rowcast service.
        """

    @abstractmethod
    def send_probe(self, deadline: Deadline, request_id: str) -> Any:
        """Sends the request whether the service is ready, and returns the response."""

    @abstractmethod
    def check_probe(self, response: Any) -> None:
        """Checks that the service is ready, by its response.

        Raises:
          NotReady: It is not.
          RowcastError: The response is another error, or not of a rowcast service.
        """

    @abstractmethod
    def failure(self, error: Any, deadline: Deadline) -> RowcastError:
        """Returns the error for an exception of one of the types in `errors`."""

    def lacks_model(self, call: Call[Any]) -> bool:
        """Returns whether a call has to name the service's only model, which is not known yet."""
        return (
            self.names_model
            and call.method != "ListModels"
            and not (call.request.model.name or self.only_model)
        )

    def learn_model(self, states: Sequence[ModelState]) -> None:
        """Remembers the only model that the service serves; a model without a current version
        makes no request ambiguous.

        Raises:
          NotReady: The service has no model yet.
          InvalidArgument: It serves several.
        """
        served_models = [
            state for state in states if any(version.current for version in state.versions)
        ]
        # If no model has a current version, the only one is named: its error says what it lacks.
        names = [str(state.name) for state in served_models or states]
        if not names:
            raise NotReady("the service has no model yet")
        if len(names) > 1:
            raise InvalidArgument(
                f"the service has the models {', '.join(names)}: name one of them"
            )
        self.only_model = names[0]

    def out_of_time(self, deadline: Deadline) -> DeadlineExceeded:
        """Returns the error for a response that did not arrive before the deadline. Attempts that
        failed otherwise before may be the cause: retries use up the time.
        """
        message = f"{self.address.url} did not respond within {deadline.timeout_s:g} s"
        if deadline.earlier_failure:
            message += f"; before, an attempt failed: {deadline.earlier_failure}"
        return DeadlineExceeded(message)

    def unreachable(self, predicate: str, reason: str) -> Unreachable:
        """Returns the error for a connection that failed.

        Args:
          predicate: The failure, as what the address does: "cannot be reached".
          reason: The reason that the library of the transport reported.
        """
        if any(mark in reason.lower() for mark in PROTOCOL_MARKS):
            reason = f"{reason.rstrip('.')}; {self.other_schemes()}"
        if self.address.secure and any(mark in reason.lower() for mark in TLS_MARKS):
            return TlsFailed(f"no secure connection to {self.address.url}: {reason}")
        return Unreachable(f"{self.address.url} {predicate}: {reason}")

    def other_schemes(self) -> str:
        """Returns the remedy for a server that speaks another protocol than that of the scheme."""
        scheme, separator, _ = self.address.url.partition("://")
        schemes = [f"{name}{separator}" for name in SCHEMES if name != scheme.lower()]
        return f"does the port expect {', '.join(schemes[:-1])} or {schemes[-1]}?"

    def invalid_response(self, reason: str) -> InvalidResponse:
        """Returns the error for a server that is not a rowcast service."""
        return InvalidResponse(f"{self.address.url} is not a rowcast service: {reason}")

    def unpack(self, call: Call[Any], content: bytes) -> Any:
        """Reads the result of a call from a message.

        Raises:
          InvalidResponse: The bytes are not such a message, or the message is inconsistent.
        """
        # ValueError and IndexError: offsets and packed arrays that do not fit each other.
        try:
            return call.unpack(call.response.FromString(content))
        except (DecodeError, ValueError, IndexError) as error:
            raise InvalidResponse(
                f"{self.address.url} returned an inconsistent response to {call.method}: {error}"
            ) from error
