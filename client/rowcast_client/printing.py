"""Responses as tables for people and as plain values for JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from rich.table import Table

from rowcast_client.model_details import ModelDetails, ModelState
from rowcast_client.results import (
    EmbeddingResult,
    Explanation,
    LookupResult,
    RankingResult,
    RetrievalResult,
)

VALUES_SHOWN = 8
"""The maximum number of values of a vector that a table shows."""


def plain(response: Any) -> Any:
    """Returns a response as plain values, in the form of the service's own JSON."""
    if isinstance(response, (RetrievalResult, RankingResult)):
        # The command sends one query or context, so that the first one is all.
        columns = plain(vars(response[0]))
        # Only recommend sets these two.
        for name in ("retrieval_scores", "sources"):
            if columns.get(name, ()) is None:
                del columns[name]
        model_version = {"model": response.model, "version": response.version}
        return model_version | columns | _remarks(response)
    if isinstance(response, Sequence) and not isinstance(response, str):
        return [plain(element) for element in response]
    if isinstance(response, (ModelDetails, ModelState)):
        return dataclasses.asdict(response)
    if dataclasses.is_dataclass(response):
        response = _present_fields(response)
    if isinstance(response, Mapping):
        return {name: plain(value) for name, value in response.items()}
    if isinstance(response, np.ndarray):
        return response.tolist()
    return response


def _present_fields(response: Any) -> dict[str, Any]:
    """Returns the fields of a record, without those that do not apply, as the service's JSON."""
    values = {field.name: getattr(response, field.name) for field in dataclasses.fields(response)}
    if isinstance(response, LookupResult) and not response.not_found.size:
        del values["not_found"]
    # Only lost shards make it less.
    if values.get("coverage") == 1:
        del values["coverage"]
    return {name: value for name, value in values.items() if value is not None}


def _remarks(response: RetrievalResult | RankingResult) -> dict[str, Any]:
    """Returns what a response has beside its records, where it applies."""
    remarks: dict[str, Any] = {}
    if _not_found(response):
        remarks["not_found"] = _not_found(response)
    if isinstance(response, RankingResult) and response.failed:
        remarks["failed"] = [
            {"position": candidate.position, "message": candidate.message}
            for candidate in response.failed
        ]
    if isinstance(response, RetrievalResult) and response.explanations:
        remarks["explanation"] = plain(response.explanations[0])
    if isinstance(response, RetrievalResult) and response.degraded:
        remarks["degraded"] = True
        remarks["degraded_reason"] = response.degraded_reason
    if response.coverage < 1:
        remarks["coverage"] = response.coverage
    return remarks


def _not_found(response: RetrievalResult | RankingResult) -> list[Any]:
    """Returns the ids of the first query or context that do not exist."""
    ids: list[Any] = []
    if response.not_found:
        ids = response.not_found[0].tolist()
    return ids


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table | str:
    """Returns a table whose numbers are aligned to the right."""
    body = list(rows)
    if not body:
        return f"{title}: none"
    table = Table(title=title, title_justify="left", title_style="bold")
    # The columns of a response hold values of one type each, so that the first row shows it.
    for column, value in zip(columns, body[0], strict=True):
        justify: Literal["left", "right"] = "left"
        if isinstance(value, (int, float)):
            justify = "right"
        table.add_column(column, overflow="fold", justify=justify)
    for row in body:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: Any) -> str:
    """Returns a value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, np.ndarray):
        numbers = " ".join(f"{number:.4f}" for number in value[:VALUES_SHOWN])
        if len(value) > VALUES_SHOWN:
            numbers += " …"
        return numbers
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


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
        rows = [[*_values(feature, fields), _need(feature)] for feature in call["features"]]
        yield _table(title, [*fields, "send"], rows)
    for tower in details["towers"]:
        result = tower["formula"] or tower["result"]
        title = f"tower {tower['name']} on {tower['device']}, result {result}"
        rows = [_network(part["name"], f"per {part['per']}", part) for part in tower["parts"]]
        # Of a divided tower, the service may run the parts alone.
        if not rows or any(form["runs"] for form in tower["forms"]):
            rows.insert(0, _network("whole", "", tower))
        yield _table(title, ["part", "runs", "gives", "error"], rows)
    for stored in ("tables", "indexes", "corpora", "contexts", "lists", "stages"):
        entries = details[stored]
        fields = []
        if entries:
            fields = list(entries[0])
        yield _table(stored, fields, [_values(entry, fields) for entry in entries])


def _values(entry: Mapping[str, Any], fields: Sequence[str]) -> list[Any]:
    return [entry[field] for field in fields]


def _network(name: str, per: str, network: Mapping[str, Any]) -> list[Any]:
    """Returns the row of a tower or of one of its parts: the form that runs, the outputs, and the
    largest error.
    """
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
    """Returns what a client has to send of a feature."""
    # Calls always name candidates by their ids, but a context's id is optional.
    if feature["stored"] and feature["role"] == "candidate":
        return "nothing: found by the candidate's id"
    default = ""
    if feature["default"] is not None:
        default = f"or else {json.dumps(feature['default'])}"
    if feature["stored"]:
        return f"or the context's id {default}".rstrip()
    if feature["required"]:
        return "required"
    return default


def neighbors_table(response: RetrievalResult) -> Iterable[Table | str]:
    """Shows the neighbors of the first query."""
    neighbors = response[0]
    headings = ["", "id", "score"]
    if neighbors.retrieval_scores is not None:
        headings.append("retrieval score")
    if neighbors.sources is not None:
        headings.append("source")
    headings += neighbors.attributes

    rows = []
    for number, neighbor in enumerate(neighbors, start=1):
        row = [number, neighbor.id, neighbor.score]
        if neighbor.retrieval_score is not None:
            row.append(neighbor.retrieval_score)
        if neighbor.source is not None:
            row.append(neighbor.source)
        rows.append([*row, *neighbor.attributes.values()])
    yield _table(f"{response.model} version {response.version}", headings, rows)

    for explanation in response.explanations:
        yield _explanation_line(explanation)
    yield from _not_found_line(response)
    if response.degraded:
        yield f"degraded: {response.degraded_reason}"


def _explanation_line(explanation: Explanation) -> str:
    """Returns how the neighbors of a query were found, in one line."""
    counts = (
        f"{explanation.matches} candidates match ({explanation.selectivity:.2%}), "
        f"{explanation.scored} scored"
    )
    line = f"path {explanation.path}: {counts}, {explanation.search_ms:.2f} ms"
    if explanation.shortfall:
        line += f"; {explanation.shortfall}"
    if explanation.unmatched:
        line += f"; no candidate meets {', '.join(explanation.unmatched)}"
    return line


def ranked_table(response: RankingResult) -> Iterable[Table | str]:
    """Shows the candidates of the first context."""
    candidates = response[0]
    # Positions count from 1 for people, and from 0 in responses.
    rows = [
        [candidate.position + 1, candidate.id, candidate.score, *candidate.heads.values()]
        for candidate in candidates
    ]
    headings = ["sent as", "id", "score", *candidates.heads]
    yield _table(f"{response.model} version {response.version}", headings, rows)
    for failure in response.failed:
        yield f"{failure.position + 1} failed: {failure.message}"
    yield from _not_found_line(response)


def _not_found_line(response: RetrievalResult | RankingResult) -> Iterable[str]:
    """Shows the ids that were left out because they do not exist."""
    if _not_found(response):
        yield f"not found: {', '.join(map(str, _not_found(response)))}"


def vectors_table(response: EmbeddingResult) -> Iterable[Table | str]:
    """Shows the vectors of a tower, with their lengths."""
    rows = ([len(vector), vector] for vector in response.vectors)
    yield _table(f"{response.model} version {response.version}", ["dim", "vector"], rows)


def rows_table(ids: Sequence[str], response: LookupResult) -> Iterable[Table | str]:
    """Shows the table row of each id."""
    states = ["yes" if is_found else "no" for is_found in response.found]
    # A lost row counts as not found, but exists: people must not take it for an unknown id.
    if response.lost is not None:
        for position in np.flatnonzero(response.lost):
            states[position] = "lost"
    title = f"table {response.table} of {response.model} version {response.version}"
    yield _table(title, ["id", "found", "row"], zip(ids, states, response.vectors, strict=True))
