"""What a training leaves in its folder: checkpoint, model file, recipe, requests and the original model's answers."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from examples.requests import Answers, Body

Scale = Literal["tiny", "small", "article"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "article")
BUILD = Path(__file__).resolve().parents[1] / "build" / "models"
SIZES_FILE, REQUESTS_FILE, EXPECTED_FILE = "sizes.json", "requests.jsonl", "expected.npz"


def write(out: Path, source: Path, sizes: Any, checkpoint: Any, bodies: Sequence[Body], expected: Answers) -> None:
    """Writes the folder; it holds all that an export reads, and what its bundle must answer.

    Args:
      out: the folder; an earlier training's checkpoint in it is removed.
      source: the example's own folder, whose model.py and recipe.toml are copied.
      sizes: a dataclass; model.py finds it in sizes.json beside itself.
      checkpoint: a tf.train.Checkpoint.
      bodies: requests; `call` in each says which.
      expected: of rankings `score` and heads by name, [candidates of all of them]; of embeddings the tower's name,
        [n, dim]; of retrievals `neighbors`, [n, k] scores, best first.
    """
    import tensorflow as tf

    shutil.rmtree(out / "checkpoint", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("model.py", "recipe.toml"):
        shutil.copyfile(source / name, out / name)
    (out / SIZES_FILE).write_text(json.dumps(asdict(sizes), indent=2) + "\n")
    with (out / REQUESTS_FILE).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(body, separators=(",", ":")) + "\n" for body in bodies)
    np.savez(out / EXPECTED_FILE, **expected)  # type: ignore[arg-type]
    print(f"checkpoint: {tf.train.CheckpointManager(checkpoint, str(out / 'checkpoint'), max_to_keep=1).save()}")


def read_requests(folder: Path) -> tuple[list[Body], Answers]:
    """Reads the requests of a folder and what is expected of them."""
    with (folder / REQUESTS_FILE).open(encoding="utf-8") as lines:
        bodies = [json.loads(line) for line in lines]
    with np.load(folder / EXPECTED_FILE) as arrays:
        return bodies, dict(arrays)


def command_line(name: str, train: Callable[..., None], variants: Sequence[str] = ()) -> None:
    """Runs `python -m examples.<name>.train`: calls train(out, scale), or train(out, scale, variant)."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}.train")
    parser.add_argument("--out", type=Path, help=f"folder that is written (default: {told(BUILD / name)})")
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default=os.environ.get("SCALE", "small"),
        help="small (default), article: as large as the article's; tiny: for tests; also SCALE in the environment",
    )
    if variants:
        parser.add_argument("--variant", choices=variants, default=variants[0])
    arguments = vars(parser.parse_args())
    train(arguments.pop("out") or BUILD / name, *arguments.values())


def told(path: Path) -> str:
    """Returns a path as seen from where the program was started, if that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
