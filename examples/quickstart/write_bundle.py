"""Writes the bundle of the quick start anew: python -m examples.quickstart.write_bundle

Trains the MovieLens example, four times narrower, on a small generated data set, and exports it:
below a megabyte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from examples import served
from examples.movielens import data
from examples.movielens.generated import Shape
from examples.movielens.settings import Settings

BUNDLES = Path(__file__).with_name("bundles")
RECIPE = Path(__file__).parents[1] / "movielens" / "recipe.toml"
INDEX = "[indexes.movies]\n"
SHAPE = Shape(users=200, movies=600, ratings=12_000, clusters=12)


def main() -> None:
    """Trains, exports and replaces the bundle."""
    from examples.movielens import train

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "demo"
        train.train(data.make(shape=SHAPE), out, replace(Settings(), epochs=6, narrower=4))
        recipe = out / "recipe.toml"
        text = RECIPE.read_text().replace("../../build/demo/", "")
        # faiss has a release for every Python that serves; ScaNN has none for 3.14.
        assert INDEX in text
        recipe.write_text(text.replace(INDEX, f'{INDEX}engine = "faiss"\n'))
        shutil.copy(RECIPE.with_name("model.py"), out)
        command = [served.program("rowcast-export"), "run", str(recipe), "--version", "1"]
        subprocess.run(command, check=True, env=os.environ | {"MOVIELENS_DIR": str(out)})
        shutil.rmtree(BUNDLES, ignore_errors=True)
        shutil.copytree(out / "bundles", BUNDLES, ignore=shutil.ignore_patterns(".*"))
    size = sum(file.stat().st_size for file in BUNDLES.rglob("*") if file.is_file())
    sys.stdout.write(f"{BUNDLES}: {size:,} bytes\n")


if __name__ == "__main__":
    main()
