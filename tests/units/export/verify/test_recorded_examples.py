"""Examples in TFRecord files that TensorFlow writes: its Examples, and records of TensorFlow
Serving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import UsageError
from export.graphs.loading import load_tensorflow
from export.recipe.schema import VerifySection
from export.verify.examples import Examples, examples_of_table
from export.verify.recorded_examples import (
    NEIGHBORS,
    read_record_table,
    sent_inputs,
    unread_tensors,
)
from tests.units.export.verify.test_examples import MODEL, PAGES

tf = load_tensorflow()
from tensorflow_serving.apis import (  # noqa: E402 - TensorFlow is loaded first
    input_pb2,
    logging_pb2,
    prediction_log_pb2,
    session_service_pb2,
)

PredictionLog = prediction_log_pb2.PredictionLog
Values = Mapping[str, Any]
GRID = [1.0, 2.0, 3.0, 4.0]
ROW: dict[str, list[Any]] = {
    "user": [b"ann"],
    "seen": [5, 6],
    "seen_weights": [0.5, 2.0],
    "pair": [0.5, 1.5],
    "grid": GRID,
}
ROWS = [ROW, {**ROW, "user": [b"bob"], "seen": [], "seen_weights": [], "grid": [*GRID[::-1]]}]


def feature(values: list[Any]) -> Any:
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(values: Values) -> Any:
    features = {name: feature(part) for name, part in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features))


def without(values: Values, *names: str) -> dict[str, Any]:
    return {name: part for name, part in values.items() if name not in names}


def elwc(context: Values, *examples: Values) -> Any:
    return input_pb2.ExampleListWithContext(
        context=example(context), examples=[example(values) for values in examples]
    )


def predict(tensors: Values, outputs: Values | None = None) -> Any:
    log = PredictionLog(log_metadata=logging_pb2.LogMetadata(timestamp_secs=7))
    log.predict_log.request.model_spec.name = "of another server"
    for name, values in tensors.items():
        log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    for name, values in (outputs or {}).items():
        log.predict_log.response.outputs[name].CopyFrom(tf.make_tensor_proto(values))
    return log


RAGGED: dict[str, Any] = {
    "user": np.array([b"ann", b"bob"], object),
    "seen": np.array([5, 6], np.int32),
    "seen_1": np.array([0, 2, 2], np.int64),
    "seen_weights": np.array([0.5, 2.0], np.float16),
    "seen_weights_1": np.array([0, 2, 2], np.int64),
    "pair": np.array([[0.5, 1.5]] * 2, np.float64),
    "grid": np.array([*GRID, *GRID[::-1]], np.float32).reshape(2, 2, 2),
}
SPARSE = {
    **without(RAGGED, "seen", "seen_1", "seen_weights", "seen_weights_1"),
    "seen": np.array([[0, 0], [0, 1]], np.int64),
    "seen_1": np.array([5, 6], np.int64),
    "seen_2": np.array([2, 3], np.int64),
    "seen_weights": np.array([[0, 0], [0, 1]], np.int64),
    "seen_weights_1": np.array([0.5, 2.0], np.float32),
    "seen_weights_2": np.array([2, 3], np.int64),
}
SERIALIZED = {"examples": [example(values).SerializeToString() for values in ROWS]}


def logged_examples(*rows: Values, method: str = "classify", context: Values | None = None) -> Any:
    log = PredictionLog()
    message = getattr(log, f"{method}_log").request.input
    if context is None:
        message.example_list.examples.extend([example(values) for values in rows])
    else:
        message.example_list_with_context.CopyFrom(elwc(context, *rows))
    return log


def serialized(record: Any) -> bytes:
    if isinstance(record, bytes):
        return record
    return bytes(record.SerializeToString())


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes messages, or bytes, as TensorFlow writes records."""

    def write(*records: Any, name: str = "a.tfrecord") -> Path:
        path = tmp_path / name
        compression = {".gz": "GZIP"}.get(path.suffix, "")
        options = tf.io.TFRecordOptions(compression)
        with tf.io.TFRecordWriter(str(path), options) as writer:
            for record in records:
                writer.write(serialized(record))
        return path

    return write


def read(
    path: Path,
    record_format: Any,
    count: int = 9,
    labels: Mapping[str, str] | None = None,
    recorded: Mapping[str, str] | None = None,
    entries: Mapping[str, Any] = PAGES,
) -> Examples:
    labels = labels or {}
    recorded = recorded or {}
    table = read_record_table(
        [path],
        record_format,
        sent_inputs(MODEL, entries, MODEL.inputs),
        [*labels.values(), *recorded.values()],
        count,
        [NEIGHBORS, *unread_tensors(["unread"])],
    )
    return examples_of_table(table, path, MODEL, entries, labels, recorded)


def assert_rows(examples: Examples) -> None:
    """Asserts that examples are ROWS."""
    columns = examples.columns
    assert examples.n == 2
    assert columns["user"].values.tolist() == ["ann", "bob"]
    assert columns["user"].offsets is None
    seen = columns["seen"]
    assert seen.offsets is not None
    assert seen.weights is not None
    assert (seen.values.tolist(), seen.offsets.tolist()) == ([5, 6], [0, 2, 2])
    assert seen.weights.tolist() == [0.5, 2.0]
    assert columns["pair"].values.tolist() == [0.5, 1.5] * 2
    assert columns["grid"].values.tolist() == [*GRID, *GRID[::-1]]
    assert "age" not in columns


CONTEXT = {"pair": ROW["pair"], "other": [1]}
FORMS: dict[str, tuple[str, list[Any]]] = {
    "Examples": ("tf-example", [example({**values, "other": [1]}) for values in ROWS]),
    "ELWC": ("elwc", [elwc(CONTEXT, *(without(values, "pair") for values in ROWS))]),
    "ragged tensors": ("prediction-log", [predict(RAGGED)]),
    "sparse tensors": ("prediction-log", [predict(SPARSE)]),
    "tensors nobody reads": (
        "prediction-log",
        [predict({**RAGGED, "unread": [1, 2], "k": np.int64(3)})],
    ),
    "a request for each": (
        "prediction-log",
        [
            predict({**{name: array[:1] for name, array in RAGGED.items()}, **part})
            for part in (
                {"seen": [5, 6], "seen_1": [0, 2], "seen_weights": [0.5, 2.0]}
                | {"seen_weights_1": [0, 2]},
                {"user": [b"bob"], "grid": RAGGED["grid"][1:], "seen": np.array([], np.int64)}
                | {
                    "seen_1": [0, 0],
                    "seen_weights": np.array([], np.float32),
                    "seen_weights_1": [0, 0],
                },
            )
        ],
    ),
    "serialized Examples": ("prediction-log", [predict(SERIALIZED)]),
    "classified Examples": ("prediction-log", [logged_examples(*ROWS)]),
    "regressed Examples": (
        "prediction-log",
        [
            logged_examples(
                *(without(values, "pair") for values in ROWS), method="regress", context=CONTEXT
            )
        ],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_examples_are_read_in_all_forms(write: Write, name: str) -> None:
    record_format, records = FORMS[name]
    assert_rows(read(write(*records), record_format))


def test_compressed_files_are_read(write: Write) -> None:
    path = write(*FORMS["Examples"][1], name="a.tfrecord.gz")
    assert_rows(read(path, "tf-example"))


def test_no_more_examples_are_read_than_are_wanted(write: Write) -> None:
    path = write(predict(RAGGED), predict(RAGGED), b"no record")
    assert read(path, "prediction-log", 3).columns["user"].values.tolist() == ["ann", "bob", "ann"]


def test_labels_and_recorded_responses_are_columns(write: Write) -> None:
    clicked = [example({**ROW, "click": [click]}) for click in (0, 1)]
    labelled = read(write(*clicked), "tf-example", labels={"head": "click"})
    assert labelled.labels["head"].tolist() == [0, 1]
    expected = {"ranking.head": "response.score"}
    path = write(predict(RAGGED, {"score": np.array([[0.5], [2.0]], np.float32)}))
    recorded = read(path, "prediction-log", recorded=expected).recorded["ranking.head"]
    assert recorded.tolist() == [[0.5], [2.0]]
    log = logged_examples(*ROWS, method="regress")
    for value in (0.25, 0.75):
        log.regress_log.response.result.regressions.add(value=value)
    read_log = read(write(log), "prediction-log", recorded={"head": "response.value"})
    assert read_log.recorded["head"].tolist() == [0.25, 0.75]
    log = logged_examples(*ROWS)
    for value in (0.25, 0.75):
        classes = log.classify_log.response.result.classifications.add().classes
        classes.add(label="no", score=1 - value)
        classes.add(label="yes", score=value)
    read_log = read(write(log), "prediction-log", recorded={"head": "response.yes"})
    assert read_log.recorded["head"].tolist() == [0.25, 0.75]


def test_input_with_a_default_takes_it_where_a_request_lacks_it(write: Write) -> None:
    with_age = {**RAGGED, "age": np.array([30, 40], np.float32)}
    examples = read(write(predict(with_age), predict(RAGGED)), "prediction-log")
    assert examples.columns["age"].values.tolist() == [30, 40, 1, 1]
    rows = [{**ROW, "age": [30.0]}, ROW]
    examples = read(write(*map(example, rows)), "tf-example")
    assert examples.columns["age"].values.tolist() == [30, 1]


def test_default_of_a_list_has_weights(write: Write) -> None:
    default = {"ids": [7], "weights": [0.25]}
    seen = PAGES["seen"].model_copy(update={"default": default})
    lacking = without(RAGGED, *(name for name in RAGGED if name.startswith("seen")))
    path = write(predict(RAGGED), predict(lacking))
    column = read(path, "prediction-log", entries={**PAGES, "seen": seen}).columns["seen"]
    assert column.weights is not None
    assert column.values.tolist() == [5, 6, 7, 7]
    assert column.weights.tolist() == [0.5, 2.0, 0.25, 0.25]
    without_weights = without(RAGGED, "seen_weights", "seen_weights_1")
    weights = read(write(predict(without_weights)), "prediction-log").columns["seen"].weights
    assert weights is not None
    assert weights.tolist() == [1.0, 1.0]


def test_list_that_an_example_of_training_lacks_is_empty(write: Write) -> None:
    rows = [ROW, without(ROW, "seen", "seen_weights")]
    seen = read(write(*map(example, rows)), "tf-example").columns["seen"]
    assert seen.offsets is not None
    assert seen.offsets.tolist() == [0, 2, 2]


SESSION = PredictionLog(
    session_run_log=prediction_log_pb2.SessionRunLog(
        request=session_service_pb2.SessionRunRequest()
    )
)
TWO = {**RAGGED, "pair": RAGGED["pair"][:1]}
REJECTED: dict[str, tuple[str, Any, str]] = {
    "no message": ("tf-example", b"\xff\xff", "record 2 is no Example"),
    "ELWC as Example": (
        "tf-example",
        elwc(CONTEXT, ROW),
        "record 2 is no Example: ",
    ),
    "log as Example": (
        "tf-example",
        predict(RAGGED),
        "record 2 is no tf.train.Example: it has other fields",
    ),
    "Example as ELWC": ("elwc", example(ROW), "record 2 "),
    "ELWC as PredictionLog": ("prediction-log", elwc(CONTEXT, ROW), "record 2 "),
    "Example as PredictionLog": ("prediction-log", example(ROW), "record 2 holds no request"),
    "ELWC without examples": ("elwc", elwc(ROW), "record 2 has no examples"),
    "ELWC with a feature twice": (
        "elwc",
        elwc({"user": [b"ann"]}, ROW),
        "record 2: the context and an example have feature 'user'",
    ),
    "session": ("prediction-log", SESSION, "record 2 holds session_run_log; predict_log, class"),
    "no inputs": ("prediction-log", predict({}), "record 2 holds a predict request without inputs"),
    "missing": (
        "prediction-log",
        predict(without(RAGGED, "user")),
        "record 2 has no 'user', which has no default; it has grid, pair, ",
    ),
    "missing list": ("prediction-log", predict(without(RAGGED, "seen", "seen_1")), "no 'seen'"),
    "missing feature": ("tf-example", example(without(ROW, "grid")), "record 2 has no 'grid'"),
    "unknown": (
        "prediction-log",
        predict({**RAGGED, "usr": [1, 2]}),
        "record 2: no input of the model is called 'usr'; it takes age, grid, pair",
    ),
    "dtype": (
        "prediction-log",
        predict({**RAGGED, "user": np.array([1, 2], np.int64)}),
        "record 2, 'user' is an integer; string was expected",
    ),
    "booleans": (
        "prediction-log",
        predict({**RAGGED, "age": [True, False]}),
        "record 2, 'age' is a boolean; float32 was expected",
    ),
    "dtype of a feature": (
        "tf-example",
        example({**ROW, "seen": [0.5, 1.5]}),
        "record 2, 'seen' is a float; int64 was expected",
    ),
    "rows": ("prediction-log", predict(TWO), "different numbers of rows: 'grid' 2, 'pair' 1, "),
    "size": ("tf-example", example({**ROW, "grid": [1.0]}), "'grid' has 1 values in an example; 4"),
    "splits": (
        "prediction-log",
        predict({**RAGGED, "seen_1": [0, 3, 2]}),
        "record 2, input 'seen': flat values and row splits",
    ),
    "weights": ("tf-example", example({**ROW, "seen_weights": [1.0]}), "2 values and 1 weights"),
    "weights alone": (
        "tf-example",
        example(without(ROW, "seen")),
        "record 2 has 'seen_weights', and no 'seen' that it weights",
    ),
    "scalar": ("prediction-log", predict({**RAGGED, "user": b"ann"}), "'user' is a scalar"),
    "not UTF-8": ("tf-example", example({**ROW, "user": [b"\xff"]}), "'user': b'\\xff' is no UTF"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_other_records_are_rejected_with_their_number(write: Write, name: str) -> None:
    record_format, record, message = REJECTED[name]
    sound = {"tf-example": example(ROW), "elwc": elwc({}, ROW)}
    path = write(sound.get(record_format, predict(RAGGED)), record)
    with pytest.raises(UsageError) as rejection:
        read(path, record_format)
    assert str(rejection.value).startswith("verify.examples: a.tfrecord, record 2")
    assert message in str(rejection.value)


def test_damaged_files_are_rejected_with_the_record(write: Write) -> None:
    path = write(example(ROW), example(ROW))
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(UsageError, match="record 2 is cut short; copy the file again"):
        read(path, "tf-example")
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(UsageError, match="record 2 differs from its checksum"):
        read(path, "tf-example")
    with pytest.raises(UsageError, match="no records"):
        read(write(), "tf-example")


def test_response_that_was_not_recorded_is_rejected(write: Write) -> None:
    path = write(predict(RAGGED, {"score": [1.0, 2.0]}), predict(RAGGED))
    with pytest.raises(UsageError, match="record 2 has no response with output 'score'"):
        read(path, "prediction-log", recorded={"head": "response.score"})
    path = write(predict(RAGGED, {"score": [1.0]}))
    with pytest.raises(UsageError, match="has 1 values of 'score' for 2 rows"):
        read(path, "prediction-log")
    with pytest.raises(UsageError, match="record 1 has no 'click', which the recipe names"):
        read(write(example(ROW)), "tf-example", labels={"head": "click"})


def test_records_need_their_format() -> None:
    with pytest.raises(ValueError, match="state what their records are as 'examples_format'"):
        VerifySection(examples="a.tfrecord.gz")
    with pytest.raises(ValueError, match="'examples_format' requires 'examples'"):
        VerifySection(examples_format="elwc")
    assert VerifySection(examples="a-*", examples_format="elwc").examples_format == "elwc"
