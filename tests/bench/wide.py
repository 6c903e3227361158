"""Workload W: a ranker of thousands of features: what a request costs beside the tower, and one feature more.

`python -m tests.bench.wide` writes models of 20, 200 and 2 000 features, each as a whole tower and in parts, and one of
2 000 whose bags are clipped, filled or crosses, and asks one service for 200 candidates; every figure is the median of
rounds in which all had their turn. What the service takes is the time of its CPU, which other programs change
less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bundle import manifest, paths
from bundle.features import open_features
from bundle.manifest import DenseFeature, EmbeddedFeature, Feature, HashIds, Tower, TowerInput, TowerOutput, TowerPart
from bundle.staging import Staging, read_manifest
from runtime.towers import CompiledTower
from service.wire.columns import column, columns_of_one
from service.wire.stubs import embedding_service_pb2 as messages
from tests.bench import workloads
from tests.bench.load import Door, Load
from tests.bench.requests import RANK
from tests.bench.services import Service
from tests.tensorflow_process import with_tensorflow

FEATURES = (20, 200, 2000)
CANDIDATES = 200
TABLES, ROWS, DIM, BAG, HIDDEN = 40, 10_000, 8, 3, 64
JSON, PROTOBUF = "application/json", "application/x-protobuf"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Wide:
    """One model: of 100 features 65 are single ids of the context, 20 bags, 10 numbers, and 5 the candidate's ids.

    Attributes:
      odd: whether 5 of the bags are clipped, 5 have a row for empty ones, 5 both, and 5 are crosses of two inputs.
    """

    features: int
    parts: bool
    odd: bool = False

    @property
    def model(self) -> str:
        return f"wide-{self.features}-{'parts' if self.parts else 'whole'}{'-odd' if self.odd else ''}"

    def pages(self) -> dict[str, Feature]:
        """The features: half of the bags are hashed."""
        found: dict[str, Feature] = {}
        for place in range(self.features):
            table, kind = f"t{place % TABLES:02d}", place % 20
            if kind == 0:
                found[f"item{place:04d}"] = EmbeddedFeature(kind="single", table=table, role="candidate")
            elif kind in {1, 2}:
                found[f"number{place:04d}"] = DenseFeature(kind="dense", role="context", default=0.0)
            elif self.odd and kind < 7:
                found[f"bag{place:04d}"] = EmbeddedFeature.model_validate(
                    {"kind": "bag", "table": table, "role": "context", "combiner": "mean"} | _odd(place, kind)
                )
            elif kind < 7:
                ids = HashIds(buckets=ROWS) if kind % 2 else manifest.IdentityIds()
                found[f"bag{place:04d}"] = EmbeddedFeature(
                    kind="bag", table=table, role="context", combiner="mean", ids=ids, default=[]
                )
            else:
                found[f"id{place:04d}"] = EmbeddedFeature(kind="single", table=table, role="context", default=0)
        return found

    def widths(self) -> tuple[int, int]:
        """Numbers that a context and a candidate give the tower."""
        wide = {"context": 0, "candidate": 0}
        for page in self.pages().values():
            wide[page.role] += 1 if isinstance(page, DenseFeature) else DIM
        return wide["context"], wide["candidate"]


def _odd(place: int, kind: int) -> dict[str, Any]:
    """What else a bag's page tells: of a cross, or of how rows are clipped and empty bags filled."""
    if kind == 6:
        key = manifest.CrossKey(dtype="int64")
        ids = manifest.CrossedIds(keys=(key, key), buckets=ROWS)
        return {"inputs": (f"left{place:04d}", f"right{place:04d}"), "ids": ids}
    return {"max_norm": 2.0 if kind in {3, 5} else None, "empty_row": 7 if kind in {4, 5} else None}


def weights(context: int, candidate: int) -> tuple[Floats, Floats, Floats]:
    """A perceptron of one hidden layer over everything side by side."""
    random = np.random.default_rng(22)
    shapes = ((context, HIDDEN), (candidate, HIDDEN), (HIDDEN, 1))
    first, second, last = (random.standard_normal(each, np.float32) / np.float32(each[0] ** 0.5) for each in shapes)
    return first, second, last


def write_wide(root: Path, wide: Wide) -> Path:
    """Writes a model's version 1; a process of its own runs TensorFlow."""
    pages = wide.pages()
    sides = {
        role: tuple(name for name, page in pages.items() if page.role == role) for role in ("context", "candidate")
    }
    widths = dict(zip(("context", "candidate"), wide.widths(), strict=True))
    packed = {
        role: TowerInput(name=role, features=names, dtype="float32", shape=(None, widths[role]))
        for role, names in sides.items()
    }
    hidden = TowerOutput(name="hidden", dtype="float32", shape=(None, HIDDEN))
    taken = TowerInput(name="hidden", tensor="hidden", dtype="float32", shape=(None, HIDDEN))
    score = (TowerOutput(name="score", dtype="float32", shape=(None,)),)
    random = np.random.default_rng(23)
    with Staging(root, wide.model, 1, wide.model) as stage, tempfile.TemporaryDirectory() as built:
        with_tensorflow(compile_towers, Path(built), *widths.values())

        def forms(name: str, file: str) -> tuple[manifest.TowerForm, ...]:
            (stage.directory / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(built) / name, stage.directory / file)
            return (manifest.TowerForm(kind="litert", precision="f32", path=file, max_abs_error={}),)

        parts = (
            TowerPart(
                name="context",
                per="context",
                inputs=(packed["context"],),
                outputs=(hidden,),
                forms=forms("once", paths.compiled_tower("ranking", "f32", "context")),
            ),
            TowerPart(
                name="trunk",
                per="candidate",
                inputs=(taken, packed["candidate"]),
                outputs=score,
                forms=forms("each", paths.compiled_tower("ranking", "f32", "trunk")),
            ),
        )
        tower = Tower(
            role="ranking",
            inputs=tuple(packed.values()),
            outputs=score,
            result="score",
            forms=forms("whole", paths.compiled_tower("ranking", "f32")),
            parts=parts if wide.parts else (),
        )
        tables = {
            f"t{place:02d}": workloads.write_table(
                stage.directory, f"t{place:02d}", [random.standard_normal((ROWS, DIM), np.float32)]
            )
            for place in range(min(TABLES, wide.features))
        }
        return stage.commit(workloads.write_manifest(wide.model, stage, tables, pages, {"ranking": tower}))


def compile_towers(directory: Path, context: int, candidate: int) -> None:
    """Writes the flatbuffers `once`, `each` and `whole`. The one function with TensorFlow."""
    import tensorflow as tf

    first, second, last = (tf.constant(each) for each in weights(context, candidate))
    shapes = {"context": context, "candidate": candidate, "hidden": HIDDEN}
    towers: dict[str, tuple[tuple[str, ...], Any]] = {
        "once": (("context",), lambda context: {"hidden": context @ first}),
        "each": (
            ("hidden", "candidate"),
            lambda hidden, candidate: {"score": (tf.nn.relu(hidden + candidate @ second) @ last)[:, 0]},
        ),
        "whole": (
            ("context", "candidate"),
            lambda context, candidate: {"score": (tf.nn.relu(context @ first + candidate @ second) @ last)[:, 0]},
        ),
    }
    for name, (inputs, function) in towers.items():
        module = tf.Module()
        module.call = tf.function(function)
        specs = {each: tf.TensorSpec([None, shapes[each]], tf.float32, name=each) for each in inputs}
        tf.saved_model.save(module, f"{directory}/saved-{name}", module.call.get_concrete_function(**specs))
        converter = tf.lite.TFLiteConverter.from_saved_model(f"{directory}/saved-{name}")
        (directory / name).write_bytes(converter.convert())


def bodies(wide: Wide) -> tuple[bytes, bytes]:
    """One request for 200 candidates, as JSON and as a message."""
    random = np.random.default_rng(24)
    message = messages.RankRequest(model=messages.ModelSpec(name=wide.model))
    context: dict[str, Any] = {}
    candidates: dict[str, Any] = {}
    for name, page in wide.pages().items():
        if page.role == "candidate":
            ids = random.integers(0, ROWS, CANDIDATES)
            candidates[name], message.candidates[name].int64s = ids.tolist(), ids.tobytes()
        elif page.kind == "dense":
            number = random.random(1, np.float32)
            context[name], message.context[name].float32s = float(number[0]), number.tobytes()
        else:
            for read in manifest.inputs_of(name, page):
                ids = random.integers(0, ROWS, BAG if page.kind == "bag" else 1)
                context[read], message.context[read].int64s = (
                    ids.tolist() if page.kind == "bag" else int(ids[0]),
                    ids.tobytes(),
                )
                if page.kind == "bag":
                    message.context[read].offsets = np.array([0, BAG], "<i4").tobytes()
    return orjson.dumps({"context": context, "features": candidates}), message.SerializeToString()


def bare_ms(wide: Wide, directory: Path) -> float:
    """The best of many bare calls of the tower on 200 candidates whose inputs are ready."""
    context, candidate = wide.widths()
    once, each = np.zeros((1, context), np.float32), np.zeros((CANDIDATES, candidate), np.float32)
    if wide.parts:
        runs = [
            CompiledTower(directory / paths.compiled_tower("ranking", "f32", part)) for part in ("context", "trunk")
        ]
        inputs: list[dict[str, Any]] = [
            {"context": once},
            {"hidden": np.zeros((CANDIDATES, HIDDEN), np.float32), "candidate": each},
        ]
    else:
        runs = [CompiledTower(directory / paths.compiled_tower("ranking", "f32"))]
        inputs = [{"context": once.repeat(CANDIDATES, axis=0), "candidate": each}]
    calls = list(zip(runs, inputs, strict=True))
    return median(_ms(lambda: [run.run(values) for run, values in calls]) for _ in range(30))


def gains(wide: Wide, directory: Path) -> dict[str, float]:
    """How many times as fast the features of a context are packed, and looked up, together as one by one."""
    context = orjson.loads(bodies(wide)[0])["context"]
    names = [name for name, page in wide.pages().items() if page.role == "context"]
    reader = open_features(directory, read_manifest(directory))
    columns = columns_of_one(context, "context")
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "packed": (
            lambda: columns_of_one(context, "context"),
            lambda: {name: column([value], f"context.{name}") for name, value in context.items()},
        ),
        "looked up": (
            lambda: reader.activations(names, columns, 1),
            lambda: {name: reader.activation(name, columns, 1) for name in names},
        ),
    }
    found = {}
    for name, (together, alone) in ways.items():
        times = [[_ms(together), _ms(alone)] for _ in range(20)]
        found[name] = median(each[1] for each in times) / median(each[0] for each in times)
    reader.close()
    return found


def _ms(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3


def ways(wide: Wide, service: Service) -> dict[str, Load]:
    """Returns the requests of a model by the way it is asked."""
    path = f"/v1/models/{wide.model}:rank"
    json, message = bodies(wide)
    return {
        "JSON": Load(Door(service.http, path, JSON), [json]),
        "protobuf": Load(Door(service.http, path, PROTOBUF), [message]),
        "gRPC": Load(Door(service.grpc, RANK), [message]),
    }


def main() -> None:
    """Builds the models, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.wide", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block")
    given = options.parse_args()
    scratch = Path("build/bench") / f"wide-{os.getpid()}"
    wides = [Wide(features, parts) for features in FEATURES for parts in (False, True)]
    wides.append(Wide(FEATURES[-1], parts=True, odd=True))
    directories = {wide: write_wide(scratch / "bundles", wide) for wide in wides}
    service = Service(scratch / "bundles", "f32", scratch)
    seen: dict[tuple[Wide, str], list[float]] = defaultdict(list)
    try:
        loads = {wide: ways(wide, service) for wide in wides}
        for _ in range(given.rounds):
            for wide in wides:
                for name, load in loads[wide].items():
                    before = service.cpu_s()
                    measured = load.closed(1, given.seconds)
                    if measured.failed:
                        raise RuntimeError(f"{wide.model} by {name}: {measured.failed} requests failed")
                    seen[wide, name].append((service.cpu_s() - before) / measured.answered * 1e3)
                seen[wide, "bare"].append(bare_ms(wide, directories[wide]))
    finally:
        service.close()
    console = Console(width=150)
    report(console, {key: median(found) for key, found in seen.items()}, wides)
    for wide in wides[-2:]:
        for what, times in gains(wide, directories[wide]).items():
            console.print(f"{wide.model}: features {what} together {times:.1f} times as fast as one by one")


def report(console: Console, seen: dict[tuple[Wide, str], float], wides: list[Wide]) -> None:
    """Prints the CPU's milliseconds of each way to ask, how many times those of the least model, and of a feature."""
    table = Table(
        "model", "bare tower, ms", "JSON", "protobuf", "gRPC: CPU ms", "protobuf / least model's",
        "CPU µs a feature: JSON", "protobuf", title=f"W: rank {CANDIDATES} candidates, one caller",
    )  # fmt: skip
    for wide in wides:
        figures = {name: seen[wide, name] for name in ("bare", "JSON", "protobuf", "gRPC")}
        times = figures["protobuf"] / seen[Wide(FEATURES[0], wide.parts), "protobuf"]
        each = [1e3 * figures[name] / wide.features for name in ("JSON", "protobuf")]
        told = [f"{ms:.2f}" for ms in figures.values()]
        table.add_row(wide.model, *told, f"{times:.1f}", *(f"{us:.1f}" for us in each))
    console.print(table)


if __name__ == "__main__":
    main()
