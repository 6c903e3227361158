"""Every example from training to responses: trained, exported, served without TensorFlow, called,
compared.

make demo-models, or python -m examples.demo_models [--only NAME ...] [--scale small|article]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from httpx import HTTPError
from rich import box
from rich.console import Console
from rich.table import Table
from rowcast_client import RowcastError

from examples import replay, requests, served, trained


@dataclass(frozen=True)
class Example:
    """One way to train and export an example.

    Attributes:
      package: The folder of the example under examples/.
      training: The options of `python -m examples.<package>.train`.
      requirements: The packages of the training that rowcast's environment lacks. The training
        then has an environment of its own, and the example runs only if it is named.
    """

    package: str
    training: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()


EXAMPLES = {
    "dlrm": Example("dlrm"),
    "dcn_v2": Example("dcn_v2"),
    "dcn_v2_low_rank": Example("dcn_v2", ("--variant", "low_rank")),
    "wide_deep": Example("wide_deep"),
    "wide_deep_hashed": Example("wide_deep", ("--variant", "hashed")),
    "ple": Example("ple"),
    "sequence": Example("sequence"),
    "one_call_two_tower": Example("one_call_two_tower"),
    "cotrained": Example("cotrained"),
    "snap_tf1": Example("snap_tf1"),
    "flax_two_tower": Example("flax_two_tower"),
    "flax_dlrm": Example("flax_dlrm"),
    "hstu": Example("hstu"),
    "jax_tpu_embedding": Example("jax_tpu_embedding"),
    "keras3_jax": Example("keras3_jax"),
    "torch_dlrm": Example("torch_dlrm", requirements=("torch==2.13.0", "numpy")),
}
COLUMNS = (
    "model",
    "features",
    "tables",
    "external",
    "inline",
    "runs in",
    "HTTP: largest |d|",
    "gRPC: largest |d|",
    "ms per 200",
)
VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


class ExampleFailed(Exception):
    """A step of an example failed; the message names the log."""


@dataclass(frozen=True)
class ExampleResult:
    """The result of one example.

    Attributes:
      cells: The cells of the table, in the order of COLUMNS.
      within: Whether every output keeps the parity rule.
    """

    cells: tuple[str, ...]
    within: bool


def show(name: str, scale: str, console: Console) -> ExampleResult:
    """Trains, exports, serves and calls one example.

    Raises:
      ExampleFailed: A step failed.
      ServiceFailed: The service did not become ready.
    """
    example = EXAMPLES[name]
    folder = trained.BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    log.write_bytes(b"")
    python = training_python(example, log)

    start = time.monotonic()
    options = ["--out", str(folder), "--scale", scale, *example.training]
    _run([python, "-m", f"examples.{example.package}.train", *options], log)
    trained_at = time.monotonic()
    _run([served.program("rowcast-export"), "run", str(folder / "recipe.toml")], log)
    exported_at = time.monotonic()
    result = serve_and_compare(name, folder)
    called_at = time.monotonic()
    console.print(
        f"{name}: trained in {trained_at - start:.0f} s, exported in "
        f"{exported_at - trained_at:.0f} s, served and called in {called_at - exported_at:.0f} s; "
        f"{trained.shown_path(folder)}",
        highlight=False,
    )
    return result


def training_python(example: Example, log: Path) -> str:
    """Returns the Python of the example's training; installs the packages that it needs."""
    if not example.requirements:
        return sys.executable
    environment = trained.BUILD.parent / "environments" / example.package
    python = str(environment / "bin" / "python")
    if not environment.exists():
        _run([sys.executable, "-m", "venv", str(environment)], log)
    _run([python, "-m", "pip", "install", *example.requirements], log)
    return python


def _run(command: Sequence[str], log: Path) -> None:
    """Runs a command, whose output goes to the log."""
    with log.open("ab") as file:
        code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    if code != 0:
        raise ExampleFailed(f"{' '.join(command[1:])} ended with {code}; read {log}")


def newest(root: Path) -> tuple[str, int, dict[str, Any]]:
    """Returns model, version and manifest of the newest bundle of the one model in a root."""
    file = max(root.glob("*/[0-9]*/manifest.json"), key=lambda path: int(path.parent.name))
    return file.parents[1].name, int(file.parent.name), json.loads(file.read_bytes())


def serve_and_compare(name: str, folder: Path) -> ExampleResult:
    """Serves the newest bundle of a folder, sends all requests over both transports and compares
    the responses.
    """
    model, version, manifest = newest(folder / "bundles")
    bodies, expected = trained.read_requests(folder)
    with served.serving(folder / "bundles", model, version, folder / "serve.log") as service:
        http = replay.compare(bodies, replay.over_http(service.http, model, bodies), expected)
        grpc = replay.compare(bodies, replay.over_grpc(service.grpc, model, bodies), expected)
        median_ms = replay.milliseconds(service.grpc, model, bodies)
        if served.tensorflow_mapped(service.process):
            raise ExampleFailed(
                f"{name}: TensorFlow is mapped in the service, which should run without it"
            )

    tables = manifest["tables"].values()
    table_bytes = sum(
        table["rows"] * table["dim"] * VALUE_BYTES[table["dtype"]] for table in tables
    )
    # A tower may have several forms: the service prefers the compiled one.
    forms = [form for tower in manifest["towers"].values() for form in tower["forms"]]
    compiled = [form["path"] for form in forms if form["kind"] == "litert"]
    compiled_bytes = sum(file["bytes"] for file in manifest["files"] if file["path"] in compiled)
    runtime = "SavedModel"
    if len(compiled) == len(manifest["towers"]):
        runtime = "LiteRT"
    cells = (
        name,
        str(len(manifest["features"])),
        str(len(manifest["tables"])),
        _size(table_bytes),
        _size(compiled_bytes),
        runtime,
        f"{http.largest:.1e}",
        f"{grpc.largest:.1e}",
        f"{median_ms:.2f}",
    )
    return ExampleResult(cells, max(http.of_limit, grpc.of_limit) <= 1)


def _size(size: int) -> str:
    if size < 100_000:
        return f"{size / 1e3:.1f} kB"
    return f"{size / 1e6:.1f} MB"


def main() -> int:
    """Runs the command line; returns the exit code: 1 if an example failed or broke the parity
    rule.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_models", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--only", action="append", choices=EXAMPLES, help="an example; may be given several times"
    )
    parser.add_argument(
        "--scale", choices=trained.SCALES, default="small", help="how large data and tables are"
    )
    arguments = parser.parse_args()
    console = Console(width=max(132, Console().width))
    count = requests.COUNT[arguments.scale]
    table = Table(
        title=f"the service's responses to {count} requests, beside the original model's outputs",
        box=box.SIMPLE_HEAD,
    )
    for column in COLUMNS:
        justify = "left" if column in ("model", "runs in") else "right"
        table.add_column(column, justify=justify, no_wrap=True)

    failed = []
    without_requirements = [name for name, example in EXAMPLES.items() if not example.requirements]
    for name in arguments.only or without_requirements:
        try:
            result = show(name, arguments.scale, console)
        except (
            ExampleFailed,
            served.ServiceFailed,
            RowcastError,
            HTTPError,
            ValueError,
        ) as problem:
            console.print(f"[red]{name} failed:[/] {problem}", highlight=False)
            failed.append(name)
            continue
        table.add_row(*result.cells, style=None if result.within else "red")
        if not result.within:
            failed.append(name)
    console.print(table)
    console.print(
        "external: rows of tables; inline: compiled towers, tables that stay in them too; ms: "
        "median over gRPC"
    )
    if failed:
        console.print(f"[red]not shown, or beyond |d| <= 1e-5 + 1e-5 |y|:[/] {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
