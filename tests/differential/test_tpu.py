"""A checkpoint that a TPU wrote: Orbax, eight processes of a 2x2x2 slice with 32 SparseCores; and
the same as Google's converter rewrote it for 16 cores.

Both are test data of jax-ml/jax-tpu-embedding (jax_tpu_embedding/sparsecore/examples/shakespeare/
testdata, Apache-2.0), which a fresh machine does not have. TPU_CHECKPOINTS names the folder
of the two archives.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements, TableSpec
from export.checkpoint.layouts import SparseCore
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible
from tests.differential.copies import copied
from tests.differential.random_models.serving import response_to
from tests.units.export.movies_job import export

FOLDER = os.environ.get("TPU_CHECKPOINTS", "")
CASES = {"checkpoint-2x2x2": 32, "converted-2x2x1": 16}
"""Archives, and the SparseCores over which rows are sharded."""
TABLE = "shakespeare_table"
WORDS = 16
"""That the model reads, to predict the next one."""
EXAMPLES = 256
IDS = """
57 58 59 60 4 61 16 17 62 63 64 20 8 65 66 67 68 1 32 69 6 70 71 72 73 9 74 4 10 1 20 75 76 77 78
17 33 79 80 11 34 2 81 35 2 82 83 5 4 84 17 85 86 87 21 35 12 88 89 4 17 90 91 22 92 93 94 9 95 96
12 97 98 99 100 101 36 2 102 6 20 103 104 5 105 2 106 107 9 23 108 109 37 38 1 10 39 8 40 110 111
1 41 13 112 113 114 115 116 6 0 117 3 32 4 118 119 120 121 0 122 123 124 18 125 1 126 127 128 129
18 130 131 13 3 19 0 132 133 42 134 23 135 42 136 34 137 138 43 44 139 4 140 141 3 19 142 11 10 1
143 144 145 146 6 147 148 24 45 149 150 151 152 153 154 46 155 156 10 157 0 158 159 25 26 160 16
33 161 5 162 163 25 0 164 165 18 19 26 166 6 24 167 168 37 41 1 169 3 170 171 1 27 39 28 46 172 13
19 0 47 48 29 173 174 175 176 16 30 1 177 26 3 0 178 22 179 180 9 181 16 182 183 11 31 184 12 185
4 0 47 18 186 0 49 50 187 188 189 21 31 0 190 191 51 48 1 192 193 12 194 195
"""
"""The words of the training text, numbered by how often each occurs in it."""
TEXT = np.array([int(number) for number in IDS.split()])
TRAINED = np.unique(TEXT[: EXAMPLES + WORDS - 1])
"""The words that some example reads: 187. The others of the text are only predicted."""
MODEL = """
import jax.numpy as jnp
from flax import nnx

TABLE = {
    "name": "shakespeare_table",
    "vocabulary_size": 2048,
    "embedding_dim": 8,
    "combiner": "sum",
}
NAMES = [f"w{place:02d}" for place in range(16)]


class Dense(nnx.Module):
    def __init__(self, rngs):
        self.dense_layer_1 = nnx.Linear(128, 8, rngs=rngs)
        self.dense_layer_2 = nnx.Linear(8, 2048, rngs=rngs)

    def __call__(self, vectors):
        return self.dense_layer_2(self.dense_layer_1(vectors))


def build():
    graph, state = nnx.split(nnx.eval_shape(lambda: Dense(nnx.Rngs(0))))

    def query(parameters, inputs):
        vectors = jnp.concatenate([inputs[name] for name in NAMES], axis=-1)
        return nnx.merge(graph, parameters)(vectors)

    return state, {"query": query}, {name: {"name": name, "table_spec": TABLE} for name in NAMES}
"""

pytestmark = pytest.mark.skipif(
    not Path(FOLDER, "checkpoint-2x2x2.tgz").is_file(),
    reason="TPU_CHECKPOINTS names no folder with the archives",
)
pytest.importorskip("flax")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of step 1,000."""
    directories = {}
    for case in CASES:
        directory = tmp_path_factory.mktemp(case)
        with tarfile.open(Path(FOLDER, f"{case}.tgz")) as archive:
            archive.extractall(directory, filter="data")
        directories[case] = directory / "1000"
    return directories


def test_tables_of_both_topologies_have_equal_rows(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    rows = []
    for case, cores in CASES.items():
        checkpoint = open_checkpoint(checkpoints[case])
        actual = recognize(checkpoint)
        (table,) = actual.tables
        assert (table.name, table.rows, table.dim) == (TABLE, 2048, 8)
        assert isinstance(table.layout, SparseCore)
        assert table.layout.cores == cores
        rows.append(copied(checkpoint, actual, tmp_path / case)[TABLE])
    assert rows[0] == rows[1]


def without_layout(checkpoint: Path, directory: Path) -> Path:
    """Copies a step without the layout that its trainer recorded."""
    copy = shutil.copytree(checkpoint, directory / "1000")
    shutil.rmtree(copy / "embedding_spec")
    return copy


def recognized(checkpoint: Path, layout: StatedTable) -> TableSpec:
    """Recognizes the table by a layout, with the trained words."""
    trained = {TABLE: TrainedRows(TRAINED, "words")}
    statements = Statements(layouts={TABLE: layout})
    return recognize(open_checkpoint(checkpoint), statements, trained).table(TABLE)


def stated(cores: int) -> StatedTable:
    return StatedTable(key=TABLE, kind="sparse_core", rows=2048, dim=8, cores=cores)


@pytest.mark.parametrize("case", CASES)
def test_layout_that_is_not_recorded_is_derived_from_the_words_of_the_training_text(
    case: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = without_layout(checkpoints[case], tmp_path)
    (recorded,) = recognize(open_checkpoint(checkpoints[case])).tables

    table = recognized(checkpoint, StatedTable(key=TABLE, kind="derive", rows=2048, dim=8))

    assert table.layout == recorded.layout
    assert table.proof is not None
    assert (table.proof.agree, table.proof.ids) == (187, 187)
    assert table.proof.other_agree < 187
    assert (table.stated, table.derived) == (False, True)


@pytest.mark.parametrize(
    ("cores", "agree"), [(16, 87), (64, 87), (8, 45), (128, 45), (4, 22), (2, None), (1, None)]
)
def test_layout_that_the_words_of_the_training_text_contradict_is_rejected(
    cores: int, agree: int | None, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = without_layout(checkpoints["checkpoint-2x2x2"], tmp_path)
    proved = recognized(checkpoint, stated(32))
    assert proved.proof is not None
    assert proved.proof.decisive
    with pytest.raises(NotConvertible) as failure:
        recognized(checkpoint, stated(cores))
    if agree is not None:
        assert f"{agree} of 187 read rows that training changed, and 187 of 187" in str(
            failure.value
        )


@pytest.mark.parametrize(
    ("case", "derived"),
    [("checkpoint-2x2x2", False), ("converted-2x2x1", False), ("checkpoint-2x2x2", True)],
)
def test_served_model_predicts_every_next_word_of_its_training_text(
    case: str, derived: bool, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    checkpoint = checkpoints[case]
    layout = ""
    trained_ids = ""
    if derived:
        checkpoint = without_layout(checkpoint, tmp_path)
        layout = 'layout = "derive"'
        trained_ids = f'[verify.trained_ids]\n{TABLE} = "words.txt"\n'
        (tmp_path / "words.txt").write_text("\n".join(map(str, TRAINED)))
    names = [f"w{place:02d}" for place in range(WORDS)]
    inputs = "".join(f'[inputs.{name}]\ndtype = "int32"\n' for name in names)
    (tmp_path / "recipe.toml").write_text(
        f"""
model = "random"
[checkpoint]
path = "{checkpoint}"
{layout}
[code]
factory = "model.py:build"
[output]
root = "bundles"
[towers.query]
role = "query"
call = "query"
{inputs}
{trained_ids}"""
    )
    published = export(tmp_path / "recipe.toml")
    if derived:
        check = published.manifest.verification.tables[TABLE]
        assert check.stated_layout == "derived"
        assert check.trained_ids is not None
        assert check.trained_ids.agree == 187
    windows = np.lib.stride_tricks.sliding_window_view(TEXT, WORDS)[:EXAMPLES]
    requests: list[dict[str, Any]] = [
        {"features": dict(zip(names, window.tolist(), strict=True))} for window in windows
    ]

    response = response_to(tmp_path / "bundles", "embed", {"tower": "query", "requests": requests})

    scores = np.array([result["vector"] for result in response["results"]])
    np.testing.assert_array_equal(scores.argmax(axis=1), TEXT[WORDS : WORDS + EXAMPLES])
