"""Changes as protobuf messages: by the Python client over gRPC and HTTP, from the clients that a
setting names.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from rowcast_client import AsyncClient, Client, errors, where
from rowcast_client.stubs import embedding_service_pb2 as pb

from service.codec.change_messages import read_change_message
from service.config import ServiceSettings
from service.errors import InvalidArgument, ServiceError, TooLarge
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.units.service.running import RunningService

TRAINER = "0123456789abcdef-of-the-trainer"
READER = "0123456789abcdef-of-a-reader"
INT64 = np.dtype("<i8")
FLOAT32 = np.dtype("<f4")
IDS = pb.Ids(int64s=np.array([5000, 5001], INT64).tobytes())
FEATURES: dict[str, list[Any]] = {
    "movie": [1007, 1007],
    "genres": [["drama"], []],
    "year": [0.5, 1.5],
}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"trainer {TRAINER}\nreader {READER}\n")
    return file


@pytest.fixture(params=["http", "grpc"])
def changed(
    request: pytest.FixtureRequest, root: Path, small_towers: Path, tokens: Path
) -> Iterator[tuple[Client, RunningService, SmallBundle]]:
    """A client that may change a model, its service, and the bundle."""
    small = write_small_bundle(root, small_towers, users=True)
    service = RunningService(root, tokens=tokens, changes_from="trainer")
    url = service.http if request.param == "http" else f"grpc://{service.grpc}"
    with plain_client(url, TRAINER) as client:
        yield client, service, small
    service.close()


def plain_client(url: str, token: str) -> Client:
    """Returns a client that sends its token without TLS."""
    return Client(url, headers={"authorization": f"Bearer {token}"})


def test_client_adds_finds_and_deletes_candidates(
    changed: tuple[Client, RunningService, SmallBundle],
) -> None:
    client, _, small = changed
    vector = small.vectors[0]
    result = client.upsert_candidates(
        [5000, 5001],
        FEATURES,
        attributes={"title": ["New", None], "year": [2031, 2032]},
        vectors={"movies": np.stack([10 * vector, 9 * vector])},
        expires_s=[None, 4e9],
        sequences=[7, 7],
    )
    assert (result.model, result.version, result.sequence, result.changed) == ("movies", 1, 1, 2)
    nearest = client.retrieve(vectors=vector, k=2, attributes=["title", "year"])[0]
    assert list(nearest.ids) == [5000, 5001]
    assert [neighbor.attributes["title"] for neighbor in nearest] == ["New", None]

    assert client.set_candidate_attributes([5001], {"year": [1931]}).changed == 1
    early = client.retrieve(vectors=vector, k=2, filter=where("year").at_most(1931))[0]
    assert 5001 in early.ids

    older = client.upsert_candidates([5000, 6000], FEATURES, sequences=[6, 6])
    assert (older.changed, list(older.outdated), older.outdated_count) == (1, [5000], 1)
    deleted = client.delete_candidates([5001, 777])
    assert (deleted.changed, list(deleted.unknown), deleted.unknown_count) == (1, [777], 1)
    assert 5001 not in client.retrieve(vectors=vector, k=50)[0].ids


def test_client_replaces_rows_of_a_stream_once(
    changed: tuple[Client, RunningService, SmallBundle],
) -> None:
    client, _, _ = changed
    row = np.arange(8, dtype=np.float32)
    for is_repeated in (False, True):
        result = client.upsert_rows([3], [row], feature="user", stream="trainer/0", offset=9)
        assert result.is_repeated == is_repeated
    assert client.lookup("user", [3]).vectors[0].tolist() == row.tolist()
    assert client.upsert_rows([4], [row], table="users", model="movies", version=1).changed == 1


def test_client_learns_where_a_stream_continues(
    changed: tuple[Client, RunningService, SmallBundle],
) -> None:
    client, _, _ = changed
    applied = client.changes()
    assert (applied.model, applied.sequence, applied.streams) == ("movies", 0, {})
    row = np.arange(8, dtype=np.float32)
    result = client.upsert_rows([3], [row], feature="user", stream="trainer/0", offset=9)
    assert result.stream_offset == 9
    applied = client.changes("movies")
    assert (applied.sequence, applied.streams) == (1, {"trainer/0": 9})


@pytest.mark.parametrize(
    ("from_offset", "offset", "applied_offset", "value"),
    [
        (9, 12, 12, 2),  # continues
        (11, 12, 12, 2),  # messages between may have been none of the model's
        (8, 12, 9, 1),  # a part was applied before
        (5, 9, 9, 1),
        (None, 12, 12, 2),
    ],
)
def test_change_that_overlaps_with_what_was_applied_is_left_out(
    changed: tuple[Client, RunningService, SmallBundle],
    from_offset: int | None,
    offset: int,
    applied_offset: int,
    value: int,
) -> None:
    client, _, _ = changed
    ones = np.ones(8, np.float32)
    client.upsert_rows([3], [ones], feature="user", stream="s", offset=9)
    result = client.upsert_rows(
        [3], [2 * ones], feature="user", stream="s", offset=offset, from_offset=from_offset
    )
    assert result.is_repeated == (value == 1)
    assert result.stream_offset == applied_offset
    assert client.lookup("user", [3]).vectors[0, 0] == value
    assert client.changes().streams == {"s": applied_offset}


def test_async_client_changes_too(changed: tuple[Client, RunningService, SmallBundle]) -> None:
    _, service, small = changed

    async def upsert() -> int:
        headers = {"authorization": f"Bearer {TRAINER}"}
        async with AsyncClient(f"grpc://{service.grpc}", headers=headers) as client:
            features = {name: values[:1] for name, values in FEATURES.items()}
            return (await client.upsert_candidates([5002], features)).changed

    assert asyncio.run(upsert()) == 1
    assert 5002 in changed[0].retrieve(vectors=small.vectors[:1], k=50)[0].ids


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_others_change_nothing(
    scheme: str, write: Callable[..., SmallBundle], tokens: Path, serve: Callable[..., Any]
) -> None:
    write()
    service = serve(tokens=tokens, changes_from="trainer")
    url = service.http if scheme == "http" else f"grpc://{service.grpc}"
    denied = pytest.raises(errors.PermissionDenied, match="'reader' may not change models here")
    with plain_client(url, READER) as client, denied:
        client.delete_candidates([1007])
    with plain_client(url, READER) as client, denied:
        client.changes("movies")
    with plain_client(url, TRAINER) as client:
        with pytest.raises(errors.NotFound, match="no model 'film'"):
            client.changes("film")
        with pytest.raises(errors.InvalidArgument, match="id 1007 comes twice, at 0 and 1"):
            client.delete_candidates([1007, 1007])
        with pytest.raises(errors.NotFound, match="has no corpus 'film'"):
            client.delete_candidates([1007], corpus="film")
    assert service.current().changes == 0
    assert service.worker.dataplane.budget.held == 0


def test_service_without_tokens_changes_nothing(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve()
    with grpc.insecure_channel(service.grpc) as channel:
        change = channel.unary_unary("/rowcast.embedding.v1.EmbeddingService/Change")
        with pytest.raises(grpc.RpcError, match="send the change to the admin API"):
            change(pb.ChangeRequest(ids=IDS).SerializeToString())


CANDIDATES: dict[str, Any] = {
    "kind": pb.CHANGE_KIND_CANDIDATES,
    "action": pb.CHANGE_ACTION_UPSERT,
    "ids": IDS,
}
ROWS = {"kind": pb.CHANGE_KIND_ROWS, "action": pb.CHANGE_ACTION_UPSERT, "ids": IDS}
DELETION = {**CANDIDATES, "action": pb.CHANGE_ACTION_DELETE}
COLUMN = pb.Column(int64s=bytes(16))


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"ids": IDS}, InvalidArgument, "kind is 0; rows, candidates or contexts was expected"),
        ({**CANDIDATES, "kind": 99}, InvalidArgument, "kind is 99; rows, candidates or contexts"),
        (
            {**DELETION, "kind": pb.CHANGE_KIND_ROWS},
            InvalidArgument,
            "upsert for rows was",
        ),
        ({**CANDIDATES, "ids": pb.Ids()}, InvalidArgument, "ids is empty"),
        ({**CANDIDATES, "ids": pb.Ids(int64s=b"")}, InvalidArgument, "at least one id"),
        ({**CANDIDATES, "ids": pb.Ids(int64s=b"1")}, InvalidArgument, "ids.int64s has 1 bytes"),
        (
            {**CANDIDATES, "feature": "movie"},
            InvalidArgument,
            "feature was sent; a request without",
        ),
        (
            {**DELETION, "features": {"x": COLUMN}},
            InvalidArgument,
            "without it for delete of",
        ),
        ({**DELETION, "expires_s": bytes(16)}, InvalidArgument, "expires_s was sent"),
        ({**ROWS, "attributes": {"year": pb.Attribute()}}, InvalidArgument, "attributes was sent"),
        ({**ROWS, "vectors": {"": bytes(12)}}, InvalidArgument, "has 3 numbers; a vector of equal"),
        ({**ROWS, "vectors": {"": b""}}, InvalidArgument, "has 0 numbers"),
        ({**ROWS, "sequences": b"12"}, InvalidArgument, "sequences has 2 bytes; a multiple of 8"),
        (
            {**ROWS, "sequences": np.array([1, -1], INT64).tobytes()},
            InvalidArgument,
            "sequences is -1; an integer from 0",
        ),
        ({**ROWS, "offset": 4}, InvalidArgument, "stream and offset are accepted only together"),
        (
            {**ROWS, "from_offset": 4},
            InvalidArgument,
            "from_offset is 4; a request with stream",
        ),
        (
            {**ROWS, "stream": "s", "offset": 4, "from_offset": 4},
            InvalidArgument,
            "from_offset is 4 with an offset of 4; a number below offset was expected",
        ),
        (
            {**ROWS, "stream": "s", "offset": 4, "from_offset": -1},
            InvalidArgument,
            "from_offset is -1; an integer from 0",
        ),
        ({**ROWS, "stream": "s", "offset": -4}, InvalidArgument, "offset is -4; an integer from 0"),
        (
            {**CANDIDATES, "attributes": {"year": pb.Attribute(nulls=[2])}},
            InvalidArgument,
            "attributes.year.nulls has 2; a position below 2",
        ),
        (
            {**CANDIDATES, "features": {str(number): COLUMN for number in range(9)}},
            TooLarge,
            "features",
        ),
    ],
)
def test_message_that_is_no_change_is_rejected(
    root: Path, fields: dict[str, Any], kind: type[ServiceError], message: str
) -> None:
    settings = ServiceSettings(root=root, max_features=8)
    body = pb.ChangeRequest(**fields).SerializeToString()
    with pytest.raises(kind, match=message):
        read_change_message(body, settings)


@pytest.mark.parametrize(
    ("attribute", "values"),
    [
        (pb.Attribute(nulls=[0, 1]), [None, None]),
        (pb.Attribute(int64s=np.array([1, 2], INT64).tobytes(), nulls=[0]), [None, 2]),
        (pb.Attribute(float64s=np.array([0.5, math.inf]).tobytes()), [0.5, math.inf]),
        (pb.Attribute(bools=b"\x01\x00"), [True, False]),
        (pb.Attribute(strings=pb.Strings(values=["a", "b"])), ["a", "b"]),
        (
            pb.Attribute(lists=pb.Lists(values=[pb.Strings(values=["a"]), pb.Strings()])),
            [["a"], []],
        ),
    ],
)
def test_attributes_of_every_type_are_read(
    root: Path, attribute: pb.Attribute, values: list[Any]
) -> None:
    message = pb.ChangeRequest(**CANDIDATES, attributes={"x": attribute})
    _, request = read_change_message(message.SerializeToString(), ServiceSettings(root=root))
    assert request.attributes == {"x": values}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": [1.5, 2]}, "sequences holds 1.5: expected integers"),
        ({"sequences": 5}, "sequences is 5: expected a list"),
        ({"sequences": [2**63, 1]}, "beyond 64 bits"),
        ({"expires_s": ["soon", None]}, "expires_s holds 'soon': expected numbers"),
        ({"vectors": {"movies": [1.0, 2.0]}}, r"have shape \(2,\): expected \[m, dim\]"),
        ({"vectors": {"movies": [["a"]]}}, "cannot be read: expected numbers"),
        ({"attributes": {"year": 5}}, "attribute 'year' is 5: expected a list"),
        ({"attributes": {"tags": [[1], []]}}, "attribute 'tags' holds 1 in a list"),
        ({"attributes": {"year": ["a", 1]}}, "attribute 'year' holds 'a': expected numbers"),
        ({"offset": -1}, "offset is -1: expected an integer from 0"),
        ({"from_offset": True}, "from_offset is True: expected an integer from 0"),
        ({"corpus": 5}, "corpus or store is 5: expected text"),
    ],
)
def test_client_rejects_what_it_cannot_send(arguments: dict[str, Any], message: str) -> None:
    client = Client("grpc://127.0.0.1:9")
    with pytest.raises(errors.InvalidArgument, match=message):
        client.upsert_candidates([1, 2], FEATURES, **arguments)
