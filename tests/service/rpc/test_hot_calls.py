"""Hot calls whose requests are large or compressed, and what is left of those whose callers leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import grpc
import pytest

from service.rpc.servicer import SERVICE
from service.wire.decoding import AT_ONCE_BYTES_MAX
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, settings_of

SMALL, LARGE = 400, 4 * AT_ONCE_BYTES_MAX


@pytest.fixture(scope="module")
def doors(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDoors]:
    with RunningDoors(desk_of(engine, settings_of(tmp_path_factory.mktemp("root")))) as running:
        yield running


def body_of(size_bytes: int) -> bytes:
    return bytes(pb.RetrieveRequest(vectors=bytes(size_bytes), k=1).SerializeToString())


@pytest.mark.parametrize("compression", list(grpc.Compression))
@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
def test_requests_are_read_whatever_their_size_and_compression(
    channel: grpc.Channel, engine: ScriptedEngine, size_bytes: int, compression: grpc.Compression
) -> None:
    method = channel.unary_unary(f"/{SERVICE}/Retrieve")
    answer, call = method.with_call(body_of(size_bytes), timeout=20, compression=compression)
    assert pb.RetrieveResponse.FromString(answer).searched == 9
    assert {part.split(";")[0] for part in dict(call.trailing_metadata())["server-timing"].split(", ")} == {
        "decode",
        "encode",
    }
    ((_, request, _),) = engine.asked
    assert request.vectors.nbytes == size_bytes


@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
def test_large_requests_are_refused_as_small_ones_are(channel: grpc.Channel, size_bytes: int) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{SERVICE}/Retrieve")(b"\xff" * size_bytes, timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
def test_call_whose_caller_leaves_is_counted_once_and_holds_nothing(
    doors: RunningDoors, channel: grpc.Channel, engine: ScriptedEngine, size_bytes: int
) -> None:
    def ended() -> float:
        return sum(count for (call, _), count in codes_of(doors.desk.metrics, "grpc").items() if call == "retrieve")

    before, places = ended(), engine._callers.left
    doors.soon(lambda: setattr(engine, "held", asyncio.Event()))
    call = channel.unary_unary(f"/{SERVICE}/Retrieve").future(body_of(size_bytes))
    assert engine.begun.wait(10)
    assert engine._callers.left == places - 1
    call.cancel()
    assert engine.given_up.wait(10)
    end = time.monotonic() + 20
    while engine._callers.left < places:
        assert time.monotonic() < end
        time.sleep(0.001)
    doors.soon(lambda: None)  # the turn that gave the place back is over
    assert ended() == before + 1
