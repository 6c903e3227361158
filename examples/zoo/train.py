"""Trains one entry of the zoo in a process of its own: Keras has one backend in a process.

python -m examples.zoo.train ENTRY --out FOLDER [--data DIR]
"""

from __future__ import annotations

import argparse
import runpy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from examples.zoo.entries import FACTORIES
from examples.zoo.viewings import Viewings, read_viewings

BUILD = Path(__file__).resolve().parents[2] / "build"


@dataclass(frozen=True)
class Run:
    """The input of an entry's training.

    Attributes:
      name: The name of the entry in its source.
      folder: The folder in which it saves. It holds the recipe, and a link to the checkout of its
        source.
      viewings: The data.
    """

    name: str
    folder: Path
    viewings: Viewings

    def published(self, file: str, **names: Any) -> Any:
        """Returns the definitions of a published script or notebook.

        Args:
          file: The path of the script or notebook, relative to the folder.
          names: The values of names that the file would compute otherwise.
        """
        from rowcast.model_code import definitions

        return definitions(self.folder / file, **names)

    def built(self, name: str, **arguments: Any) -> Any:
        """Returns what a function of the factory file of the source returns."""
        return self.factories()[name](**arguments)

    def factories(self) -> dict[str, Any]:
        """Returns the names that the factory file of the source defines."""
        return runpy.run_path(str(self.folder / FACTORIES))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.zoo.train")
    parser.add_argument("entry", help="SOURCE/NAME")
    parser.add_argument("--out", type=Path, required=True, help="folder of the recipe")
    parser.add_argument("--data", type=Path, help="folder with MovieLens small")
    arguments = parser.parse_args()
    source, _, name = arguments.entry.partition("/")
    train = getattr(import_module(f"examples.zoo.{source}.train"), name)
    run = Run(name, arguments.out, read_viewings(arguments.data, BUILD))
    train(run).write(arguments.out)


if __name__ == "__main__":
    main()
