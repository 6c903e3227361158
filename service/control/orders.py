"""The paths of the admin listener, what each takes in its body, and the OpenAPI document of both. Pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.control.control import Control
from service.errors import ANSWERS, Code
from service.generations.desired import Label, LogLevel, Version

Value = dict[str, Any]


class Body(BaseModel):
    """What an order takes; nothing, here."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OneVersion(Body):
    """A version, or none."""

    version: Version | None = None


class SomeVersions(Body):
    """Versions."""

    versions: Annotated[list[Version], Field(min_length=1, max_length=1000)]


class OneLabel(Body):
    """A label."""

    label: Label


class LabelledVersion(OneLabel):
    """A label and the version that it is to stand for."""

    version: Version


class Level(Body):
    """A severity; null: the setting's."""

    level: LogLevel | None


@dataclass(frozen=True)
class Order:
    """One thing that an operator may ask for.

    Attributes:
      name: the last part of its path.
      of_model: whether its path names a model.
      body: what it takes.
      act: does it.
      summary: for the document.
    """

    name: str
    of_model: bool
    body: type[Body]
    act: Callable[[Control, str, Any], Awaitable[None]]
    summary: str

    @property
    def path(self) -> str:
        """As in the document."""
        return f"/v1/models/{{model}}/{self.name}" if self.of_model else f"/v1/{self.name}"


ORDERS = {
    order.name: order
    for order in (
        Order("load", True, OneVersion, lambda to, model, body: to.load(model, body.version), "Loads a version"),
        Order(
            "unload",
            True,
            OneVersion,
            lambda to, model, body: to.unload(model, body.version),
            "Takes a version out, or all of a model",
        ),
        Order(
            "pin",
            True,
            SomeVersions,
            lambda to, model, body: to.pin(model, tuple(body.versions)),
            "Serves only these versions",
        ),
        Order("unpin", True, Body, lambda to, model, _: to.unpin(model), "Serves the newest version again"),
        Order(
            "label",
            True,
            LabelledVersion,
            lambda to, model, body: to.label(model, body.label, body.version),
            "Has a label stand for a version",
        ),
        Order("unlabel", True, OneLabel, lambda to, model, body: to.unlabel(model, body.label), "Takes a label off"),
        Order(
            "rollback",
            True,
            OneVersion,
            lambda to, model, body: to.roll_back(model, body.version),
            "Goes back to the version before, or to an older one",
        ),
        Order("drain", False, Body, lambda to, _, __: to.drain(draining=True), "Refuses calls"),
        Order("undrain", False, Body, lambda to, _, __: to.drain(draining=False), "Takes calls again"),
        Order("log-level", False, Level, lambda to, _, body: to.log_level(body.level), "Sets what is logged"),
    )
}
STATUS_PATH, DOCUMENT_PATH = "/v1/status", "/openapi.json"
_PATH = re.compile(r"/v1/(?:models/([^/]+)/)?([a-z-]+)")


def order_of(path: str) -> tuple[Order, str] | None:
    """Returns the order that a path asks for, and its model; None: there is none."""
    asked = _PATH.fullmatch(path)
    order = ORDERS.get(asked[2]) if asked else None
    if asked is None or order is None or order.of_model != (asked[1] is not None):
        return None
    return order, asked[1] or ""


def document(product_version: str) -> Value:
    """Returns the OpenAPI document of the listener."""
    status = {"description": "What is wanted and what there is.", "content": {"application/json": {"schema": {}}}}
    failures = {
        str(ANSWERS[code].http): {"description": code.value}
        for code in (
            Code.INVALID_ARGUMENT,
            Code.UNAUTHENTICATED,
            Code.NOT_FOUND,
            Code.NOT_READY,
            Code.UNIMPLEMENTED,
        )
    }
    paths: Value = {STATUS_PATH: {"get": {"summary": "What is wanted and what there is", "responses": {"200": status}}}}
    for order in ORDERS.values():
        operation: Value = {
            "operationId": order.name,
            "summary": order.summary,
            "responses": {"200": status} | failures,
        }
        schema = order.body.model_json_schema()
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        item: Value = {"post": operation}
        if order.of_model:
            item["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[order.path] = item
    return {
        "openapi": "3.1.0",
        "info": {"title": "rowcast admin", "version": product_version},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
