"""The docs page and the document behind it. Its assets are served from here: a service may have no way to a CDN."""

from __future__ import annotations

from importlib import metadata
from importlib.resources import files

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles

from service.engine.desk import Desk
from service.rest.examples import worked_examples
from service.rest.openapi import document
from service.wire.json_bodies import dump

ASSETS = "/docs/assets"


def add_docs(app: FastAPI, desk: Desk) -> None:
    """Adds `/docs`, its assets, and `/openapi.json`."""
    product_version = metadata.version("rowcast")
    router = APIRouter()

    @router.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        """Describes every call, with examples that the loaded model has answered just now."""
        url = str(request.base_url).rstrip("/")
        described = document(await worked_examples(desk.engine), desk.settings, product_version, url)
        return Response(dump(described), media_type="application/json")

    @router.get("/docs")
    async def docs() -> Response:
        """Shows the document as a page."""
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

    app.include_router(router)
    app.mount(ASSETS, StaticFiles(directory=str(files("fastapi_offline") / "static")))
