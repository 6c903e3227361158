"""Both doors of a real service record what they answer, and the next version is asked it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from service.recordings.files import read_newest
from service.recordings.recording import NAME
from service.recordings.replay import CALLS_MAX
from service.rpc.servicer import SERVICE
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.process import PATIENCE_S, Process, until
from tests.service.small_bundle import SmallBundle


def test_both_doors_record_what_they_answer_and_the_next_version_is_asked_it(
    write: Callable[..., SmallBundle], root: Path
) -> None:
    write()
    service = Process(root, "--record-rate", "1")
    try:
        with service.client() as client, grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
            service.event("version_available")
            body = {"features": {"user": 3}, "k": 2}
            assert client.post("/v1/models/movies:retrieve", json=body).status_code == 200
            assert client.post("/v1/models/movies/versions/1:retrieve", json=body).status_code == 200, "names a version"
            assert client.post("/v1/models/movies:retrieve", json={"k": 2}).status_code == 400
            user = pb.Column(int64s=(5).to_bytes(8, "little"))
            message = pb.LookupRequest(feature="user", ids=user).SerializeToString()
            channel.unary_unary(f"/{SERVICE}/Lookup")(message, timeout=PATIENCE_S)
        recordings = root / NAME / "movies"
        until(lambda: len(read_newest(recordings, CALLS_MAX, 1 << 20)) == 2)  # a thread writes them
        write(version=2)
        replayed = service.event("recordings_replayed")
        assert (replayed["version"], replayed["calls"], replayed["failed"]) == (2, 2, 0)
        assert service.event("version_available")["version"] == 2
        assert service.stop() == 0
    finally:
        service.kill()
