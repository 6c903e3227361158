"""Everything that is not a call: metrics, descriptions of models, documents, files."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Overloaded
from service.http.calls import send_body

DOCUMENTATION = "/docs"
"""The path of the page that describes the API; the files that it loads are below."""
PAGES_MAX = 2
"""Maximum number of pages of one kind in progress."""
_WAIT_S = 1.0
"""Time that a page waits for its turn: a browser requests all that a document needs at once."""
_RETRY_AFTER_S = 1.0
"""Time after which a client may try again whose page got no turn."""


class HeadAsGet:
    """Surrounds an application, and has each page respond to HEAD as to GET (RFC 9110, section
    9.3.2). The server leaves out the body.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Creates the ASGI application; `app` responds to the requests."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to a request."""
        if scope.get("method") == "HEAD":
            # A copy: the server looks at the method of its own scope.
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class PartwiseSending:
    """Surrounds the application for pages, and sends each as its client reads it."""

    def __init__(self, app: ASGIApp, read_timeout_s: float) -> None:
        """Creates the ASGI application.

        Args:
          app: Responds to the requests.
          read_timeout_s: The maximum time for a client to read a part of a large page.
        """
        self._app = app
        self._read_timeout_s = read_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to a request.

        Raises:
          Cancelled: The client did not read a part of the page in time.
        """

        async def send_in_parts(message: Message) -> None:
            if message["type"] == "http.response.body":
                more_body = message.get("more_body", False)
                await send_body([message.get("body", b"")], self._read_timeout_s, send, more_body)
                return
            await send(message)

        await self._app(scope, receive, send_in_parts)


class Turns:
    """Surrounds the application for pages of one kind. At most PAGES_MAX are in progress until they
    are sent, so that nobody can load the service by them.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Creates the ASGI application; `app` responds to the requests."""
        self._app = app
        self._turns = asyncio.Semaphore(PAGES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to a request.

        Raises:
          Overloaded: The other pages took too long.
        """
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise Overloaded(
                f"{PAGES_MAX} other pages are in progress; calls are accepted meanwhile",
                _RETRY_AFTER_S,
                "requests",
            ) from None
        # The turn lasts until the page is sent: a client that reads slowly holds its memory.
        try:
            await self._app(scope, receive, send)
        finally:
            self._turns.release()
