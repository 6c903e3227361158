"""The page at `/`, on which a person looks at models and sends requests. It is the same for
everyone: its script reads the models from the other endpoints, with the token of the person.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from service.codec.metadata import Headers, media_type_of, read_headers

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


def is_of_start_page(method: str, path: str, headers: Headers) -> bool:
    """Returns whether a request is for the page or one of its files."""
    if path not in _FILES or method not in {"GET", "HEAD"}:
        return False
    # A load balancer that probes `/` must not take the page for a service that is ready.
    return path != "/" or _accepts_html(headers)


def add_start_page(app: FastAPI) -> None:
    """Adds the page and its files."""
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
