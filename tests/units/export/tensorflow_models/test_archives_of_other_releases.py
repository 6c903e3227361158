"""Files that other releases of Keras wrote (archived_models.tar.xz, by write_archived_models.py)
describe the models that the installed Keras builds of the same code.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.model.described_model import check_described_model
from export.tensorflow_models.model.keras_variables import find_keras_variables
from tests.units.export.tensorflow_models.archived_models import KINDS
from tests.units.export.tensorflow_models.planning import assert_says

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]
"""Each release of Keras has its own warnings."""

tf = load_tensorflow()
keras = pytest.importorskip("keras")
tf_keras = pytest.importorskip("tf_keras")

ARCHIVE = Path(__file__).with_name("archived_models.tar.xz")
MASKS_IN_GRAPHS = ("keras-3.0.5/attention-with-mask", "keras-3.3.3/attention-with-mask")
"""These releases wrote the masks of attention layers as arguments of their calls, which the model's
code does not give, and handed none on behind layers that merge: it may be another model.
"""


def paths() -> list[str]:
    with tarfile.open(ARCHIVE) as archive:
        return [name for name in archive.getnames() if not name.startswith(MASKS_IN_GRAPHS)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def built(kind: str, release: str = "keras") -> Any:
    """Returns the model of a kind as the installed Keras builds it."""
    library = keras if release.startswith("keras") else tf_keras
    library.backend.clear_session()
    return KINDS[kind](library)


def compare(path: Path, model: Any) -> tuple[str, ...]:
    return check_described_model(model, open_checkpoint(path), "")


QUICK = (
    *("keras-3.3.3/", "keras-3.6.0/mixed-precision.", "keras-3.10.0/dense."),
    *("tf_keras-2.16.0/norms.", "tf_keras-2.16.0/discretization."),
    *("tf_keras-2.13.1/lookups.", "tf_keras-2.13.1/nested."),
)
"""What the quicker tests compare: a release with all differences but a few."""


def cases() -> list[Any]:
    nightly = pytest.mark.nightly
    quick = {path for path in paths() if path.startswith(QUICK) and path.endswith(".keras")}
    return [pytest.param(path, marks=() if path in quick else nightly) for path in paths()]


@pytest.mark.parametrize("path", cases())
def test_archive_of_another_release_describes_the_model_of_the_same_code(
    files: Path, path: str
) -> None:
    release, _, name = path.partition("/")
    model = built(name.partition(".")[0], release)
    compare(files / path, model)
    found = find_keras_variables(model, open_checkpoint(files / path), "")
    assert [location.path for _, location in found.locations if not location.key] == []


@pytest.mark.parametrize("release", [path.partition("/")[0] for path in MASKS_IN_GRAPHS])
def test_archive_with_masks_as_arguments_describes_what_keras_loads_of_it(
    files: Path, release: str
) -> None:
    path = files / release / "attention-with-mask.keras"
    with pytest.raises(CheckpointError) as caught:
        compare(path, built("attention-with-mask"))
    assert_says(str(caught.value), "'multi_head_attention'", "masks", "keras.models.load_model")
    compare(path, keras.models.load_model(path))


REAL: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "activation": ("dense", '"gelu"', '"silu"', ("(Activation)", "'silu' in the file and 'gelu'")),
    "default": ("dense", '"use_bias": true', '"use_bias": false', ("(Dense)", "use_bias is False")),
    "epsilon": ("norms", '"epsilon": 1e-06', '"epsilon": 1e-05', ("epsilon is 1e-05",)),
    "axis": ("norms", '"axis": -1', '"axis": 1', ("(UnitNormalization): axis",)),
    "axes": ("norms", '"axis": [1, 2]', '"axis": [2]', ("axis",)),
    "mask": ("embedding", '"mask_zero": true', '"mask_zero": false', ("mask_zero is False",)),
    "wiring": (
        "merges",
        '"keras_history": ["first", 0, 0]',
        '"keras_history": ["second", 0, 0]',
        ("what it is called on",),
    ),
    "output": ("several", '["dense_1", 0, 0]', '["dense", 0, 0]', ("the model",)),
    "dtype": ("mixed-precision", '"mixed_bfloat16"', '"mixed_float16"', ("in the file and",)),
    "inner layer": (
        "recurrent",
        '"merge_mode": "sum"',
        '"merge_mode": "mul"',
        ("(Bidirectional)", "merge_mode is 'mul' in the file and 'sum'"),
    ),
    "user's argument": (
        "custom-layers",
        '"factor": 2.0',
        '"factor": 4.0',
        ("(Scaled)", "factor is 4.0 in the file and 2.0"),
    ),
    "argument that the user's class ignores": (
        "custom-layers",
        '"factor": 2.0',
        '"factor": 2.0, "gain": 3.0',
        ("(Scaled)", "gain is 3.0 in the file and not in the model"),
    ),
    "operation": ("operations", '"keepdims": true', '"keepdims": false', ("keepdims",)),
}
"""The kind of a model, what its file has, what another training would have written, and words."""


@pytest.mark.parametrize(
    "release", ["keras-3.6.0", pytest.param("keras-3.14.0", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(("kind", "old", "new", "words"), REAL.values(), ids=REAL)
def test_real_difference_in_an_archive_of_another_release_is_rejected(
    release: str, kind: str, old: str, new: str, words: tuple[str, ...], files: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.keras"
    with (
        zipfile.ZipFile(files / release / f"{kind}.keras") as archive,
        zipfile.ZipFile(path, "w") as changed,
    ):
        for name in archive.namelist():
            content = archive.read(name).decode(errors="surrogateescape")
            if name == "config.json":
                assert old in content
                content = content.replace(old, new)
            changed.writestr(name, content.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError) as caught:
        compare(path, built(kind))
    assert_says(str(caught.value), *words)
