from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs.embedding_service_pb2_grpc import EmbeddingServiceStub
from service.grpc_api.servicer import CALLS
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.grpc_api.conftest import MAX_REQUEST_BYTES
from tests.units.service.grpc_api.requests import call, lookup, retrieve, users
from tests.units.service.running import RunningService

DENIED = "PERMISSION_DENIED"
INVALID = "INVALID_ARGUMENT"
UNDECODABLE = b"\xff" * 20
FULL = "full-0123456789abcdef"
ONE = "one-0123456789abcdef"


def test_every_method_of_the_contract_works_with_the_generated_stub(
    channel: grpc.Channel,
) -> None:
    stub = EmbeddingServiceStub(channel)
    features = {"user": users(5)}
    candidates = pb.Ids(int64s=users(1000).int64s)
    assert len(stub.Retrieve(retrieve()).ids.int64s) == 24
    ranked = stub.Rank(pb.RankRequest(context=features, candidate_ids=candidates))
    assert len(ranked.scores) == 4
    assert len(stub.Recommend(pb.RecommendRequest(k=2, context=features)).scores) == 8
    assert stub.Embed(pb.EmbedRequest(tower="query", features=features)).dim == 8
    assert stub.Lookup(lookup(3)).table == "users"
    assert [model.name for model in stub.ListModels(pb.ListModelsRequest()).models] == ["movies"]
    details = stub.GetModel(pb.GetModelRequest(model=pb.ModelSpec(name="movies")))
    assert {signature.call for signature in details.calls} >= {pb.CALL_RETRIEVE, pb.CALL_RANK}
    assert set(CALLS) == {
        method.name for method in pb.DESCRIPTOR.services_by_name["EmbeddingService"].methods
    }


@pytest.mark.parametrize("compression", list(grpc.Compression))
@pytest.mark.parametrize("ids", [3, 50_000])
def test_messages_are_read_whatever_their_size_and_compression(
    ids: int, compression: grpc.Compression, channel: grpc.Channel
) -> None:
    looked_up = call(channel, "Lookup", lookup(*range(ids)), compression=compression)
    assert len(pb.LookupResponse.FromString(looked_up.response).found) == ids
    phases = [part.split(";")[0] for part in looked_up.trailing["server-timing"].split(", ")]
    assert phases[0] == "decode"
    assert phases[-1] == "encode"


@pytest.mark.parametrize(
    ("method", "size"),
    [
        *((operation.method, size) for operation in OPERATIONS.values() for size in (3, 200_000)),
        ("ListModels", 3),
        ("GetModel", 3),
    ],
)
def test_message_that_does_not_decode_is_invalid_argument(
    method: str, size: int, channel: grpc.Channel
) -> None:
    rejected = call(channel, method, b"\xff" * size)
    assert rejected.code == rejected.status.name == "INVALID_ARGUMENT"
    assert "do not decode as protobuf" in rejected.response


@pytest.mark.parametrize("method", ["ListModels", "GetModel"])
def test_large_message_that_names_a_model_at_most_is_too_large(
    method: str, channel: grpc.Channel
) -> None:
    rejected = call(channel, method, b"\xff" * 200_000)
    assert (rejected.code, rejected.status.name) == ("TOO_LARGE", "RESOURCE_EXHAUSTED")
    assert "at most 65536 are accepted" in rejected.response


def test_compressed_message_counts_as_what_it_becomes(service: RunningService) -> None:
    large = pb.RetrieveRequest(index="x" * MAX_REQUEST_BYTES)
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        with grpc.insecure_channel(service.grpc, compression=compression) as channel:
            assert call(channel, "Retrieve", large).code == "TOO_LARGE"
            # A message that begins with field 15 looks like the beginning of `deflate`.
            small = pb.RecommendRequest(context={"user": users(5)}).SerializeToString()
            assert call(channel, "Recommend", b"\x78\x01" + small).code == "OK"
    until(lambda: service.dataplane.budget.held == 0)


def test_tokens_admit_clients_to_their_models(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write()
    tokens = tmp_path / "tokens"
    tokens.write_text(f"everyone {FULL}\nranker {ONE} movies,others\n")
    running = serve(tokens=tokens)
    details = pb.GetModelRequest(model=pb.ModelSpec(name="movies"))
    with grpc.insecure_channel(running.grpc) as channel:
        for token, method, message, code in (
            (FULL, "Retrieve", retrieve(), "OK"),
            (FULL, "ListModels", b"", "OK"),
            (ONE, "Retrieve", retrieve("movies"), "OK"),
            (ONE, "GetModel", details, "OK"),
            (ONE, "Retrieve", retrieve("secret"), DENIED),
            (ONE, "Retrieve", retrieve(), DENIED),
            # The model is read before the rest of the message is decoded.
            (ONE, "Retrieve", retrieve("secret").SerializeToString() + UNDECODABLE, DENIED),
            (ONE, "Retrieve", retrieve("movies").SerializeToString() + UNDECODABLE, INVALID),
            (ONE, "Retrieve", UNDECODABLE + retrieve("secret").SerializeToString(), DENIED),
            (ONE, "ListModels", b"", DENIED),
            ("strange-0123456789abcdef", "Retrieve", retrieve(), "UNAUTHENTICATED"),
            (None, "ListModels", b"", "UNAUTHENTICATED"),
            (None, "Nothing", b"", "UNAUTHENTICATED"),
        ):
            assert call(channel, method, message, token).code == code, (token, method)
        twice = [("authorization", f"Bearer {FULL}")] * 2
        assert call(channel, "ListModels", metadata=twice).code == "UNAUTHENTICATED"
    assert (
        running.value(
            "rowcast_requests_total", transport="grpc", call="other", code="UNAUTHENTICATED"
        )
        == 1
    )
