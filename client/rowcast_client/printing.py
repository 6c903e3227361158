"""Answers as tables for people and as plain values for JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message
from rich.table import Table

from rowcast_client.results import Embedded, LookedUp, Ranked, Retrieved
from rowcast_client.stubs import embedding_service_pb2 as pb

VALUES_SHOWN = 8
"""Numbers of a vector that a table shows."""


def plain(response: Any) -> Any:
    """An response as JSON has it, in the form of the service's own JSON."""
    if isinstance(response, (Retrieved, Ranked)):
        listed = "neighbors" if isinstance(response, Retrieved) else "candidates"
        shown = {"model": response.model, "version": response.version, listed: plain(response[0])}
        if isinstance(response, Retrieved) and response.explanations:
            shown["explanation"] = plain(response.explanations[0])
        if isinstance(response, Retrieved) and response.degraded:
            shown["degraded"] = response.degraded
        if response.coverage < 1:
            shown["coverage"] = response.coverage
        return shown
    if isinstance(response, Sequence) and not isinstance(response, str):
        return [plain(one) for one in response]
    if isinstance(response, Message):
        response = _fields(response)
    elif dataclasses.is_dataclass(response):
        values = {
            field.name: getattr(response, field.name) for field in dataclasses.fields(response)
        }
        response = {
            name: value
            for name, value in values.items()
            if value is not None and (name, value) != ("coverage", 1)
        }
    if isinstance(response, Mapping):
        return {name: plain(value) for name, value in response.items()}
    return response.tolist() if isinstance(response, np.ndarray) else response


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a description; what the contract holds as JSON text, and the model that
    responses, laid open.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name == "model":
            fields |= {"model": value.name, "version": value.version}
        elif field.name.endswith("_json"):
            fields[field.name.removesuffix("_json")] = json.loads(value or "null")
        else:
            fields[field.name] = (
                value if not field.has_presence or message.HasField(field.name) else None
            )
    return fields


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table | str:
    """A table whose numbers are aligned to the right."""
    listed = list(rows)
    if not listed:
        return f"{title}: none"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column, value in zip(columns, listed[0], strict=True):
        table.add_column(
            column, overflow="fold", justify="right" if isinstance(value, (int, float)) else "left"
        )
    for row in listed:
        table.add_row(*map(_shown, row))
    return table


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, np.ndarray):
        shown = " ".join(f"{one:.4f}" for one in value[:VALUES_SHOWN])
        return shown if len(value) <= VALUES_SHOWN else f"{shown} …"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def models_table(states: Sequence[pb.ModelState]) -> Iterable[Table | str]:
    """Shows every version of every model."""
    fields = ["version", "state", "current", "labels", "problem"]
    rows = [
        [state.name, *_values(version, fields)] for state in states for version in state.versions
    ]
    yield _table("models", ["model", *fields], rows)


def details_tables(details: pb.ModelDetails) -> Iterable[Table | str]:
    """Shows the calls of a model, its towers, and what it stores."""
    yield f"{details.model.name} version {details.model.version}, created {details.created}\n"
    fields = ["name", "kind", "type", "role"]
    for call in details.calls:
        title = f"{call.call} by tower {call.tower} -> {', '.join(call.outputs)}"
        yield _table(
            title, [*fields, "send"], ([*_values(one, fields), _need(one)] for one in call.features)
        )
    for tower in details.towers:
        title = f"tower {tower.name} on {tower.device}, result {tower.formula or tower.result}"
        parts = (_network(part.name, f"per {part.per}", part) for part in tower.parts)
        yield _table(
            title, ["part", "runs", "gives", "error"], [_network("whole", "", tower), *parts]
        )
    for stored in ("tables", "indexes", "corpora", "contexts"):
        messages = getattr(details, stored)
        fields = list(_fields(messages[0])) if messages else []
        yield _table(stored, fields, (_values(one, fields) for one in messages))


def _values(message: Any, fields: Sequence[str]) -> list[Any]:
    return [plain(getattr(message, field)) for field in fields]


def _network(name: str, per: str, network: pb.TowerDetails | pb.PartDetails) -> list[Any]:
    """A tower or one of its parts: the form of it that runs, its outputs, and its largest error."""
    form = next((form for form in network.forms if form.runs), pb.FormDetails())
    outputs = [output.name for output in network.outputs]
    error = f"{max(form.max_abs_error.values(), default=0):.2g}"
    return [name, f"{form.kind} {form.precision} {per}".strip(), outputs, error]


def _need(feature: pb.FeatureDetails) -> str:
    """What a caller has to do about a feature."""
    if feature.stored and feature.role == "candidate":
        return "nothing: found by the candidate's id"
    default = f"or else {feature.default_json}" if feature.default_json else ""
    if feature.stored:
        return f"or the context's id {default}".rstrip()
    return "required" if feature.required else default


def neighbors_table(response: Retrieved) -> Iterable[Table | str]:
    """Shows the neighbors of the first query."""
    neighbors = response[0]
    scores = ["score"] if neighbors.retrieval_scores is None else ["score", "retrieval score"]
    rows = (
        [place, one.id, *[one.score, one.retrieval_score][: len(scores)], *one.attributes.values()]
        for place, one in enumerate(neighbors, start=1)
    )
    yield _table(
        f"{response.model} version {response.version}",
        ["", "id", *scores, *neighbors.attributes],
        rows,
    )
    for one in response.explanations:
        found = f"{one.matches} candidates match ({one.selectivity:.2%}), {one.scored} scored"
        yield (
            f"path {one.path}: {found}, {one.search_ms:.2f} "
            f"ms{one.shortfall and f'; {one.shortfall}'}"
        )
    if response.degraded:
        yield f"degraded: {response.degraded}"


def ranked_table(response: Ranked) -> Iterable[Table | str]:
    """Shows the candidates of the first context."""
    rows = ([one.position + 1, one.id, one.score, *one.heads.values()] for one in response[0])
    yield _table(
        f"{response.model} version {response.version}",
        ["sent as", "id", "score", *response[0].heads],
        rows,
    )


def vectors_table(response: Embedded) -> Iterable[Table | str]:
    """Shows vectors."""
    rows = ([len(vector), vector] for vector in response.vectors)
    yield _table(f"{response.model} version {response.version}", ["dim", "vector"], rows)


def rows_table(ids: Sequence[str], response: LookedUp) -> Iterable[Table | str]:
    """Shows table rows beside their ids."""
    found = ["yes" if known else "no" for known in response.found]
    title = f"table {response.table} of {response.model} version {response.version}"
    yield _table(title, ["id", "found", "row"], zip(ids, found, response.vectors, strict=True))
