"""The bare calls that the service is held against, in a process of their own: a tower or ScaNN, and nothing around it.

`python -m tests.bench.limits KIND BUNDLE` reads lines `CALLERS SECONDS` and answers each with a line of JSON. Kinds:
`litert-f32`, `litert-int8` and `saved-model` run the whole ranking tower on 200 candidates whose inputs are ready in
memory, `litert-f32 in parts` and `litert-int8 in parts` its context part once and then the rest;
`scann` searches the index, as ScaNN itself loads it and with the instructions that its wheel runs, for query vectors
that are ready in memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.manifest import Tower, TowerInput
from bundle.staging import read_manifest

BATCH = 200
PARTS = "in parts"
KINDS = ("litert-f32", "litert-int8", f"litert-f32 {PARTS}", f"litert-int8 {PARTS}", "saved-model")

Step = Callable[[int], object]


@dataclass(frozen=True)
class Bare:
    """What a bare call reached: calls a second over all callers, and of one call the median time and the CPU, ms."""

    per_s: float
    p50_ms: float
    cpu_ms: float


class Limit:
    """One bare call in its own process; `measure` may be asked again and again, between blocks of other work."""

    def __init__(self, kind: str, bundle: Path) -> None:
        program = [sys.executable, "-m", "tests.bench.limits", kind, str(bundle)]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, callers: int, duration_s: float) -> Bare:
        """Lets some threads call again and again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{callers} {duration_s}\n")
        self._process.stdin.flush()
        return Bare(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=30)


def _ranking(kind: str, bundle: Path) -> Step:
    page = read_manifest(bundle).towers["ranking"]
    if kind.endswith(PARTS):
        return _parts(kind, bundle, page)
    values = _values(page.inputs, BATCH)
    if kind == "saved-model":
        import tensorflow as tf

        # One thread an operation and two operations at a time, so that two callers run beside each other.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        path = next(form.path for form in page.forms if form.kind == "saved_model")
        signature = tf.saved_model.load(str(bundle / path)).signatures["serving_default"]
        tensors = {name: tf.constant(value) for name, value in values.items()}
        return lambda _: signature(**tensors)["score"].numpy()
    from runtime.towers import open_tower

    tower = open_tower(bundle, page, "int8" if kind == "litert-int8" else "f32")
    ordered = [values[each.name] for each in tower.inputs]
    return lambda _: tower.run_in_order(ordered)


def _parts(kind: str, bundle: Path, page: Tower) -> Step:
    from runtime.towers import open_form

    precision = "int8" if "int8" in kind else "f32"
    calls = []
    for part in page.parts:
        form = next(form for form in part.forms if (form.kind, form.precision) == ("litert", precision))
        tower = open_form(bundle, part, form)
        values = _values(part.inputs, 1 if part.per == "context" else BATCH)
        calls.append((tower, [values[each.name] for each in tower.inputs]))
    return lambda _: [tower.run_in_order(ordered) for tower, ordered in calls]


def _values(inputs: Sequence[TowerInput], n: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)
    shapes = {each.name: [n if size is None else size for size in each.shape] for each in inputs}
    return {name: random.random(shape, np.float32) for name, shape in shapes.items()}


def scann_alone(bundle: Path, name: str) -> Any:
    """Loads an index as ScaNN itself does, with a copy of all vectors, by which it reorders."""
    from runtime.scann import DATASET, _scann

    page = read_manifest(bundle).indexes[name]
    with tempfile.TemporaryDirectory() as beside:
        directory = Path(beside) / "scann"
        shutil.copytree(bundle / page.directory, directory)
        np.save(directory / DATASET, np.fromfile(bundle / page.vectors, "<f4").reshape(-1, page.dim))
        assets = (directory / "scann_assets.pbtxt").read_text()
        listed = assets.replace('asset_path: "', f'asset_path: "{directory}/')
        listed += f'assets {{ asset_type: DATASET_NPY asset_path: "{directory}/{DATASET}" }}'
        return _scann.scann_pybind.ScannNumpy(str(directory), listed)


def _search(bundle: Path) -> Step:
    from runtime.scann import _scann
    from runtime.scann_instructions import set_avx2

    set_avx2(_scann, wanted=False)
    searcher, k = scann_alone(bundle, "items"), read_manifest(bundle).indexes["items"].recall.k
    queries = np.load(bundle.parent / "queries.npy")
    return lambda at: searcher.search(queries[at % len(queries)], k, -1, -1)


def _run(step: Step, callers: int, duration_s: float) -> Bare:
    times: list[list[float]] = [[] for _ in range(callers)]
    end = time.perf_counter() + duration_s

    def call(own: list[float], at: int) -> None:
        while not own or time.perf_counter() < end:  # one at least, however late a thread begins
            began = time.perf_counter()
            step(at)
            own.append(time.perf_counter() - began)
            at += 1

    threads = [threading.Thread(target=call, args=(own, 97 * number)) for number, own in enumerate(times)]
    began, cpu_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flat = np.concatenate(times)
    cpu_ms = (time.process_time() - cpu_s) / len(flat) * 1e3
    return Bare(len(flat) / (time.perf_counter() - began), float(np.median(flat)) * 1e3, cpu_ms)


def main() -> None:
    """Answers lines from stdin until it closes."""
    kind, bundle = sys.argv[1], Path(sys.argv[2])
    step = _search(bundle) if kind == "scann" else _ranking(kind, bundle)
    step(0)
    for line in sys.stdin:
        callers, duration_s = line.split()
        print(json.dumps(astuple(_run(step, int(callers), float(duration_s)))), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
