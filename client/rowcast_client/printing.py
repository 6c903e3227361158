"""Answers as tables for people and as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from rowcast_client.details import FeatureDetails, ModelDetails, ModelState, PartDetails, TowerDetails
from rowcast_client.results import Embedded, LookedUp, Ranked, Retrieved

NUMBERS = {"score", "retrieval score", "rows", "size", "dim", "bytes", "version", "recall", "sent as"}
"""Columns that are aligned to the right."""
VALUES_SHOWN = 8
"""Numbers of a vector that a table shows."""


def plain(answer: Any) -> Any:
    """An answer as JSON has it: in the form of the service's own JSON where there is one."""
    if isinstance(answer, Retrieved):
        return {"model": answer.model, "version": answer.version, "neighbors": [plain(one) for one in answer[0]]}
    if isinstance(answer, Ranked):
        candidates = [plain(one) for one in answer[0]]
        return {"model": answer.model, "version": answer.version, "candidates": candidates}
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        values = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
        return {name: plain(value) for name, value in values.items() if value is not None}
    if isinstance(answer, (list, tuple)):
        return [plain(one) for one in answer]
    return answer


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in NUMBERS else "left")
    return table


def models_table(states: tuple[ModelState, ...]) -> Iterable[Table]:
    """Shows every version of every model."""
    table = _table("", "model", "version", "state", "labels", "problem")
    for state in states:
        for version in state.versions:
            shown = f"{version.state}, current" if version.current else version.state
            table.add_row(state.name, str(version.version), shown, ", ".join(version.labels), version.problem)
    yield table


def details_tables(details: ModelDetails) -> Iterable[Table | str]:
    """Shows the calls of a model."""
    yield f"{details.model} version {details.version}, created {details.created}\n"
    for call in details.calls:
        title = f"{call.call} by tower {call.tower} -> {', '.join(call.outputs)}"
        table = _table(title, "feature", "kind", "type", "role", "send")
        for feature in call.features:
            table.add_row(feature.name, feature.kind, feature.type, feature.role, _need(feature))
        yield table
    yield from map(_tower_table, details.towers)
    tables = _table("tables", "name", "rows", "dim", "dtype", "bytes")
    for one in details.tables:
        tables.add_row(one.name, f"{one.rows:,}", str(one.dim), one.dtype, f"{one.bytes:,}")
    yield tables
    indexes = _table("indexes", "name", "corpus", "kind", "distance", "size", "recall")
    for index in details.indexes:
        recall = f"{index.recall:.4f} @ {index.recall_k}"
        indexes.add_row(index.name, index.corpus, index.kind, index.distance, f"{index.size:,}", recall)
    yield indexes
    for title, stores in (("candidates", details.corpora), ("contexts", details.contexts)):
        corpora = _table(title, "by id", "size", "ids", "attributes", "features")
        for store in stores:
            names = ", ".join(store.attributes), ", ".join(store.features)
            corpora.add_row(store.name, f"{store.size:,}", store.id_type, *names)
        yield corpora


def _tower_table(tower: TowerDetails) -> Table:
    """Shows the outputs of a tower, its parts, and the effects of its precisions."""
    ordered = tower.formula or tower.result
    table = _table(f"tower {tower.name} on {tower.device}, result {ordered}", "part", "runs", "gives", "error")
    parts: list[tuple[str, str, TowerDetails | PartDetails]] = [("whole", "", tower)]
    parts += [(part.name, f"per {part.per}", part) for part in tower.parts]
    for name, per, network in parts:
        form = next((form for form in network.forms if form.runs), None)
        runs = "" if form is None else f"{form.kind} {form.precision} {per}".rstrip()
        error = "" if form is None else f"{max(form.max_abs_error.values(), default=0):.2g}"
        table.add_row(name, runs, ", ".join(output.name for output in network.outputs), error)
    return table


def neighbors_table(answer: Retrieved) -> Iterable[Table]:
    """Shows the neighbors of the first query."""
    neighbors = answer[0]
    retrieval = [] if neighbors.retrieval_scores is None else ["retrieval score"]
    names = list(neighbors.attributes)
    table = _table(f"{answer.model} version {answer.version}", "", "id", "score", *retrieval, *names)
    for place, neighbor in enumerate(neighbors, start=1):
        scores = [neighbor.score] if neighbor.retrieval_score is None else [neighbor.score, neighbor.retrieval_score]
        shown = [_shown(neighbor.attributes[name]) for name in names]
        table.add_row(str(place), str(neighbor.id), *(f"{score:.4f}" for score in scores), *shown)
    yield table


def ranked_table(answer: Ranked) -> Iterable[Table]:
    """Shows the candidates of the first context."""
    candidates = answer[0]
    heads = list(candidates.heads)
    table = _table(f"{answer.model} version {answer.version}", "sent as", "id", "score", *heads)
    for one in candidates:
        values = [f"{one.heads[name]:.4f}" for name in heads]
        table.add_row(str(one.position + 1), "" if one.id is None else str(one.id), f"{one.score:.4f}", *values)
    yield table


def vectors_table(answer: Embedded) -> Iterable[Table]:
    """Shows vectors."""
    table = _table(f"{answer.model} version {answer.version}", "dim", "vector")
    for vector in answer.vectors:
        table.add_row(str(len(vector)), _numbers(vector))
    yield table


def rows_table(ids: Sequence[str], answer: LookedUp) -> Iterable[Table]:
    """Shows table rows beside their ids."""
    table = _table(f"table {answer.table} of {answer.model} version {answer.version}", "id", "found", "row")
    for one, found, vector in zip(ids, answer.found, answer.vectors, strict=True):
        table.add_row(one, "yes" if found else "no", _numbers(vector))
    yield table


def _numbers(vector: Any) -> str:
    shown = " ".join(f"{value:.4f}" for value in vector[:VALUES_SHOWN])
    return shown if len(vector) <= VALUES_SHOWN else f"{shown} …"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _need(feature: FeatureDetails) -> str:
    """What a caller has to do about a feature."""
    if feature.stored and feature.role == "candidate":
        return "nothing: found by the candidate's id"
    default = "" if feature.default is None else f"or else {feature.default!r}"
    if feature.stored:
        return f"or the context's id {default}".rstrip()
    return "required" if feature.required else default
