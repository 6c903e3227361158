"""The certificate of the client that sent an HTTP request.

ASGI has an extension for it, which uvicorn lacks (https://github.com/Kludex/uvicorn/issues/400).
Python's `ssl` lets a server choose the class of its connections, and a task inherits the context
that it is created in. So a connection that is read notes itself in the context, and the request
that its bytes begin finds it there.
"""

from __future__ import annotations

import itertools
import ssl
from contextvars import ContextVar
from typing import Any

_CONNECTION: ContextVar[ClientConnection | None] = ContextVar("connection", default=None)
"""The connection whose bytes began the request that the current context handles."""
_UNNAMED = "unnamed"


class ClientConnection(ssl.SSLObject):
    """A TLS connection with a client; the class of `SSLContext.sslobject_class`."""

    _client_name = ""

    def read(self, *args: Any) -> Any:
        """Reads decrypted bytes, as of the current connection."""
        _CONNECTION.set(self)
        return super().read(*args)

    @property
    def client_name(self) -> str:
        """The common name of the client's certificate, or else its first alternative name."""
        # Decoded once per connection, not for each request.
        if not self._client_name:
            self._client_name = _name_of(self.getpeercert() or {})
        return self._client_name


def client_name() -> str:
    """Returns the name in the certificate of the client whose request is handled."""
    connection = _CONNECTION.get()
    if connection is None:
        return _UNNAMED
    return connection.client_name


def _name_of(certificate: dict[str, Any]) -> str:
    # `ssl` returns the subject as a sequence of relative names, each of which has several pairs.
    pairs = itertools.chain.from_iterable(certificate.get("subject", ()))
    names = [value for kind, value in pairs if kind == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return str([*names, _UNNAMED][0])
