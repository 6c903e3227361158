"""Changes that a model cannot take are rejected as a whole, with the same error by one process and
by a router of shards, and in every way in: JSON, the client over HTTP and gRPC, and `ctl`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from rowcast_client import Client, RowcastError

from bundle.changes.file import ChangesFile
from service.codec.stubs import embedding_service_pb2 as pb
from service.exit_codes import EXIT_USAGE
from tests.bundles.small import write_small_bundle
from tests.cases.rejected_changes import CANDIDATES, ITEMS, LIMITS, MESSAGES
from tests.differential.random_changes import are_alike, send
from tests.e2e.process import WAIT_S
from tests.units.service.changes.making import Rejected, change, file_of, request
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.running import RunningService

TOKEN = "0123456789abcdef-of-the-trainer"
PROTOBUF = {
    "authorization": f"Bearer {TOKEN}",
    "content-type": "application/x-protobuf",
    "accept": "application/json",
}


@pytest.fixture(scope="module")
def services(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RunningService]]:
    """One process that holds everything, and a router of two shards."""
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, users=True, partitions=2)
    with ExitStack() as started:

        def start(**settings: Any) -> RunningService:
            service = RunningService(root, **settings)
            started.callback(service.close)
            return service

        shards = [start(shard=f"{number}/2", shard_min_bytes=1) for number in (1, 2)]
        addresses = tuple([shard.grpc for shard in shards])
        tokens = root.with_name("tokens")
        tokens.write_text(f"trainer {TOKEN}\n")
        clients = {"tokens": tokens, "changes_from": ("trainer",)}
        yield [
            start(**LIMITS, **clients),
            start(shard_addresses=addresses, shard_min_bytes=1, **LIMITS),
        ]


def assert_rejected(
    service: RunningService, problem: Rejected, code: str, words: list[str]
) -> None:
    assert problem.code == code
    for word in words:
        assert word in problem.message
    assert ChangesFile(file_of(service), "movies").position() is None


@pytest.fixture(scope="module")
def clients(services: list[RunningService]) -> Iterator[dict[str, Client]]:
    urls = {"http": services[0].http, "grpc": f"grpc://{services[0].grpc}"}
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(Client(url, token=TOKEN, timeout_s=WAIT_S))
            for name, url in urls.items()
        }


@pytest.mark.parametrize(("path", "items", "options", "code", "words"), [*ITEMS, *CANDIDATES])
def test_change_that_does_not_fit_is_rejected_in_every_way(
    path: str,
    items: list[Any],
    options: dict[str, Any],
    code: str,
    words: list[str],
    services: list[RunningService],
    clients: dict[str, Client],
    tmp_path: Path,
) -> None:
    messages = set()
    for service in services:
        with pytest.raises(Rejected) as rejection:
            change(service, path, *items, **options)
        assert_rejected(service, rejection.value, code, words)
        messages.add(rejection.value.message)

    service = services[0]
    body = {"items": items, **options}
    authorization = {"authorization": PROTOBUF["authorization"]}
    url = f"{service.http}/v1/models/movies/{path}"
    error = request("POST", url, json=body, headers=authorization).json()["error"]
    assert (error["code"], {error["message"]}) == (code, messages)

    for client in clients.values():
        # What only JSON can say is no argument of the client.
        with pytest.raises((RowcastError, ValueError)) as problem:
            send(client, (path, body))
        if isinstance(problem.value, RowcastError):
            assert problem.value.code == code

    # A file has no parts of a stream but its lines, and begins a new batch where its fields change.
    ids = {item.get("id") for item in items}
    if are_alike(items) and len(ids) == len(items) and None not in ids and "stream" not in options:
        file = tmp_path / "items.jsonl"
        file.write_bytes(b"".join([orjson.dumps(item) + b"\n" for item in items]))
        named = [f"--{name}={value}" for name, value in options.items()]
        command = [*path.split("/"), "movies", "--file", str(file), *named]
        done = ctl("--admin", service.admin, *command)
        assert done.exit_code == EXIT_USAGE
        for word in (f"{code}: ", *words):
            assert word in done.stderr
    assert ChangesFile(file_of(service), "movies").position() is None


@pytest.mark.parametrize(("path", "fields", "code", "words"), MESSAGES)
def test_message_that_is_no_change_is_rejected_whole(
    path: str,
    fields: dict[str, Any],
    code: str,
    words: list[str],
    services: list[RunningService],
) -> None:
    body = pb.ChangeRequest(**fields).SerializeToString()
    url = f"{services[0].http}/v1/models/movies/{path}"
    response = request("POST", url, content=body, headers=PROTOBUF)
    assert_rejected(services[0], Rejected(response.json()["error"]), code, words)
