"""What is recorded of one version and replayed against the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from bundle.format.manifest import dump
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.request_log.record import RequestLog
from service.request_log.replay import Replay
from tests.bundles.small import SmallBundle
from tests.units.service.versions.driven import Driven

Write = Callable[..., SmallBundle]
USER = pb.Column(int64s=(5).to_bytes(8, "little"))
RETRIEVE = pb.RetrieveRequest(k=5, context={"user": USER}).SerializeToString()


class Service:
    """Versions under a root, each replayed before it is served."""

    def __init__(self, root: Path) -> None:
        self.settings = ServiceSettings(root=root, record_rate=1.0)
        self.driven = Driven(root)
        self.driven.warm_up = Replay(self.settings, self.driven.manager).check

    def record(self, *requests: tuple[str, bool, bytes]) -> None:
        log = RequestLog(self.settings, self.driven.metrics)
        for call, protobuf, body in requests:
            log.offer("movies", call, protobuf, body)
        log.close()


@pytest.fixture
def service(write: Write, root: Path) -> Iterator[Service]:
    write()
    service = Service(root)
    yield service
    service.driven.manager.close()


def without_default(small: SmallBundle) -> None:
    """Removes the default of a feature: requests without it fail from then on."""
    features = dict(small.manifest.features)
    features["city"] = features["city"].model_copy(update={"default": None})
    (small.directory / "manifest.json").write_bytes(
        dump(small.manifest.model_copy(update={"context": features}))
    )


def test_replay_of_a_version_that_serves_the_recorded_requests_passes(
    service: Service, write: Write, caplog: Any
) -> None:
    service.record(
        ("retrieve", True, RETRIEVE),
        ("retrieve", False, b'{"context": {"user": 3}, "k": 2}'),
        ("rank", False, b'{"context": {"user": 5}, "candidate_ids": [1000, 1007]}'),
        ("recommend", False, b'{"context": {"user": 5}, "k": 2}'),
        ("embed", True, pb.EmbedRequest(features={"user": USER}).SerializeToString()),
        ("lookup", True, pb.LookupRequest(feature="user", ids=USER).SerializeToString()),
    )
    write(version=2)
    with caplog.at_level("INFO", "rowcast"):
        service.driven.scan()
    assert service.driven.serving() == 2
    (line,) = [record for record in caplog.records if record.message == "requests_replayed"]
    assert (line.rowcast_fields["requests"], line.rowcast_fields["failed"]) == (6, 0)


def test_replay_holds_neither_what_both_versions_fail_nor_candidates_that_are_gone_against_one(
    service: Service, write: Write
) -> None:
    gone = orjson.dumps({"context": {"user": 5}, "candidate_ids": [1000 + 7 * 39]})
    failing = ("embed", False, b'{"tower": "none", "features": {}}')
    service.record(
        ("retrieve", True, b"\xff"),
        failing,
        ("of a later release", True, b""),
        ("rank", False, gone),
    )
    write(version=2, size=20)
    service.driven.scan()
    assert service.driven.serving() == 2, service.driven.problem(2)


def test_replay_without_a_current_version_rejects_nothing(service: Service, write: Write) -> None:
    service.record(("retrieve", True, RETRIEVE))
    service.driven.manager.suspend("drained")
    without_default(write(version=2))
    service.driven.scan()
    assert service.driven.states()[2] == "available"
