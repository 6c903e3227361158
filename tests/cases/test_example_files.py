"""Files of examples that a recipe names: the forms in which each program writes them, and what is
rejected with the name of the column, the row or the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import ModelSpec, TableFacts
from export.graphs.loading import load_tensorflow
from export.recipe.schema import ExportJob, VerifySection
from export.verify.examples import Examples
from export.verify.recipe_examples import examples_of
from tests.bundles.tfrecords import example, write_as_tensorflow
from tests.units.export.traced_features import dense, embedded

tf = load_tensorflow()
from tensorflow_serving.apis import (  # noqa: E402 - TensorFlow is loaded first
    input_pb2,
    logging_pb2,
    prediction_log_pb2,
    session_service_pb2,
)

PredictionLog = prediction_log_pb2.PredictionLog
Values = Mapping[str, Any]
FEATURES = (
    embedded("user", "users"),
    embedded(
        "seen", "movies", kind="bag", encoding="ragged", combiner="mean", weights="seen_weights"
    ),
    embedded("recent", "movies", kind="sequence", encoding="ragged", length=3),
    embedded("pair", "users", kind="sequence", length=2, ids_dtype="int64"),
    dense("age", "float32", ()),
    dense("grid", "float32", (2, 2)),
    dense("fresh", "int32", ()),
    dense("flags", "int32", (2,)),
)
MODEL = ModelSpec(
    tables={name: TableFacts(name, name, 1 << 40, 2) for name in ("users", "movies")},
    features={spec.name: spec for spec in FEATURES},
    towers={},
)
INPUTS = {
    "user": {"dtype": "string"},
    "seen": {"dtype": "int64", "kind": "ragged"},
    "seen_weights": {"dtype": "float32", "kind": "ragged", "weights_for": "seen"},
    "recent": {"dtype": "int64", "kind": "ragged"},
    "pair": {"dtype": "int64", "shape": [2]},
    "age": {"dtype": "float32"},
    "grid": {"dtype": "float32", "shape": [2, 2]},
    "fresh": {"dtype": "bool"},
    "flags": {"dtype": "bool", "shape": [2]},
    "unread": {"dtype": "float32"},
}
STATED: dict[str, Any] = {
    "user": {"ids": {"kind": "hash"}},
    "recent": {"default": []},
    "age": {"default": 1.0},
    "fresh": {"default": 0},
    "flags": {"default": [0, 0]},
}
GRID = [1.0, 2.0, 3.0, 4.0]
ROW: dict[str, Any] = {
    "user": "ann",
    "seen": [5, 6],
    "seen_weights": [0.5, 2.0],
    "pair": [7, 8],
    "grid": [[1.0, 2.0], [3.0, 4.0]],
}
OTHER = ROW | {"user": "bob", "seen": [], "seen_weights": [], "grid": [[4.0, 3.0], [2.0, 1.0]]}


def read(file: Path, record_format: str | None = None, **stated: Any) -> Examples:
    """Reads examples as an export does; `stated` is of the section `verify`, or of a feature."""
    features = STATED | stated.pop("features", {})
    section = {"examples": file.name, "examples_format": record_format, "count": 9} | stated
    job = ExportJob.model_validate(
        {
            "model": "m",
            "checkpoint": {"path": "ckpt"},
            "code": {"factory": "model.py:build"},
            "inputs": INPUTS,
            "towers": {"ranking": {"role": "ranking"}},
            "output": {"root": "bundles"},
            "features": features,
            "verify": section,
        }
    )
    return examples_of(job, file.parent, MODEL, describe_features(MODEL, job))


# What TensorFlow and TensorFlow Serving write.


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


def logged(*rows: Values, method: str, context: Values | None = None) -> Any:
    log = PredictionLog()
    message = getattr(log, f"{method}_log").request.input
    if context is None:
        message.example_list.examples.extend([example(values) for values in rows])
    else:
        message.example_list_with_context.CopyFrom(elwc(context, *rows))
    return log


def without(values: Values, *names: str) -> dict[str, Any]:
    return {name: part for name, part in values.items() if name not in names}


RAGGED: dict[str, Any] = {
    "user": np.array([b"ann", b"bob"], object),
    "seen": np.array([5, 6], np.int32),
    "seen_1": np.array([0, 2, 2], np.int64),
    "seen_weights": np.array([0.5, 2.0], np.float16),
    "seen_weights_1": np.array([0, 2, 2], np.int64),
    "pair": np.array([[7, 8]] * 2, np.int64),
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
CONTEXT = {"pair": ROW["pair"], "other": [1]}
ROWS = [ROW, OTHER]


class Records(NamedTuple):
    """Messages of one file, and the format that the recipe states."""

    format: str
    messages: list[Any]
    suffix: str = ".tfrecord"


FORMS: dict[str, Records | list[dict[str, Any]]] = {
    "jsonl": ROWS,
    "without-nulls.jsonl": [ROW, without(OTHER, "seen", "seen_weights")],
    "csv": ROWS,
    "parquet": ROWS,
    "Examples": Records("tf-example", [example(row | {"other": [1]}) for row in ROWS]),
    "compressed Examples": Records("tf-example", [*map(example, ROWS)], ".tfrecord.gz"),
    "ELWC": Records("elwc", [elwc(CONTEXT, *(without(row, "pair") for row in ROWS))]),
    "ragged tensors": Records("prediction-log", [predict(RAGGED)]),
    "sparse tensors": Records("prediction-log", [predict(SPARSE)]),
    "tensors that nobody reads": Records(
        "prediction-log", [predict({**RAGGED, "unread": [1, 2], "k": np.int64(3)})]
    ),
    "serialized Examples": Records(
        "prediction-log",
        [predict({"examples": [example(row).SerializeToString() for row in ROWS]})],
    ),
    "classified Examples": Records("prediction-log", [logged(*ROWS, method="classify")]),
    "regressed Examples": Records(
        "prediction-log",
        [logged(*(without(row, "pair") for row in ROWS), method="regress", context=CONTEXT)],
    ),
}


def write(directory: Path, form: str, rows: Records | list[Any]) -> Path:
    """Writes records as TensorFlow does, and rows in the format that is named."""
    if isinstance(rows, Records):
        return write_as_tensorflow(
            directory / f"a{rows.suffix}",
            [
                message if isinstance(message, bytes) else message.SerializeToString()
                for message in rows.messages
            ],
        )
    path = directory / f"a.{form}"
    if form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif form == "csv":
        cells = [["|".join(map(str, np.ravel(value))) for value in row.values()] for row in rows]
        path.write_text("\n".join(map(",".join, [list(rows[0]), *cells])) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_form(directory: Path, form: str, rows: Records | list[Any], **stated: Any) -> Examples:
    record_format = rows.format if isinstance(rows, Records) else None
    return read(write(directory, form, rows), record_format, **stated)


@pytest.mark.parametrize("name", FORMS)
def test_examples_are_the_same_in_every_form(tmp_path: Path, name: str) -> None:
    examples = read_form(tmp_path, name, FORMS[name])
    columns = examples.columns
    assert examples.n == 2
    assert columns["user"].values.tolist() == ["ann", "bob"]
    seen = columns["seen"]
    assert seen.offsets is not None
    assert seen.weights is not None
    assert (seen.values.tolist(), seen.offsets.tolist()) == ([5, 6], [0, 2, 2])
    assert seen.weights.tolist() == [0.5, 2.0]
    assert columns["pair"].values.tolist() == [7, 8] * 2
    assert columns["grid"].values.tolist() == [*GRID, *GRID[::-1]]
    assert not {"age", "recent", "fresh", "flags"} & {*columns}  # they take their defaults


BOOLS: dict[str, tuple[str, list[Any]]] = {
    "numbers": ("jsonl", [1, 0]),
    "truth values": ("jsonl", [True, False]),
    "truth values of Parquet": ("parquet", [True, False]),
    "cells": ("csv", [1, 0]),
}


@pytest.mark.parametrize(("form", "bools"), BOOLS.values(), ids=BOOLS)
def test_bool_is_a_truth_value_or_a_number(tmp_path: Path, form: str, bools: list[Any]) -> None:
    rows = [row | {"fresh": fresh, "flags": bools} for row, fresh in zip(ROWS, bools, strict=True)]
    columns = read_form(tmp_path, form, rows).columns
    assert columns["fresh"].values.tolist() == [1, 0]
    assert columns["flags"].values.tolist() == [1, 0, 1, 0]


def test_every_format_of_records_has_a_form() -> None:
    (formats, _) = get_args(VerifySection.model_fields["examples_format"].annotation)
    named = {rows.format for rows in FORMS.values() if isinstance(rows, Records)}
    assert named == {*get_args(formats)}


def test_no_more_examples_are_read_than_are_wanted(tmp_path: Path) -> None:
    records = Records("prediction-log", [predict(RAGGED), predict(RAGGED), b"no record"])
    examples = Records("tf-example", [*map(example, [ROW, OTHER, ROW]), b"no record"])
    for form, rows in (("", records), ("", examples), ("jsonl", [*ROWS, ROW, {"no": "example"}])):
        assert read_form(tmp_path, form, rows, count=3).columns["user"].values.tolist() == [
            *("ann", "bob", "ann")
        ]


def regressed(method: str, values: list[float]) -> Any:
    log = logged(*ROWS, method=method)
    for value in values:
        if method == "regress":
            log.regress_log.response.result.regressions.add(value=value)
        else:
            classes = log.classify_log.response.result.classifications.add().classes
            classes.add(label="no", score=1 - value)
            classes.add(label="yes", score=value)
    return log


SCORES = {"score": np.array([[0.25], [0.75]], np.float32)}


@pytest.mark.parametrize(
    ("form", "column", "rows"),
    [
        ("jsonl", "score", [row | {"score": n + 0.25} for n, row in enumerate(ROWS)]),
        ("", "response.score", Records("prediction-log", [predict(RAGGED, SCORES)])),
        (
            "",
            "response.value",
            Records("prediction-log", [regressed("regress", [0.25, 0.75])]),
        ),
        ("", "response.yes", Records("prediction-log", [regressed("classify", [0.25, 0.75])])),
    ],
)
def test_recorded_outputs_are_columns_or_responses(
    tmp_path: Path, form: str, column: str, rows: Any
) -> None:
    examples = read_form(tmp_path, form, rows, expected={"ranking.head": column})
    recorded = np.ravel(examples.recorded["ranking.head"]).tolist()
    assert recorded == ([0.25, 1.25] if form else [0.25, 0.75])


@pytest.mark.parametrize("form", ["jsonl", "records"])
def test_labels_are_a_column_of_zeros_and_ones(tmp_path: Path, form: str) -> None:
    rows: Any = [row | {"click": [click]} for click, row in enumerate(ROWS)]
    if form == "records":
        rows = Records("tf-example", [*map(example, rows)])
    else:
        rows = [row | {"click": click} for click, row in enumerate(ROWS)]
    examples = read_form(tmp_path, form, rows, labels={"head": "click"})
    assert examples.labels["head"].tolist() == [0, 1]
    assert "click" not in examples.columns


def test_record_that_lacks_a_value_takes_the_default(tmp_path: Path) -> None:
    aged = {**RAGGED, "age": np.array([30, 40], np.float32)}
    lacking = without(RAGGED, *(name for name in RAGGED if name.startswith("seen")))
    weighted = {"seen": {"default": {"ids": [9], "weights": [0.25]}}}
    records = Records("prediction-log", [predict(aged), predict(lacking)])
    columns = read_form(tmp_path, "", records, features=weighted).columns
    assert columns["age"].values.tolist() == [30, 40, 1, 1]
    seen = columns["seen"]
    assert seen.weights is not None
    assert seen.values.tolist() == [5, 6, 9, 9]
    assert seen.weights.tolist() == [0.5, 2.0, 0.25, 0.25]
    unweighted = without(RAGGED, "seen_weights", "seen_weights_1")
    read_unweighted = read_form(tmp_path, "", Records("prediction-log", [predict(unweighted)]))
    assert read_unweighted.columns["seen"].weights is None
    unweighted_rows = [example(ROW), example(without(ROW, "seen_weights"))]
    weights = (
        read_form(tmp_path, "", Records("tf-example", unweighted_rows)).columns["seen"].weights
    )
    assert weights is not None
    assert weights.tolist() == [0.5, 2.0, 1.0, 1.0]
    # TensorFlow writes an empty list of an example by leaving it out.
    rows = [ROW, without(ROW, "seen", "seen_weights")]
    offsets = read_form(tmp_path, "", Records("tf-example", [*map(example, rows)])).columns["seen"]
    assert offsets.offsets is not None
    assert offsets.offsets.tolist() == [0, 2, 2]


SESSION = PredictionLog(
    session_run_log=prediction_log_pb2.SessionRunLog(
        request=session_service_pb2.SessionRunRequest()
    )
)
RECORDS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    # the format, the second record, words of the message
    "no message": ("tf-example", b"\xff\xff", ("is no tf.train.Example",)),
    "an Example for logs": ("prediction-log", example(ROW), ("no request",)),
    "ELWC with a feature twice": ("elwc", elwc({"user": ["ann"]}, ROW), ("'user'", "context")),
    "a session": ("prediction-log", SESSION, ("session_run_log",)),
    "a missing tensor": ("prediction-log", predict(without(RAGGED, "user")), ("'user'", "default")),
    "a missing list": (
        "prediction-log",
        predict(without(RAGGED, "seen", "seen_1")),
        ("no 'seen'",),
    ),
    "an unknown tensor": ("prediction-log", predict({**RAGGED, "usr": [1, 2]}), ("usr", "age")),
    "another dtype": (
        "prediction-log",
        predict({**RAGGED, "pair": np.array([[b"a", b"b"]] * 2, object)}),
        ("inputs.pair", "string", "int64"),
    ),
    "floats for ids": ("tf-example", example(ROW | {"seen": [0.5, 1.5]}), ("'seen'", "float")),
    "another size": ("tf-example", example(ROW | {"grid": [1.0]}), ("'grid'", "1 values")),
    "splits": (
        "prediction-log",
        predict({**RAGGED, "seen_1": [0, 3, 2]}),
        ("seen_1", "offsets [0 3 2]"),
    ),
    "fewer weights": (
        "tf-example",
        example(ROW | {"seen_weights": [1.0]}),
        ("2 values", "1 weights"),
    ),
    "no UTF-8": ("tf-example", example(ROW | {"user": b"\xff"}), ("user", "UTF")),
}


@pytest.mark.parametrize("name", RECORDS)
def test_record_that_does_not_fit_is_rejected_with_its_number(tmp_path: Path, name: str) -> None:
    record_format, record, words = RECORDS[name]
    sound = {"tf-example": example(ROW), "elwc": elwc({}, ROW)}
    records = Records(record_format, [sound.get(record_format, predict(RAGGED)), record])
    with pytest.raises(UsageError) as rejection:
        read_form(tmp_path, "", records)
    for part in ("verify.examples", "a.tfrecord", "record 2", *words):
        assert part in str(rejection.value)


def test_damaged_records_are_rejected_with_their_number(tmp_path: Path) -> None:
    path = write(tmp_path, "", Records("tf-example", [example(ROW), example(ROW)]))
    data = path.read_bytes()
    flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    for damaged, words in ((data[:-1], "record 2"), (flipped, "checksum"), (b"", "no examples")):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=words):
            read(path, "tf-example")


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)


FILES: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    # the file, its text, words of the message
    "a missing column": ("e.jsonl", '{"user": "ann"}', ("'seen'", "default")),
    "no JSON": ("e.jsonl", f"{lines(ROW)}\n\n{{'user': 1}}", ("line 3", "no JSON")),
    "a null": ("e.jsonl", lines(ROW | {"user": None}), ("'user', row 1 is empty",)),
    "a list of another length": (
        "e.jsonl",
        lines(ROW, ROW | {"pair": [1]}),
        ("row 2", "inputs.pair.pad"),
    ),
    "no Parquet": ("e.parquet", "no parquet", ("e.parquet",)),
    "no file": ("e.parquet", None, ("does not exist",)),
}


@pytest.mark.parametrize("name", FILES)
def test_file_that_does_not_fit_is_rejected(tmp_path: Path, name: str) -> None:
    file, text, words = FILES[name]
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(UsageError) as rejection:
        read(tmp_path / file)
    assert all(part in str(rejection.value) for part in words), str(rejection.value)


FAR = [row | {"click": 0, "score": 0.5, "far": float("inf")} for row in ROWS]
LOGS = Records("prediction-log", [predict(RAGGED, SCORES), predict(RAGGED)])


@pytest.mark.parametrize(
    ("key", "column", "rows", "words"),
    [
        ("labels", "bought", FAR, ("'bought'", "user")),
        ("labels", "score", FAR, ("'score'", "0.5", "0 or 1")),
        ("labels", "user", FAR, ("'user'", "'ann'")),
        ("expected", "bought", FAR, ("'bought'", "user")),
        ("expected", "user", FAR, ("'user'", "'ann'")),
        ("expected", "far", FAR, ("'far'", "inf", "row 1")),
        ("expected", "response.score", LOGS, ("record 2", "'score'")),
        ("labels", "click", Records("tf-example", [example(ROW)]), ("a.tfrecord", "'click'")),
    ],
)
def test_column_that_holds_no_labels_or_outputs_is_rejected(
    tmp_path: Path, key: str, column: str, rows: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as rejection:
        read_form(tmp_path, "jsonl", rows, **{key: {"head": column}})
    assert all(part in str(rejection.value) for part in ("verify.", *words)), str(rejection.value)


def test_response_with_another_number_of_values_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 values of 'score' for 2 rows"):
        read_form(tmp_path, "", Records("prediction-log", [predict(RAGGED, {"score": [1.0]})]))
