"""The docs page and the document behind it. Its assets are served from here: a service may have no way to a CDN."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from service.engine.desk import Desk
from service.rest.examples import worked_examples
from service.rest.openapi import document
from service.wire.json_bodies import dump

ASSETS = "/docs/assets"


def docs_of(desk: Desk) -> list[BaseRoute]:
    """Returns the routes of `/docs`, its assets, and `/openapi.json`."""
    product_version = metadata.version("rowcast")

    async def openapi(request: Request) -> Response:
        """Describes every call, with examples that the loaded model has answered just now."""
        url = str(request.base_url).rstrip("/")
        described = document(await worked_examples(desk.engine), desk.settings, product_version, url)
        return Response(dump(described), media_type="application/json")

    async def docs(_: Request) -> Response:
        """Shows the document as a page."""
        from fastapi.openapi.docs import get_swagger_ui_html  # for people who look: it takes a tenth of a second

        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title="rowcast",
            swagger_js_url=f"{ASSETS[1:]}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS[1:]}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS[1:]}/favicon.png",
            swagger_ui_parameters={
                "defaultModelsExpandDepth": -1,
                "displayRequestDuration": True,
                "tryItOutEnabled": True,
            },
        )

    return [
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        Mount(ASSETS, StaticFiles(directory=_static())),
    ]


def _static() -> Path:
    """Finds the assets without importing the package, which imports FastAPI."""
    found = find_spec("fastapi_offline")
    assert found is not None  # noqa: S101 - a dependency
    assert found.origin is not None  # noqa: S101 - a package with a file
    return Path(found.origin).parent / "static"
