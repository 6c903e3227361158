"""What a training leaves in its folder: checkpoint, model file, recipe, requests and the original
model's answers.
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
from examples.requests import Answers, Body

Scale = Literal["tiny", "small", "article"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "article")
BUILD = Path(__file__).resolve().parents[1] / "build" / "models"
SIZES_FILE = "sizes.json"
REQUESTS_FILE = "requests.jsonl"
EXPECTED_FILE = "expected.npz"
EXAMPLES_FILE = "examples.jsonl"
REPLAYED = 256
"""Examples written for the export to replay."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a bundle, and what it must answer.

    Attributes:
      bodies: requests; `call` in each says which.
      expected: of rankings `score` and heads by name, [candidates of all of them]; of embeddings
        the tower's name, [n, dim]; of retrievals `neighbors`, [n, k] scores, best first.
      examples: inputs as a caller sends them, for the export to replay.
    """

    bodies: Sequence[Body]
    expected: Answers
    examples: Columns


def write(out: Path, source: Path, sizes: Any, model: Any, optimizers: Any, asked: Asked) -> None:
    """Writes the folder of a model that two optimizers trained.

    Args:
      out, source, sizes, asked: as of `write_files`.
      model: goes into the checkpoint.
      optimizers: with `tables` and `dense`, which go there, too.
    """
    write_files(out, source, sizes, asked)
    save(out, model=model, optimizer=optimizers.tables, dense_optimizer=optimizers.dense)


def write_files(out: Path, source: Path, sizes: Any, asked: Asked) -> None:
    """Writes all that an export reads but the checkpoint, and what is asked of its bundle.

    Args:
      out: the folder; an earlier training's checkpoint in it is removed.
      source: the example's own folder, whose model.py and recipe.toml are copied.
      sizes: a dataclass; model.py finds it in sizes.json beside itself.
      asked: requests and answers.
    """
    shutil.rmtree(out / "checkpoint", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("model.py", "recipe.toml"):
        shutil.copyfile(source / name, out / name)
    (out / SIZES_FILE).write_text(json.dumps(asdict(sizes), indent=2) + "\n")
    _write_lines(out / REQUESTS_FILE, asked.bodies)
    replayed = range(min(REPLAYED, size(asked.examples)))
    _write_lines(out / EXAMPLES_FILE, [sent(asked.examples, position) for position in replayed])
    np.savez(out / EXPECTED_FILE, **asked.expected)  # type: ignore[arg-type]


def save(out: Path, **objects: Any) -> None:
    """Writes the checkpoint: model and optimizers, each under the name that it is given by."""
    import tensorflow as tf

    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(**objects), str(out / "checkpoint"), max_to_keep=1
    )
    print(f"checkpoint: {manager.save()}")


def _write_lines(path: Path, pages: Sequence[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(page, separators=(",", ":")) + "\n" for page in pages)


def read_requests(folder: Path) -> tuple[list[Body], Answers]:
    """Reads the requests of a folder and what is expected of them."""
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
    """Returns a path as seen from where the program was started, if that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
