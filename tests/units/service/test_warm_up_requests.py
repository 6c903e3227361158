"""Requests of TensorFlow Serving's API: of a bundle for its warm-up, and those that the service
recorded, which are replayed to a new version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.manifest import File, WarmUpRequests, dump
from service.protocols.tensorflow_serving.protocol import PREDICTION_SERVICE
from service.request_log.record import read_newest, record_directory
from tensors.stubs import tensorflow_serving_pb2 as pb
from tests.bundles.small import SmallBundle
from tests.bundles.tfrecords import example, record
from tests.cases.raw_requests import tensor
from tests.e2e.process import WAIT_S, until
from tests.units.service.running import RunningService

Write = Callable[..., SmallBundle]


def predict_log(signature: str, spec: dict[str, Any] | None = None, **inputs: Any) -> bytes:
    spec_message = pb.ModelSpec(signature_name=signature, **(spec or {}))
    request = pb.PredictRequest(model_spec=spec_message, inputs=inputs)
    log = pb.PredictionLog(predict_log=pb.PredictLog(request=request))
    return bytes(log.SerializeToString())


USERS = tensor(pb.DT_INT64, 3, int64_val=[5, 7, 9])
QUERY = predict_log("query", user=USERS)
RETRIEVE = predict_log("retrieve", {"name": "of another server", "version_label": "a"}, user=USERS)
CONTEXT = example({"user": 5, "other": 1.0}, pb)
CANDIDATES = [
    example({"movie": 1000, "genres": "comedy", "year": 0.5}, pb),
    example({"movie": 1007, "genres": ["drama", "horror"], "year": 0.25}, pb),
]
ELWC = pb.ExampleListWithContext(examples=CANDIDATES, context=CONTEXT)
EXAMPLES = pb.ExamplesRequest(input=pb.Input(example_list_with_context=ELWC))
CLASSIFY = pb.PredictionLog(classify_log=pb.ClassifyLog(request=EXAMPLES)).SerializeToString()
REGRESS = pb.PredictionLog(regress_log=pb.RegressLog(request=EXAMPLES)).SerializeToString()
UNKNOWN_MOVIE = [example({"movie": 5, "genres": "drama", "year": 0.5}, pb)]


def with_warm_up(small: SmallBundle, data: bytes, size: int) -> None:
    """Adds requests for the warm-up to a bundle."""
    (small.directory / paths.WARM_UP_REQUESTS).parent.mkdir()
    (small.directory / paths.WARM_UP_REQUESTS).write_bytes(data)
    file = File(path=paths.WARM_UP_REQUESTS, bytes=len(data), crc32c=crc32c(data))
    entry = WarmUpRequests(file=paths.WARM_UP_REQUESTS, size=size)
    update = {"warm_up": entry, "files": (*small.manifest.files, file)}
    (small.directory / "manifest.json").write_bytes(dump(small.manifest.model_copy(update=update)))


NEVER_S = 3600.0
"""The interval of scans in tests that add requests to a bundle which a scan could load before."""


def problem_of(service: RunningService, write: Write, data: bytes, size: int) -> str:
    """Returns why a version with these requests is not served."""
    version = max(service.states(), default=0) + 1
    with_warm_up(write(version=version), data, size)
    service.scan()
    assert service.states()[version] == "failed"
    return service.problem(version)


def test_requests_of_the_bundle_are_computed_before_a_version_is_served(
    write: Write, serve: Callable[..., RunningService], caplog: Any
) -> None:
    records = [QUERY, RETRIEVE, CLASSIFY, REGRESS]
    with_warm_up(write(parts=True), b"".join(map(record, records)), len(records))
    with caplog.at_level("INFO", "rowcast"):
        service = serve()
    assert service.states() == {1: "available"}, service.problem(1)
    (line,) = [line for line in caplog.records if line.message == "warm_up_requests_computed"]
    assert (line.rowcast_fields["requests"], line.rowcast_fields["records"]) == (4, 4)


def wrong(**inputs: Any) -> bytes:
    return record(predict_log("query", **inputs))


FLIPPED = bytearray(record(QUERY))
FLIPPED[20] ^= 1
OTHER_LOG = pb.PredictionLog(session_run_log=pb.OtherLog()).SerializeToString()
REJECTING = pb.PredictionLog(
    regress_log=pb.RegressLog(
        request=pb.ExamplesRequest(
            input=pb.Input(
                example_list_with_context=pb.ExampleListWithContext(
                    examples=UNKNOWN_MOVIE, context=CONTEXT
                )
            )
        )
    )
).SerializeToString()
DAMAGED: dict[str, tuple[bytes, int, str]] = {
    "truncated": (record(QUERY)[:-1], 1, "record 1 is cut short"),
    "other bytes": (bytes(FLIPPED), 1, "record 1 differs from its checksum"),
    "elwc": (record(ELWC.SerializeToString()), 1, "holds a classify_log without examples"),
    "other log": (record(OTHER_LOG), 1, "holds a session_run_log; predict_log, classify_log"),
    "signature": (
        record(QUERY) + record(predict_log("serving", user=USERS)),
        2,
        f"record 2 of {paths.WARM_UP_REQUESTS}: the predict request fails: model 'movies'",
    ),
    "dtype": (
        wrong(user=tensor(pb.DT_FLOAT, 1, float_val=[0.5])),
        1,
        "inputs.user: float32; int64 was expected",
    ),
    "rejected": (record(REJECTING), 1, "the regress request fails: feature 'movie'"),
    "fewer": (record(QUERY), 2, "has 1 records; the manifest has 2"),
}


def test_damaged_and_foreign_requests_reject_the_version(
    write: Write, serve: Callable[..., RunningService]
) -> None:
    service = serve(poll_interval_s=NEVER_S)
    for name, (data, size, message) in DAMAGED.items():
        assert message in problem_of(service, write, data, size), name


def without_default(small: SmallBundle, name: str = "city") -> None:
    """Removes the default of a feature: requests without it fail from then on."""
    features = dict(small.manifest.features)
    features[name] = features[name].model_copy(update={"default": None})
    (small.directory / "manifest.json").write_bytes(
        dump(small.manifest.model_copy(update={"context": features, "features": features}))
    )


def test_requests_of_the_protocol_are_recorded_and_replayed(
    write: Write, serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(protocols=("tensorflow-serving",), record_rate=1.0, poll_interval_s=NEVER_S)
    predict = pb.PredictionLog.FromString(QUERY).predict_log.request
    predict.model_spec.name = "movies"
    regress = pb.ExamplesRequest(model_spec=pb.ModelSpec(name="movies"), input=EXAMPLES.input)
    with grpc.insecure_channel(service.grpc) as channel:
        for method, message in (("Predict", predict), ("Regress", regress)):
            send = channel.unary_unary(f"/{PREDICTION_SERVICE}/{method}")
            send(message.SerializeToString(), timeout=WAIT_S)
    directory = record_directory(service.settings) / "movies"
    until(lambda: len(read_newest(directory, 9)) == 2)
    without_default(write(version=2))
    service.scan()
    assert service.problem(2).startswith(
        "1 of 2 recorded requests that version 1 served fail; the first to fail is a embed"
    )
