"""The folder that a training writes: checkpoint, model file, recipe, requests and the original
model's outputs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from examples.columns import Columns, sent, size
from examples.requests import Body, Outputs

Scale = Literal["tiny", "small", "article"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "article")
BUILD = Path(__file__).resolve().parents[1] / "build" / "models"
SIZES_FILE = "sizes.json"
REQUESTS_FILE = "requests.jsonl"
EXPECTED_FILE = "expected.npz"
EXAMPLES_FILE = "examples.jsonl"
REPLAYED = 256
"""Number of examples that are written for the export to replay."""


@dataclass(frozen=True)
class ReferenceRequests:
    """Requests to a bundle, and the outputs of the original model for them.

    Attributes:
      bodies: The requests; `call` is the name of the call.
      expected: The expected outputs by name. Rankings have `score` and the heads, [candidates of
        all rankings]; embeddings have the name of the tower, [n, dim]; retrievals have `neighbors`,
        [n, k] scores, best first.
      examples: Inputs as a caller sends them, for the export to replay.
    """

    bodies: Sequence[Body]
    expected: Outputs
    examples: Columns


def write(
    out: Path, source: Path, sizes: Any, model: Any, optimizers: Any, reference: ReferenceRequests
) -> None:
    """Writes the folder of a model that two optimizers trained.

    Args:
      out: The folder; see `write_files`.
      source: The folder of the example; see `write_files`.
      sizes: The sizes of the model; see `write_files`.
      model: The model, for the checkpoint.
      optimizers: The optimizers `tables` and `dense`, for the checkpoint.
      reference: The requests and expected outputs.
    """
    write_files(out, source, sizes, reference)
    save(out, model=model, optimizer=optimizers.tables, dense_optimizer=optimizers.dense)


def write_files(out: Path, source: Path, sizes: Any, reference: ReferenceRequests) -> None:
    """Writes all files of an export but the checkpoint, and the requests to its bundle.

    Args:
      out: The folder. The checkpoint of an earlier training in it is removed.
      source: The folder of the example, whose model.py and recipe.toml are copied.
      sizes: The sizes of the model, a dataclass. model.py reads them from sizes.json beside itself.
      reference: The requests and expected outputs.
    """
    shutil.rmtree(out / "checkpoint", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("model.py", "recipe.toml"):
        shutil.copyfile(source / name, out / name)
    (out / SIZES_FILE).write_text(json.dumps(asdict(sizes), indent=2) + "\n")
    _write_lines(out / REQUESTS_FILE, reference.bodies)
    replayed = range(min(REPLAYED, size(reference.examples)))
    _write_lines(out / EXAMPLES_FILE, [sent(reference.examples, position) for position in replayed])
    np.savez(out / EXPECTED_FILE, **reference.expected)  # type: ignore[arg-type]


def save(out: Path, **objects: Any) -> None:
    """Writes the checkpoint: model and optimizers, each under the name of its argument."""
    # Imported here: examples of JAX and PyTorch use this module without TensorFlow.
    import tensorflow as tf

    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(**objects), str(out / "checkpoint"), max_to_keep=1
    )
    print(f"checkpoint: {manager.save()}")


def _write_lines(path: Path, values: Sequence[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(value, separators=(",", ":")) + "\n" for value in values)


def read_requests(folder: Path) -> tuple[list[Body], Outputs]:
    """Reads the requests of a folder and their expected outputs."""
    with (folder / REQUESTS_FILE).open(encoding="utf-8") as lines:
        bodies = [json.loads(line) for line in lines]
    with np.load(folder / EXPECTED_FILE) as arrays:
        return bodies, dict(arrays)


def command_line(name: str, train: Callable[..., None], variants: Sequence[str] = ()) -> None:
    """Runs `python -m examples.<name>.train`: calls train(out, scale), or train(out, scale,
    variant).
    """
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}.train")
    parser.add_argument(
        "--out", type=Path, help=f"folder that is written (default: {shown_path(BUILD / name)})"
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default=os.environ.get("SCALE", "small"),
        help="small (default), article: as large as the article's; tiny: for tests; also SCALE in "
        "the environment",
    )
    if variants:
        parser.add_argument("--variant", choices=variants, default=variants[0])
    arguments = vars(parser.parse_args())
    train(arguments.pop("out") or BUILD / name, *arguments.values())


def shown_path(path: Path) -> str:
    """Returns a path relative to the current directory, if it lies in it."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(path)
