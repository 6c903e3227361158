"""Ids that no candidate can have are rejected alike by whatever takes ids: requests, changes and
the deny list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from rowcast_client import Client, RowcastError

from tests.bundles.small import write_small_bundle
from tests.units.service.changes.making import request
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.running import RunningService

IdKind = Literal["int64", "string"]
VECTOR = [0.1] * 8
MODELS: dict[IdKind, str] = {"int64": "movies", "string": "tracks"}
EXPECTED = {"int64": "an integer", "string": "a string"}
TEXTS = {
    "int64": (
        " 1000",
        "01000",
        "1000.0",
        "+1000",
        "-0",
        "1e3",
        "1000,1007",
        "１０００",
        "m-0",
        str(2**63),
    ),
    "string": (),
}
"""Texts that are no ids of a model, by the kind of its ids."""
VALUES: dict[str, tuple[Any, ...]] = {
    "int64": (*TEXTS["int64"], 1000.0, True, None, 2**63),
    "string": (1000, 1000.0, True, None),
}
"""Values of JSON that are no ids."""
CALLS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "exclude_ids": ("retrieve", lambda bad: {"vectors": [VECTOR], "exclude_ids": [bad]}),
    "negative_ids": ("retrieve", lambda bad: {"vectors": [VECTOR], "negative_ids": [bad]}),
    "ids": ("retrieve", lambda bad: {"ids": [bad]}),
    "sources": ("recommend", lambda bad: {"sources": [{"ids": [bad]}]}),
    "candidate_ids": ("rank", lambda bad: {"candidate_ids": [bad], "context": {}}),
}
COMMANDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "candidates/delete": lambda bad: {"items": [{"id": bad}]},
    "candidates/upsert": lambda bad: {"items": [{"id": bad}]},
    "deny/add": lambda bad: {"ids": [bad]},
}


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A model of each kind of ids."""
    root = tmp_path_factory.mktemp("root")
    for id_kind, model in MODELS.items():
        write_small_bundle(root, small_towers, model, id_kind=id_kind)
    running = RunningService(root)
    yield running
    running.close()


def denied(service: RunningService, model: str) -> list[str]:
    ids: list[str] = request("GET", f"{service.admin}/v1/models/{model}/deny").json()["ids"]
    return ids


@pytest.mark.parametrize("id_kind", MODELS)
@pytest.mark.parametrize("way", [*CALLS, *COMMANDS])
def test_value_that_is_no_id_is_rejected_with_what_the_corpus_takes(
    service: RunningService, id_kind: IdKind, way: str
) -> None:
    model = MODELS[id_kind]
    url = f"{service.admin}/v1/models/{model}/{way}"
    body = COMMANDS.get(way)
    if body is None:
        call, body = CALLS[way]
        url = f"{service.http}/v1/models/{model}:{call}"
    for value in VALUES[id_kind]:
        response = request("POST", url, json=body(value))
        error = response.json()["error"]
        assert response.status_code == 400, (way, value)
        assert EXPECTED[id_kind] in error["message"], (way, value)
        # What a request can hold at all is checked before its model is known.
        is_known_kind = value is not None and value is not True
        assert (" or a string" in error["message"]) != is_known_kind, (way, value)
    assert denied(service, model) == []


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_text_that_is_no_id_is_rejected_by_the_client(
    service: RunningService, transport: str
) -> None:
    url = {"http": service.http, "grpc": f"grpc://{service.grpc}"}[transport]
    with Client(url) as client:
        for text in TEXTS["int64"]:
            for ids in ({"ids": [text]}, {"vectors": [VECTOR], "exclude_ids": [text]}):
                with pytest.raises(RowcastError, match="no integer id"):
                    client.retrieve(model="movies", **ids)


@pytest.mark.parametrize("command", ["deny add", "candidates delete"])
def test_text_that_is_no_id_is_rejected_on_the_command_line(
    service: RunningService, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "ids"
    for text in TEXTS["int64"]:
        arguments = [*command.split(), "movies"]
        line = text
        if command == "candidates delete":
            line = json.dumps({"id": text})
        file.write_text(f"{line}\n")
        ways = [["--", text]]
        # In a file of ids, spaces around a line are no part of an id.
        if text.strip() == text:
            ways.append(["--file", str(file)])
        for way in ways:
            done = ctl("--admin", service.admin, *arguments, *way)
            assert (done.exit_code, "no integer id" in done.stderr) == (2, True), (
                text,
                done.stderr,
            )
    assert denied(service, "movies") == []
