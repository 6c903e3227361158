"""What is asked less often than the five calls, by Starlette: models, signatures, health and metrics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service import logs
from service.engine.desk import Desk
from service.errors import NotReady, ServiceError
from service.metrics import CONTENT_TYPE
from service.rest import schemas
from service.rest.heads import combined
from service.wire import signatures
from service.wire.failures import failure_of, log_failure

_LOG = logs.logger(__name__)


def routes_of(desk: Desk) -> list[Route]:
    """Returns the routes, each of which asks the desk one thing."""

    async def models(request: Request) -> Response:
        """Lists every model with its versions and their states."""
        request.state.call = "models"
        states = await desk.models()
        protobuf = _wants_protobuf(request)
        return _response(
            schemas.written(signatures.models_message(states), None)
            if protobuf
            else schemas.written(None, signatures.models_value(states))
        )

    async def model(request: Request) -> Response:
        """Tells all that a caller needs to write requests to a version: the signature of each call."""
        request.state.call = "model"
        named = request.path_params
        target = schemas.target_of(named["model"], named.get("version"), named.get("label"))
        details = desk.engine.model(target)
        protobuf = _wants_protobuf(request)
        return _response(
            schemas.written(signatures.details_message(details), None)
            if protobuf
            else schemas.written(None, signatures.details_value(details))
        )

    async def livez(request: Request) -> Response:
        """Says whether the process should be left running."""
        return _health(request, "live", "" if desk.liveness() else "the service is stuck; restart it")

    async def readyz(request: Request) -> Response:
        """Says whether callers should be sent here, and if not, why."""
        return _health(request, "ready", desk.problem())

    async def metrics(_: Request) -> Response:
        """Returns the metrics in the text form of Prometheus."""
        return Response(await desk.metrics_page(), headers={"content-type": CONTENT_TYPE})

    return [
        Route("/v1/models", models),
        Route("/v1/models/{model}", model),
        Route("/v1/models/{model}/versions/{version}", model),
        Route("/v1/models/{model}/labels/{label}", model),
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
    ]


def failed_response(
    request: Request, problem: ServiceError, status: int | None = None, headers: tuple[schemas.Header, ...] = ()
) -> Response:
    """Returns the response to what failed behind Starlette; `status` where HTTP has a number of its own for it."""
    failure = failure_of(problem, request.state.request_id)
    request.state.code = failure.code.value
    log_failure(_LOG, getattr(request.state, "call", "other"), failure, problem)
    return _response(schemas.failed(failure, _wants_protobuf(request), status, headers))


def _response(reply: schemas.Reply) -> Response:
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, reply.status, {"content-type": reply.content_type, **headers})


def _health(request: Request, word: str, problem: str) -> Response:
    """Answers a probe; not logged, since probes come every second."""
    if problem:
        failure = failure_of(NotReady(problem), request.state.request_id)
        request.state.code = failure.code.value
        return _response(schemas.failed(failure, _wants_protobuf(request)))
    return _response(schemas.written(None, {word: True}))


def _wants_protobuf(request: Request) -> bool:
    return schemas.wants_protobuf(combined(request.headers.raw))
