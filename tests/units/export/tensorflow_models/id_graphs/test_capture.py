"""Ids that a model computes: as data they make the original's rows, in a service and in a
self-contained SavedModel.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from export.errors import NotConvertible, UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import DenseSpec, FeatureSpec
from export.graphs.loading import tf
from export.recipe.schema import ExportJob, FeatureSection
from export.tensorflow_models.model.tracing import trace_towers
from export.verify.examples import Examples
from tests.units.export.parity_checks import check_parity, check_self_contained
from tests.units.export.traced_features import dense
from tests.units.export.traced_models import MODELS, TracedCheckpoint, save_and_trace, tower_recipe

TITLES = [
    "Star Wars (1977)",
    "The  of\tthe\u00a0star",
    "DON'T don't",
    "\u00c9t\u00e9 in love",
    "a",
    "\u65e5 b!",
    "*",
]
TITLES += ["none of it", "in love", "a b a b a b a b a b", "<br />Of<br />Wars", "", " "]
N = len(TITLES)
FIELDS = 6
random = np.random.default_rng(3)
NUMBERS = random.normal(0, 3, (N, FIELDS)) * 10.0 ** random.integers(-1, 3, (N, FIELDS))
NUMBERS[:4] = [0.0, -0.0, 0.25, 1e10, -3e38, 2.0**31]
STRING = {"dtype": "string"}
INT64 = {"dtype": "int64"}
FLOAT = {"dtype": "float32"}
SENT: dict[str, tuple[dict[str, Any], Any]] = {
    "city": (STRING, ["red", "", "\u00e9", " Blue ", "PURPLE", "green", "Red", "blue", "purple"]),
    "city_2": (STRING, ["", "&", "|1", "\u00e9\u00e9", "x" * 70, "green", "red"]),
    "item": (INT64, [7, -1, 5, 0, (1 << 31) + 3, -7, 1, 1 << 40, 10, 30]),
    "shop": (
        INT64,
        [1 << 40, -3, 0, 9, 10, -(1 << 63), 1, 19_999, 20_000, (1 << 62) + 5, (1 << 31) - 1, 20],
    ),
    "small": ({"dtype": "int32"}, [7, -1, 5, 0, 1 << 30, -7, 7]),
    "few": (INT64, [3, 49, -1, 4, 0, 7, 9]),
    "age": (FLOAT, [0.0, 0.5, 2.0, 29.9, 30.0, -4.0, 1e6, 1.0, 3.0]),
    "place": (FLOAT, [-10.0, 10.0, 0.0, -11.0, 9.99, 100.0, 3.0]),
    "one": ({**STRING, "shape": [1]}, [["a"], ["b"], ["a"], [""], ["c"], ["\u00fc"], ["a"]]),
    "other": ({**STRING, "shape": [1]}, [["x"], ["x"], [""], ["y"], ["x"], ["z"], ["y"]]),
    "words": (
        {**STRING, "shape": [3]},
        [["red", "red", ""], ["blue", "x", "green"], ["\u00e9", "y", "z"]],
    ),
    "several": ({**INT64, "shape": [3]}, (np.arange(21).reshape(7, 3) - 9).tolist()),
    "few_pair": ({**INT64, "shape": [2]}, [[3, 3], [9, 0], [1, 2]]),
    "x": (
        {**INT64, "shape": [FIELDS]},
        random.integers(0, [100, 3000, 7, 50, 9000, 400], (N, FIELDS)).tolist(),
    ),
    "n": ({**FLOAT, "shape": [FIELDS]}, NUMBERS.tolist()),
    "a": (INT64, random.integers(0, 100, N).tolist()),
    "b": (INT64, random.integers(0, 3000, N).tolist()),
    "bag": ({**INT64, "kind": "ragged"}, [[1, 2], [], [3], [19_999] * 3]),
    "tags": ({**INT64, "kind": "sparse"}, [[7, 7], [], [1 << 10, -1]]),
    "title": (STRING, TITLES),
    "titles": ({**STRING, "shape": [1]}, [[title] for title in TITLES]),
}
"""Input -> what the recipe says of it, and what is sent, over and over."""
EXAMPLES = [
    {name: values[position % len(values)] for name, (_, values) in SENT.items()}
    for position in range(N)
]
TEXTS = {"inline_bytes_max": 4000, "table_threshold": 100}


def job_of(function: str, **code: Any) -> ExportJob:
    inputs = {
        name: pattern
        for name, (pattern, _) in SENT.items()
        if "functional" not in function or name == "titles"
    }
    return tower_recipe(f"ids.py:{function}", inputs, code=code)


def tensor_of(name: str) -> Any:
    """Returns what builds a model: zeros, or the first texts, of three examples."""
    pattern = SENT[name][0]
    if pattern["dtype"] == "string":
        return tf.constant([example[name] for example in EXAMPLES[:3]])
    if "kind" not in pattern:
        return tf.zeros([3, *pattern.get("shape", [])], pattern["dtype"])
    ragged = tf.ragged.constant([[0, 0], [], [0]], pattern["dtype"])
    return ragged if pattern["kind"] == "ragged" else ragged.to_sparse()


def column_of(name: str) -> Column:
    pattern = SENT[name][0]
    values = [example[name] for example in EXAMPLES]
    lengths = [len(value) if isinstance(value, list) else 1 for value in values]
    flat = [
        item_id for value in values for item_id in (value if isinstance(value, list) else [value])
    ]
    array = np.array(flat, object if pattern["dtype"] == "string" else pattern["dtype"])
    single = "kind" not in pattern and (not pattern.get("shape") or name in ("x", "n"))
    return Column(array, None if single else np.concatenate([[0], np.cumsum(lengths)]))


def trace_of(function: str, directory: Path, **code: Any) -> TracedCheckpoint:
    job = job_of(function, **code)
    return save_and_trace(job, directory, {name: tensor_of(name) for name in job.inputs})


BUILDS: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            "rules",
            "rules_3",
            "places",
            "layer",
            "bags",
            "columns",
            "encodings",
            "encodings_3",
            "squared",
            "narrow",
            "multiplied",
            "crossed",
            "padded",
        )
    },
    **dict.fromkeys(("titles", "titles_3", "handmade", "functional", "functional_3"), TEXTS),
}


SECOND = ("rules_3", "titles_3", "encodings", "functional", "places")
"""Builds of the one Keras whose rules the fast tests have of the other, and the largest."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(factory, marks=pytest.mark.slow if factory in SECOND else ())
        for factory in BUILDS
    ],
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TracedCheckpoint:
    return trace_of(
        f"build_{request.param}", tmp_path_factory.mktemp(request.param), **BUILDS[request.param]
    )


def test_ids_of_known_rules_are_extracted_and_give_the_original_s_rows(
    checkpoint: TracedCheckpoint, tmp_path: Path
) -> None:
    assert checkpoint.model.notes == ()
    dense = {
        name for name, spec in checkpoint.model.spec.features.items() if isinstance(spec, DenseSpec)
    }
    assert dense <= {"n@values"}
    check_parity(
        checkpoint,
        tmp_path,
        Examples(N, {name: column_of(name) for name in checkpoint.model.spec.inputs}),
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "checkpoint", ["rules", "layer", "bags", "columns", "encodings", "titles"], indirect=True
)
@pytest.mark.slow
def test_ids_of_known_rules_are_computed_in_a_self_contained_saved_model(
    checkpoint: TracedCheckpoint, tmp_path: Path
) -> None:
    requests = [{name: example[name] for name in checkpoint.job.inputs} for example in EXAMPLES]
    assert check_self_contained(checkpoint, tmp_path, requests)["verification"]["examples"] == N


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        ("sine", {}, r"(Sin) LINE.*code.inline_bytes_max.*by arithmetic, comparisons"),
        ("python", {}, r"(EagerPyFunc) LINE.*TensorFlow's own operations"),
        ("encoded", {}, r"(EncodeBase64) LINE"),
        ("variable", {}, r"(ReadVariableOp) LINE.*make a constant of the variable"),
        ("text", {}, r" LINE.*let callers send the words"),
        ("unmasked", TEXTS, r"LINE.*let TextVectorization have an output_sequence_length"),
        ("unicode", TEXTS, r"LINE.*change texts by tf.strings.lower"),
        ("separated", TEXTS, r"LINE.*split at whitespace, at a separator or into characters"),
        ("zeroed", TEXTS, r"LINE.*where no word has row 0"),
        ("zeroed_unknown", TEXTS, r"LINE.*where no word has row 0"),
        ("unadapted", TEXTS, r"ids are looked up LINE in a vocabulary that is not there"),
        ("none", {"inline_bytes_max": 100}, r"computed, and may be -1, .* LINE.*e.g. a remainder"),
        ("stripped", {"inline_bytes_max": 100}, r"computed, and may be '', .* LINE"),
        ("filled_beyond", {}, r"lookup 'embeddings' has default_id=20000, .* its 20000 rows"),
    ],
)
def test_ids_without_a_rule_name_the_line_and_the_cure(
    function: str, code: dict[str, int], message: str
) -> None:
    pattern = re.sub(r"\((\w+)\)", r"\\(\1\\)", message).replace("LINE", r"\(ids.py:\d+\)")
    with pytest.raises(NotConvertible, match=pattern):
        trace_towers(job_of(f"build_{function}", **({"inline_bytes_max": 1000} | code)), MODELS)


def test_words_of_which_none_has_row_0_are_averaged_as_a_bag() -> None:
    (words,) = trace_towers(job_of("build_unknown_word", **TEXTS), MODELS).spec.features.values()
    assert isinstance(words, FeatureSpec)
    assert (words.entry.kind, words.entry.combiner) == ("bag", "mean")


def test_table_of_ids_without_a_rule_stays_inside_within_the_limit(tmp_path: Path) -> None:
    checkpoint = trace_of("build_sine", tmp_path)
    assert not checkpoint.model.spec.tables
    (note,) = checkpoint.model.notes
    assert (
        "of 20000 rows (234.4 KiB) stays inside the towers: its ids are computed by operation"
        in note
    )
    check_parity(checkpoint, tmp_path, Examples(N, {"item": Column(np.arange(N) * 1005)}))
    assert check_self_contained(checkpoint, tmp_path)["tables"] == {}
    strings = trace_towers(job_of("build_encoded"), MODELS)
    assert strings.spec.features == {"city": dense("city", "string", ())}
    with pytest.raises(NotConvertible, match=r"tf.py_function.*ids.py:\d+"):
        trace_towers(job_of("build_python"), MODELS)


def test_rule_of_the_recipe_for_an_input_read_by_position_is_rejected() -> None:
    job = job_of("build_places")
    job = job.model_copy(
        update={"features": {"x": FeatureSection.model_validate({"ids": {"kind": "hash"}})}}
    )
    with pytest.raises(
        UsageError, match=r"features.x.ids: the model reads ids of this input by their positions"
    ):
        describe_features(trace_towers(job, MODELS).spec, job)


def test_ids_of_one_input_by_position_and_together(tmp_path: Path) -> None:
    spec = trace_towers(job_of("build_places"), MODELS).spec
    features = [feature for feature in spec.features.values() if isinstance(feature, FeatureSpec)]
    assert {
        (feature.entry.kind, feature.entry.length, feature.entry.place)
        for feature in features
        if feature.entry.table == "kept.flat"
    } == {("sequence", FIELDS, None)}
    part = [feature for feature in features if feature.entry.table == "kept.offset_part"]
    assert [(feature.entry.place, feature.entry.places) for feature in part] == [
        (1, FIELDS),
        (3, FIELDS),
        (5, FIELDS),
    ]
