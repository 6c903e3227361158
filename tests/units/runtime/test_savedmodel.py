"""TensorFlow runs in a process of its own here: the other tests of this package have none."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from runtime.errors import LibraryMissing
from runtime.savedmodel import SavedModelTower
from tests.models.tensorflow_process import with_tensorflow

_SETUP = """
import json, sys
from pathlib import Path
import numpy as np
from bundle.format.manifest import Tower, TowerForm, TowerInput, TowerOutput
from runtime.errors import DeviceMissing, InvalidInput, TowerUnreadable
from runtime import savedmodel
from runtime.savedmodel import SavedModelTower
from runtime.litert import CompiledTower
from runtime.towers import open_form, open_tower

import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow
from tensorflow.python.eager import context

root, device = Path(sys.argv[1]), sys.argv[2]
if device == "gpu":
    try:
        savedmodel.require_gpu()
    except DeviceMissing as problem:
        print(problem)
        sys.exit(NO_GPU)
else:  # a second CPU in the place of a GPU: a machine with one runs the same, with the GPU's name
    (cpu,) = tensorflow.config.list_physical_devices("CPU")
    devices = [tensorflow.config.LogicalDeviceConfiguration()] * 2
    tensorflow.config.set_logical_device_configuration(cpu, devices)
random = np.random.default_rng(1)
inputs = {
    "user": random.normal(size=(7, 32)).astype(np.float32),
    "history": random.normal(size=(7, 64)).astype(np.float32),
}
spec = Tower(
    role="query",
    inputs=tuple(TowerInput(name=name, feature=name, dtype="float32", shape=(None, size))
                 for name, size in (("user", 32), ("history", 64))),
    outputs=(TowerOutput(name="vector", dtype="float32", shape=(None, 64)),
             TowerOutput(name="norm", dtype="float32", shape=(None,))),
    result="vector",
    forms=(
        TowerForm(
            kind="saved_model", precision="f32", path="query/saved_model", max_abs_error={}
        ),
    ),
)
tower = open_tower(root, spec)
there = tower.run(inputs)
seen = {}
"""
_SAME = """
compiled = CompiledTower(root / "query/compiled-f32.tflite")
here = compiled.run(inputs)
seen |= {
    "kind": type(tower).__name__,
    "inputs": [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in tower.inputs],
    "same_inputs": tower.inputs == compiled.inputs,
    "difference": max(float(np.abs(there[name] - here[name]).max()) for name in ("vector", "norm")),
    "output_dtype": there["vector"].dtype.name,
}
for name, wrong in (("missing", {"user": inputs["user"]}),
                    ("shape", inputs | {"user": inputs["user"][:, :5]}),
                    ("dtype", inputs | {"user": inputs["user"].astype(np.float64)})):
    try:
        tower.run(wrong)
    except InvalidInput as rejection:
        seen[name] = str(rejection)
for name, directory in (("gone", root / "gone"), ("damaged", root / "damaged" / "saved_model")):
    try:
        SavedModelTower(directory)
    except TowerUnreadable as rejection:
        seen[name] = str(rejection)
# TensorFlow adds up a product in an order that depends on how many rows there are, so the last
# bits do, too.
ranking = SavedModelTower(root / "ranking" / "saved_model")
x = random.normal(size=(500, 40)).astype(np.float32)
whole = ranking.run({"x": x})["score"]
seen["batches"] = max(
    float(
        (np.abs(ranking.run({"x": x[first : first + size]})["score"] - part) / (1 + np.abs(part)))
        .max()
    )
    for first, size in [(0, 1), (499, 1), (0, 2), (13, 3), (7, 16), (100, 200), (1, 499)]
    for part in [whole[first : first + size]]
)
"""
_PLACED = """
if device == "gpu":
    elsewhere = open_form(root, spec, spec.forms[0], "gpu")
else:
    elsewhere = SavedModelTower(root / "query" / "saved_model", device)
context.context().enable_run_metadata()
found = elsewhere.run(inputs)
ran = context.context().export_run_metadata()
context.context().disable_run_metadata()
seen["of_limit"] = max(
    float((np.abs(found[name] - value) / (1e-5 + 1e-5 * np.abs(value))).max())
    for name, value in there.items()
)
nodes = [node for one in ran.function_graphs for part in one.partition_graphs for node in part.node]
seen["products"] = sorted({node.device[-5:] for node in nodes if "MatMul" in node.op})
seen["computed"] = sorted({node.device[-5:] for node in nodes})
for name, each in (("here", tower), ("devices", elsewhere)):
    with tensorflow.device(each._device):
        made = each._function(**{key: tensorflow.constant(value) for key, value in inputs.items()})
    seen[name] = sorted({tensor.device[-5:] for tensor in made.values()})
seen["rounded"] = tensorflow.config.experimental.tensor_float_32_execution_enabled()
print(json.dumps(seen))
"""

_NO_GPU = 3
"""Exit of a program that TensorFlow shows no GPU."""


def printed(program: str, *arguments: str) -> str:
    """Runs a program in this process; returns what it prints."""
    sys.argv[1:] = arguments
    with redirect_stdout(io.StringIO()) as output:
        exec(program, {})
    return output.getvalue()


@pytest.mark.slow
def test_saved_model_tower_gives_the_values_of_a_compiled_one(towers: Path) -> None:
    damaged = towers / "damaged" / "saved_model"
    damaged.mkdir(parents=True, exist_ok=True)
    content = (towers / "query" / "saved_model" / "saved_model.pb").read_bytes()
    (damaged / "saved_model.pb").write_bytes(content[: len(content) // 2])

    output = with_tensorflow(printed, _SETUP + _SAME + _PLACED, str(towers), "/device:CPU:1")

    seen = json.loads(output.splitlines()[-1])
    assert seen["kind"] == "SavedModelTower"
    assert seen["inputs"] == [["history", "float32", [None, 64]], ["user", "float32", [None, 32]]]
    assert seen["same_inputs"] is True
    assert seen["difference"] < 1e-5
    assert seen["output_dtype"] == "float32"
    # What a score may differ by in another batch: docs/explanation/towers.md.
    assert seen["batches"] <= 1e-5
    assert (seen["here"], seen["devices"], seen["of_limit"]) == (["CPU:0"], ["CPU:1"], 0)
    # Compares all of it, not only what it returns.
    assert (seen["products"], seen["computed"]) == (
        ["CPU:1"],
        ["CPU:1"],
    )
    assert seen["rounded"] is False
    assert "lacks inputs ['history']" in seen["missing"]
    assert "float32[7, 5]" in seen["shape"]
    assert "float64[7, 32]" in seen["dtype"]
    assert "cannot be loaded" in seen["gone"]
    assert "cannot be loaded" in seen["damaged"]


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="this machine has no NVIDIA GPU")
def test_gpu_gives_the_scores_of_the_cpu_in_f32(towers: Path) -> None:
    program = f"NO_GPU = {_NO_GPU}\n{_SETUP}{_PLACED}"
    command = [sys.executable, "-c", program, str(towers), "gpu"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode == _NO_GPU:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, ran.stderr[-2000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert (seen["here"], seen["devices"], seen["products"]) == (["CPU:0"], ["GPU:0"], ["GPU:0"])
    assert seen["of_limit"] <= 1  # the parity rule
    assert seen["rounded"] is False


def test_saved_model_tower_without_tensorflow_names_the_extra(
    towers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)

    with pytest.raises(LibraryMissing, match=r"pip install 'rowcast\[savedmodel\]'"):
        SavedModelTower(towers / "query" / "saved_model")
