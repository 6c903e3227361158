"""What serves must not bring TensorFlow along, although it is installed here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import json, sys, tempfile
from pathlib import Path
import numpy as np
import runtime.exact, runtime.savedmodel
from runtime.engines import open_engine
from runtime.litert import CompiledTower
from runtime.vectors import VectorFile

vector = CompiledTower(Path(sys.argv[1])).run(
    {"user": np.ones((1, 32), np.float32), "history": np.ones((1, 64), np.float32)})["vector"]
vectors = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
directory = Path(tempfile.mkdtemp()) / "scann"
vectors.tofile(directory.parent / "vectors.bin")
engine = open_engine("scann")
file = VectorFile(directory.parent / "vectors.bin", 64)
engine.build_files(file, "dot_product", "brute_force", {}, directory)
from runtime.codes import CodeBook
book = CodeBook.train(vectors, "dot_product")
seems = book.pack(book.encode(vectors)).nearest(vector[:1], 100)[0]
found, _ = engine.load(directory, "dot_product", vectors).search(vector, 3)
maps = Path("/proc/self/maps").read_text()
print(json.dumps({
    "best": int(found[0, 0]) == int(np.argmax(vectors @ vector[0])),
    "codes": int(found[0, 0]) in seems,
    "scann": "scann_pybind" in maps,
    "litert": "litert" in maps,
    "tensorflow": sorted(
        {line.split("/")[-1] for line in maps.splitlines() if "libtensorflow" in line}
    ),
    "modules": sorted(
        name for name in sys.modules if name.split(".")[0] in ("tensorflow", "tf_keras", "keras")
    ),
}))
"""

_WITH_TENSORFLOW = """
import sys, types
shown = types.ModuleType("tensorflow")
sys.modules["tensorflow"] = shown
import runtime.scann
assert sys.modules["tensorflow"] is shown
assert "scann.scann_ops.py.scann_ops" not in sys.modules
"""


def test_runtime_maps_no_tensorflow_while_it_runs_tower_and_index(towers: Path) -> None:
    assert importlib.util.find_spec("tensorflow") is not None, (
        "this test means something only beside TensorFlow"
    )

    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(towers / "query" / "compiled-f32.tflite")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-2000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    loaded = dict.fromkeys(("best", "codes", "scann", "litert"), True)
    assert seen == loaded | {"tensorflow": [], "modules": []}


@pytest.mark.needs("scann")
def test_importing_scann_restores_a_tensorflow_that_was_there_before() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITH_TENSORFLOW],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-2000:]
