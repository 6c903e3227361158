"""`make test-openapi`: clients that others' generators write from the OpenAPI document. Their types
are checked, and they send requests to the service of the quick start.

The tools are installed under build/generated_clients. Without npm, the TypeScript client is
skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples import served

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parents[1]
BUILD = ROOT / "build" / "generated_clients"
DOCUMENT = ROOT / "docs" / "reference" / "openapi.json"
BUNDLES = ROOT / "examples" / "quickstart" / "bundles"
MODEL = "movielens"
PYTHON_TOOLS = ("openapi-python-client==0.29.1", "mypy>=1.14")


def main() -> int:
    """Generates, checks and calls; returns the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "serve.log"
        with served.serving(BUNDLES, MODEL, 1, log) as service:
            try:
                call_from_python(service.http)
                call_from_typescript(service.http)
            except subprocess.CalledProcessError as problem:
                print(f"failed: {' '.join(map(str, problem.cmd))}", file=sys.stderr)
                return 1
    return 0


def call_from_python(url: str) -> None:
    """Generates the Python client, checks it with mypy, and sends requests."""
    tools = BUILD / "python-tools"
    directory = BUILD / "python"
    programs = tools / "bin"
    if not tools.exists():
        run([sys.executable, "-m", "venv", tools])
    run([programs / "pip", "install", "--quiet", "--disable-pip-version-check", *PYTHON_TOOLS])
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    shutil.copy(SOURCES / "calls.py", directory)
    options = ["--meta", "none", "--output-path", "rowcast_api", "--fail-on-warning"]
    generator = programs / "openapi-python-client"
    run([generator, "generate", "--path", DOCUMENT, *options], directory)
    run([programs / "mypy", "--strict", "rowcast_api", "calls.py"], directory)
    run([programs / "python", "calls.py", url], directory)


def call_from_typescript(url: str) -> None:
    """Generates the TypeScript types, checks a program that uses them, and runs it."""
    if shutil.which("npm") is None:
        print("TypeScript: skipped, because npm is not installed")
        return
    directory = BUILD / "typescript"
    directory.mkdir(exist_ok=True)
    for name in ("calls.ts", "package.json", "tsconfig.json"):
        shutil.copy(SOURCES / name, directory)
    programs = directory / "node_modules" / ".bin"
    run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"], directory)
    run([programs / "openapi-typescript", DOCUMENT, "--output", "rowcast.d.ts"], directory)
    run([programs / "tsc"], directory)
    run(["node", "build/calls.js", url], directory)


def run(command: Sequence[str | Path], directory: Path = ROOT) -> None:
    """Runs a command, with the programs beside it in the path: the generator formats with ruff.

    Raises:
      CalledProcessError: It failed.
    """
    print(f"+ {' '.join(map(str, command))}", flush=True)
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, cwd=directory, env=os.environ | {"PATH": path}, check=True)


if __name__ == "__main__":
    sys.exit(main())
