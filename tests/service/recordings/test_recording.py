"""What is recorded of one version and asked of the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from bundle.manifest import dump
from service.generations.generation import Generation
from service.generations.pauses import Pauses
from service.recordings.files import read_newest
from service.recordings.recorder import BODY_BYTES_MAX, Recorder
from service.recordings.recording import NAME, Recording
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.running import Running, version_of
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
USER = pb.Column(int64s=(5).to_bytes(8, "little"))
RETRIEVE = pb.RetrieveRequest(k=5, features={"user": USER}).SerializeToString()


class Recorded:
    """A service that records what it is told was answered."""

    def __init__(self, service: Running) -> None:
        self.service = service
        self.recording = Recording(service.settings, service.switch, "0")
        warm_up = service.loader.warm_up

        def both(generation: Generation, pause: Pauses) -> None:
            warm_up(generation, pause)
            self.recording.try_out(generation, pause)

        object.__setattr__(service.loader, "warm_up", both)

    def answered(self, *bodies: tuple[str, bool, bytes]) -> None:
        assert self.recording.record is not None
        for call, protobuf, body in bodies:
            self.recording.record("movies", call, protobuf, body)
        self.recording.close()


@pytest.fixture
def recorded(write: Write, run: Callable[..., Running]) -> Recorded:
    write()
    return Recorded(run(record_rate=1.0))


def without_default(small: SmallBundle) -> None:
    """Takes the default of a feature away: callers who leave it out are refused from then on."""
    features = dict(small.manifest.features)
    city = features["city"]
    features["city"] = city.model_copy(update={"default": None})
    (small.directory / "manifest.json").write_bytes(dump(small.manifest.model_copy(update={"features": features})))


def test_version_that_answers_what_was_recorded_is_served(recorded: Recorded, write: Write, caplog: Any) -> None:
    json = orjson.dumps({"features": {"user": 3}, "k": 2})
    ranked = orjson.dumps({"context": {"user": 5}, "candidates": [1000, 1007]})
    looked_up = pb.LookupRequest(feature="user", ids=USER).SerializeToString()
    recorded.answered(
        ("retrieve", True, RETRIEVE), ("retrieve", False, json), ("rank", False, ranked), ("lookup", True, looked_up)
    )
    write(version=2)
    with caplog.at_level("INFO", "rowcast"):
        recorded.service.scan()
    assert version_of(recorded.service) == 2
    (line,) = [each for each in caplog.records if each.message == "recordings_replayed"]
    assert (line.rowcast_fields["calls"], line.rowcast_fields["failed"]) == (4, 0)


def test_version_that_fails_what_the_one_before_answers_is_refused(recorded: Recorded, write: Write) -> None:
    recorded.answered(("retrieve", True, RETRIEVE))
    without_default(write(version=2))
    recorded.service.scan()
    assert version_of(recorded.service) == 1
    assert "1 of 1 recorded calls that version 1 answers fail; a retrieve: FeatureError" in recorded.service.problem(2)


def test_call_that_the_version_before_fails_too_is_held_against_nobody(recorded: Recorded, write: Write) -> None:
    recorded.answered(("retrieve", True, b"\xff"), ("embed", False, b'{"tower": "none", "features": {}}'))
    write(version=2)
    recorded.service.scan()
    assert version_of(recorded.service) == 2


def test_candidates_that_are_gone_are_data(recorded: Recorded, write: Write) -> None:
    ids = orjson.dumps({"context": {"user": 5}, "candidates": [1000 + 7 * 39]})
    recorded.answered(("rank", False, ids))
    write(version=2, size=20)
    recorded.service.scan()
    assert recorded.service.states() == {2: "available", 1: "kept"}, recorded.service.problem(2)
    assert version_of(recorded.service) == 2


def test_drained_service_takes_new_versions_and_holds_nothing_against_them(recorded: Recorded, write: Write) -> None:
    recorded.answered(("retrieve", True, RETRIEVE))
    recorded.service.switch.suspend("drained")
    without_default(write(version=2))
    recorded.service.scan()
    assert recorded.service.states()[2] == "available"


def test_service_that_records_nothing_keeps_and_asks_nothing(
    write: Write, run: Callable[..., Running], root: Path
) -> None:
    write()
    service = run()
    recording = Recording(service.settings, service.switch, "0")
    assert recording.record is None
    current = service.switch.current("movies")
    assert current is not None
    recording.try_out(current, Pauses())
    recording.close()
    assert not (root / NAME).exists()


def test_recorder_keeps_a_sample_of_what_it_is_offered(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0.5, 1 << 20, "0")
    for _ in range(40):
        recorder.offer("m", "rank", False, b"{}")
    recorder.offer("m", "rank", False, b" " * (BODY_BYTES_MAX + 1))
    recorder.close()
    assert 0 < len(read_newest(tmp_path / "m", 100, 1 << 20)) < 40


def test_recorder_whose_place_cannot_be_written_tells_once_and_goes_on(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "m").write_text("no directory")
    recorder = Recorder(tmp_path, 1.0, 1 << 20, "0")
    for _ in range(3):
        recorder.offer("m", "rank", False, b"{}")
    recorder.offer("n", "rank", False, b"{}")
    recorder.close()
    assert [each.message for each in caplog.records] == ["recordings_unwritable"]
    assert len(read_newest(tmp_path / "n", 10, 1 << 20)) == 1
    assert recorder.outcomes == {"written": 1, "left_out": 0, "failed": 3}
