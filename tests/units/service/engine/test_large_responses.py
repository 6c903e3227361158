"""Responses that are too large for one piece."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import httpx

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.units.service.running import RunningService


def test_large_response_is_the_same_in_pieces(small_towers: Path, tmp_path: Path) -> None:
    write_small_bundle(tmp_path, small_towers)
    service = RunningService(tmp_path)
    ids = [number % 50 for number in range(30_000)]
    try:
        body = {"feature": "user", "ids": ids}
        large = httpx.post(f"{service.http}/v1/models/movies:lookup", json=body, timeout=30)
        response = httpx.post(
            f"{service.http}/v1/models/movies:lookup",
            json={"feature": "user", "ids": list(range(50))},
        ).json()
        assert len(large.content) > 1 << 20
        assert int(large.headers["content-length"]) == len(large.content)
        content = json.loads(large.content)
        assert content["vectors"] == [response["vectors"][movie_id] for movie_id in ids]
        assert content["found"] == [True] * len(ids)
        accept = {"accept": "application/x-protobuf"}
        message = pb.LookupResponse.FromString(
            httpx.post(
                f"{service.http}/v1/models/movies:lookup", json=body, headers=accept, timeout=30
            ).content
        )
        expected = struct.pack("<8f", *response["vectors"][7])
        assert message.vectors[7 * 32 : 8 * 32] == expected
        assert len(message.vectors) == len(ids) * 32
    finally:
        service.close()
