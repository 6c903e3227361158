"""Writes the golden bundle of every example's tiny version, with requests and the trained model's
results for them.

`python -m tests.differential.write_examples [NAME ...]` makes
`tests/differential/examples/<name>.tar.xz`. They are written again only where an example changes:
every later reader opens them and must return these results.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples import replay, trained
from examples.demo_models import EXAMPLES
from examples.requests import Body, Outputs

ARCHIVES = Path(__file__).parent / "examples"
REQUESTS = 6
BYTES_MAX = 60_000


def shortened(bodies: Sequence[Body], expected: Outputs) -> tuple[list[Body], Outputs]:
    """Returns the first requests, and what is expected of them."""
    kept = list(bodies[:REQUESTS])
    counts = replay.counts(kept, expected)
    return kept, {name: values[: counts[name]] for name, values in expected.items()}


def write(name: str, scratch: Path) -> None:
    """Trains, exports and packs one example."""
    from tests.repository.examples.showing import export, train

    folder = scratch / name
    train(name, folder)
    export(folder / "recipe.toml", model=name)
    bodies, expected = shortened(*trained.read_requests(folder))
    packed = scratch / "packed" / name
    packed.mkdir(parents=True)
    shutil.copytree(folder / "bundles" / name / "1", packed / "1")
    with (packed / trained.REQUESTS_FILE).open("w") as file:
        file.writelines(json.dumps(body, separators=(",", ":")) + "\n" for body in bodies)
    np.savez(packed / trained.EXPECTED_FILE, **expected)  # type: ignore[arg-type]
    ARCHIVES.mkdir(exist_ok=True)
    archive = ARCHIVES / f"{name}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(packed, name)
    if (size := archive.stat().st_size) > BYTES_MAX:
        sys.exit(f"{archive} holds {size} bytes, more than {BYTES_MAX}")


def unpacked(directory: Path) -> Path:
    """Unpacks all of them into a directory, which becomes a root with a model for each example;
    returns it.
    """
    for archive in ARCHIVES.glob("*.tar.xz"):
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
    return directory


def main() -> None:
    """Writes those that are named, or all."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[1:] or EXAMPLES:
            write(name, Path(scratch))


if __name__ == "__main__":
    main()
