"""Responses as tables for people and as plain values for JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from rowcast_client.model_details import ModelDetails, ModelState
from rowcast_client.results import Embedded, LookedUp, Ranked, Retrieved

VALUES_SHOWN = 8
"""Numbers of a vector that a table shows."""


def plain(response: Any) -> Any:
    """A response as JSON has it, in the form of the service's own JSON."""
    if isinstance(response, (Retrieved, Ranked)):
        shown = {"model": response.model, "version": response.version}
        columns = plain(vars(response[0]))
        for name in ("retrieval_scores", "sources"):  # of recommend
            if columns.get(name, ()) is None:
                del columns[name]
        shown |= columns
        return shown | _remarks(response)
    if isinstance(response, Sequence) and not isinstance(response, str):
        return [plain(one) for one in response]
    if isinstance(response, (ModelDetails, ModelState)):
        return dataclasses.asdict(response)
    if dataclasses.is_dataclass(response):
        values = {
            field.name: getattr(response, field.name) for field in dataclasses.fields(response)
        }
        if isinstance(response, LookedUp) and not response.not_found.size:
            del values["not_found"]
        response = {
            name: value
            for name, value in values.items()
            if value is not None and (name, value) != ("coverage", 1)
        }
    if isinstance(response, Mapping):
        return {name: plain(value) for name, value in response.items()}
    return response.tolist() if isinstance(response, np.ndarray) else response


def _remarks(response: Retrieved | Ranked) -> dict[str, Any]:
    """What a response has beside its records, where it applies."""
    shown: dict[str, Any] = {}
    if _not_found(response):
        shown["not_found"] = _not_found(response)
    if isinstance(response, Ranked) and response.failed:
        shown["failed"] = [
            {"position": each.position, "message": each.message} for each in response.failed
        ]
    if isinstance(response, Retrieved) and response.explanations:
        shown["explanation"] = plain(response.explanations[0])
    if isinstance(response, Retrieved) and response.degraded:
        shown["degraded"] = True
        shown["degraded_reason"] = response.degraded_reason
    if response.coverage < 1:
        shown["coverage"] = response.coverage
    return shown


def _not_found(response: Retrieved | Ranked) -> list[Any]:
    """Returns the ids of the first query or context that do not exist."""
    identifiers: list[Any] = []
    if response.not_found:
        identifiers = response.not_found[0].tolist()
    return identifiers


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


def models_table(states: Sequence[ModelState]) -> Iterable[Table | str]:
    """Shows every version of every model."""
    fields = ["version", "state", "current", "labels", "problem"]
    rows = [
        [state.name, *_values(vars(version), fields)]
        for state in states
        for version in state.versions
    ]
    yield _table("models", ["model", *fields], rows)


def details_tables(model: ModelDetails) -> Iterable[Table | str]:
    """Shows the calls of a model, its towers, and what it stores."""
    details = plain(model)
    yield f"{details['model']} version {details['version']}, created {details['created']}\n"
    fields = ["name", "kind", "type", "role"]
    for call in details["calls"]:
        title = f"{call['call']} by tower {call['tower']} -> {', '.join(call['outputs'])}"
        rows = [[*_values(one, fields), _need(one)] for one in call["features"]]
        yield _table(title, [*fields, "send"], rows)
    for tower in details["towers"]:
        result = tower["formula"] or tower["result"]
        title = f"tower {tower['name']} on {tower['device']}, result {result}"
        parts = [_network(part["name"], f"per {part['per']}", part) for part in tower["parts"]]
        yield _table(
            title, ["part", "runs", "gives", "error"], [_network("whole", "", tower), *parts]
        )
    for stored in ("tables", "indexes", "corpora", "contexts", "lists", "stages"):
        entries = details[stored]
        fields = list(entries[0]) if entries else []
        yield _table(stored, fields, [_values(one, fields) for one in entries])


def _values(entry: Mapping[str, Any], fields: Sequence[str]) -> list[Any]:
    return [entry[field] for field in fields]


def _network(name: str, per: str, network: Mapping[str, Any]) -> list[Any]:
    """A tower or one of its parts: the form of it that runs, its outputs, and its largest error."""
    outputs = [output["name"] for output in network["outputs"]]
    runs = ""
    errors: list[float] = []
    for form in network["forms"]:
        if form["runs"]:
            runs = f"{form['kind']} {form['precision']}"
            errors = list(form["max_abs_error"].values())
            break
    return [name, f"{runs} {per}".strip(), outputs, f"{max(errors, default=0):.2g}"]


def _need(feature: Mapping[str, Any]) -> str:
    """What a caller has to do about a feature."""
    if feature["stored"] and feature["role"] == "candidate":
        return "nothing: found by the candidate's id"
    default = "" if feature["default"] is None else f"or else {json.dumps(feature['default'])}"
    if feature["stored"]:
        return f"or the context's id {default}".rstrip()
    return "required" if feature["required"] else default


def neighbors_table(response: Retrieved) -> Iterable[Table | str]:
    """Shows the neighbors of the first query."""
    neighbors = response[0]
    scores = ["score"] if neighbors.retrieval_scores is None else ["score", "retrieval score"]
    rows = []
    for number, neighbor in enumerate(neighbors, start=1):
        row = [number, neighbor.id, neighbor.score, neighbor.retrieval_score][: 2 + len(scores)]
        if neighbor.source is not None:
            row.append(neighbor.source)
        rows.append([*row, *neighbor.attributes.values()])
    heading = ["", "id", *scores]
    if neighbors.sources is not None:
        heading.append("source")
    yield _table(
        f"{response.model} version {response.version}", [*heading, *neighbors.attributes], rows
    )
    for one in response.explanations:
        found = f"{one.matches} candidates match ({one.selectivity:.2%}), {one.scored} scored"
        yield (
            f"path {one.path}: {found}, {one.search_ms:.2f} "
            f"ms{one.shortfall and f'; {one.shortfall}'}"
        )
    yield from _not_found_line(response)
    if response.degraded:
        yield f"degraded: {response.degraded_reason}"


def ranked_table(response: Ranked) -> Iterable[Table | str]:
    """Shows the candidates of the first context."""
    rows = ([one.position + 1, one.id, one.score, *one.heads.values()] for one in response[0])
    yield _table(
        f"{response.model} version {response.version}",
        ["sent as", "id", "score", *response[0].heads],
        rows,
    )
    for each in response.failed:
        yield f"{each.position + 1} failed: {each.message}"
    yield from _not_found_line(response)


def _not_found_line(response: Retrieved | Ranked) -> Iterable[str]:
    """Shows the ids that were left out because they do not exist."""
    if _not_found(response):
        yield f"not found: {', '.join(map(str, _not_found(response)))}"


def vectors_table(response: Embedded) -> Iterable[Table | str]:
    """Shows vectors."""
    rows = ([len(vector), vector] for vector in response.vectors)
    yield _table(f"{response.model} version {response.version}", ["dim", "vector"], rows)


def rows_table(ids: Sequence[str], response: LookedUp) -> Iterable[Table | str]:
    """Shows table rows beside their ids."""
    found = ["yes" if known else "no" for known in response.found]
    if response.lost is not None:
        found = ["lost" if lost else text for text, lost in zip(found, response.lost, strict=True)]
    title = f"table {response.table} of {response.model} version {response.version}"
    yield _table(title, ["id", "found", "row"], zip(ids, found, response.vectors, strict=True))
