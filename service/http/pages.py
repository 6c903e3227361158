"""Everything that is not a call: metrics, descriptions of models, documents, files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.codec.metadata import Headers, media_type_of, read_headers
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
_HTML = "text/html"
_FILES = {
    "/": ("start_page.html", _HTML),
    "/start_page.css": ("start_page.css", "text/css"),
    "/start_page.js": ("start_page.js", "text/javascript"),
}
"""The name of the file and its media type, by path."""
_HEADERS = {
    # Nothing but the page's own files and the endpoints of this service.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # The files of one build belong together.
    "cache-control": "no-cache",
    "vary": "accept",
}


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


def is_of_start_page(method: str, path: str, headers: Headers) -> bool:
    """Returns whether a request is for the page at `/` or one of its files."""
    if path not in _FILES or method not in {"GET", "HEAD"}:
        return False
    # A load balancer that probes `/` must not take the page for a service that is ready.
    return path != "/" or _accepts_html(headers)


def add_start_page(app: FastAPI) -> None:
    """Adds the page at `/`, on which a person looks at models and sends requests, and its files.

    The page is the same for everyone: its script reads the models from the other endpoints, with
    the token of the person.
    """
    content = {
        path: Path(__file__).with_name(name).read_bytes() for path, (name, _) in _FILES.items()
    }

    async def start_page(request: Request) -> Response:
        path = request.url.path
        _, media_type = _FILES[path]
        return Response(content[path], headers=_HEADERS, media_type=media_type)

    for path in _FILES:
        app.router.add_api_route(
            path,
            start_page,
            methods=["GET"],
            include_in_schema=False,
            response_class=Response,
            route_class_override=_StartPageRoute,
        )


class _StartPageRoute(APIRoute):
    """Leaves the requests that are not for the page to the other routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Returns whether the route responds to a request."""
        if scope["type"] == "http":
            headers = read_headers(scope["headers"])
            if not is_of_start_page(scope["method"], scope["path"], headers):
                return Match.NONE, {}
        return super().matches(scope)


def _accepts_html(headers: Headers) -> bool:
    accepted = map(media_type_of, headers.get("accept", "").split(","))
    return _HTML in accepted
