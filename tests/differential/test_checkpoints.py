"""Checkpoints that TensorFlow itself wrote, read and copied without it: every table,
bit for bit.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.cli.main import main
from tests.differential.copies import copied
from tests.hostile.damage import case_files, trial
from tests.units.export.checkpoint.dump_files import collection_dump
from tests.units.export.forked_runs import call_forked

pytestmark = pytest.mark.slow

DTYPES = ("float32", "bfloat16", "float16")
CASES = (
    *(
        f"mid_level_{name}"
        for name in ("sgd", "adagrad", "adagrad_momentum", "adam", "ftrl", "rate", "custom")
    ),
    *("mid_level_plain", "mid_level_hosts", "tfrs_adagrad", "tfrs_adam", "partial"),
    *(f"keras_{dtype}" for dtype in DTYPES),
    *("keras_dense_features", "keras_weights", "keras_saved_model", "keras_3", "keras_3_export"),
    *("keras_optimizers", "keras_3_optimizers", "keras_3_attributes"),
    *(f"keras_h5_{name}" for name in ("weights", "archive", "whole")),
    *(
        f"keras_3_h5_{name}"
        for name in ("weights", "archive", "whole", "sharded", "bfloat16", "attributes")
    ),
    *(f"sharded_{dtype}" for dtype in (*DTYPES, "float64", "int32", "int64")),
    *("size_limited", "name_based", "merged_grid"),
    *(
        f"tf1_{name}"
        for name in (
            "adagrad",
            "adam",
            "ftrl",
            "momentum",
            "rmsprop",
            "adadelta",
            "adagrad_da",
            "named",
        )
    ),
    *(
        "tf1_proximal_adagrad",
        "tf1_rows",
        "tf1_columns",
        "tf1_sharded_saver",
        "tf1_column",
        "tf1_mod",
    ),
    *("stacks_2x4", "stacks_4x2_adam", "stacks_off", "stacks_of_two_objects"),
)
DAMAGES = 4
"""Of each case; `python -m benchmarks.soak.damaged_checkpoints` tries as many as there is time."""
NOT_COPIED = ("sharded_float64", "sharded_int32", "sharded_int64")


OUTPUTS = Path(__file__).with_name("inspect_outputs.md").read_text()
SHOWN = re.findall(
    r"^```\n\$ rowcast-export (inspect (\S+).*)\n((?:.*\n)*?)```$", OUTPUTS, re.MULTILINE
)
"""What inspect_outputs.md shows: a command, the case it is given,
and all that it prints.
"""


class Case(NamedTuple):
    directory: Path
    facts: dict[str, Any]
    bits: dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, written by TensorFlow in a process of its own."""
    root = tmp_path_factory.mktemp("checkpoints")
    call_forked(write_every_case, root)
    return root


def write_every_case(root: Path) -> None:
    # TensorFlow is imported in the other process.
    from tests.differential import write_checkpoints

    write_checkpoints.main(root, ())


def read_case(directory: Path) -> Case:
    """One case and what it must be read as."""
    with np.load(directory / "values.npz") as file:
        bits = {name.replace("|", "/"): file[name] for name in file.files}
    return Case(directory, json.loads((directory / "facts.json").read_text()), bits)


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_of_tensorflow_is_recognized_and_copied_bit_for_bit(
    name: str, written: Path, tmp_path: Path
) -> None:
    case = read_case(written / name)
    checkpoint = open_checkpoint(case.directory)
    facts = case.facts
    actual = recognize(checkpoint, Statements(facts.get("named", {}), tuple(facts.get("mod", ()))))
    assert {table.name: (table.rows, table.dim) for table in actual.tables} == {
        name: bit.shape for name, bit in case.bits.items()
    }
    assert {table.name: [slot.name for slot in table.slots] for table in actual.tables} == facts[
        "slots"
    ]
    assert {table.dtype for table in actual.tables} == {facts.get("dtype", "float32")}
    origins = facts.get("origins") or dict.fromkeys(case.bits, facts.get("origin"))
    assert {table.name: table.origin for table in actual.tables} == origins
    kind = "mod" if "mod" in facts else facts.get("layout", "plain")
    assert {table.layout.kind for table in actual.tables} == {kind}
    assert actual.step == facts["step"]
    assert len(actual.rejected) == facts.get("rejected", 0)
    assert len(actual.duplicates) == facts.get("duplicates", 0)
    assert "candidates" not in facts or len(actual.candidates) == facts["candidates"]
    if name in NOT_COPIED:
        copies = {
            table.name: checkpoint.read(table.key, 0, table.rows).tobytes()
            for table in actual.tables
        }
    else:  # a name with a slash cannot be a table's in a bundle: its variable is given another
        named = {table.name.replace("/", "_"): table.name for table in actual.tables} | facts.get(
            "named", {}
        )
        inventory = recognize(checkpoint, Statements(named, tuple(facts.get("mod", ()))))
        copies = copied(checkpoint, inventory, tmp_path, list(named))
    assert copies == {name.replace("/", "_"): bits.tobytes() for name, bits in case.bits.items()}


def test_table_with_lora_weights_beside_it_is_rejected_with_the_cure(written: Path) -> None:
    (rejected,) = recognize(open_checkpoint(written / "keras_3_attributes")).rejected
    assert rejected.name == "movies"
    assert "LoRA" in rejected.reason
    assert "save_weights" in rejected.reason


@pytest.fixture(scope="module")
def shown(written: Path) -> Path:
    """All cases that are shown: those of Orbax, PyTorch and a dump lie beside TensorFlow's."""
    for name in ("orbax.tar.xz", "torch.tar.xz"):
        with tarfile.open(Path(__file__).with_name(name)) as archive:
            archive.extractall(written, filter="data")
    tables = [(np.arange(rows), np.ones((rows, 16), np.float32)) for rows in (100, 50)]
    collection_dump(written / "hugectr_dump", tables)
    return written


@pytest.mark.parametrize(("command", "name", "text"), SHOWN, ids=[name for _, name, _ in SHOWN])
def test_inspect_prints_what_is_shown(
    command: str,
    name: str,
    text: str,
    shown: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shown)
    monkeypatch.setattr(sys, "argv", ["rowcast-export", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == (3 if name == "version_one" else 0)
    printed = "".join(capsys.readouterr()).replace(f"{shown}/", "")
    lines = [line.rstrip() for line in printed.splitlines()]
    assert _lasting("\n".join(lines).rstrip()) == _lasting(text.rstrip())


def test_every_kind_of_checkpoint_is_shown() -> None:
    assert {name.partition("_")[0] for _, name, _ in SHOWN} >= {
        *(
            "mid",
            "stacks",
            "partial",
            "keras",
            "tf1",
            "sharded",
            "merged",
            "size",
            "flax",
            "jax",
            "hugectr",
            "version",
        ),
    }


def _lasting(text: str) -> str:
    """Returns what is printed without what is another in every run: sums of values, the order of a
    set of Keras'.
    """
    return re.sub(
        r"_all_variables/\d", "_all_variables/N", re.sub(r"(crc32c|sha256):[0-9a-f]+", r"\1", text)
    )


IN_HDF5 = [name for name in CASES if "_h5" in name]


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in CASES if name not in IN_HDF5[1:]),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in IN_HDF5[1:]),
    ],
)
def test_checkpoint_of_tensorflow_with_any_damage_gives_values_or_a_typed_error(
    name: str, written: Path, tmp_path: Path
) -> None:
    files = case_files(written / name)
    for seed in range(DAMAGES if name not in IN_HDF5 else 2):  # HDF5 takes a process each
        with TemporaryDirectory(dir=tmp_path) as directory:
            trial(seed, files, Path(directory))
