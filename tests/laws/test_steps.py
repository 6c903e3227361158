"""A job that stopped, and whose inputs changed before it went on, runs the steps that are not
finished and those that read what changed, and no others; it ends with what an undisturbed run of
the changed job makes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.format.manifest import IDENTITY, KeyedIds, Vocabulary
from bundle.storage.staging import Staging
from bundle.tables.segments import RowRange
from export.errors import UsageError
from export.recipe.schema import VocabularySection
from export.steps import Step, Written
from export.tables.conversions import ErrorLimits

VALUES = {
    "number": (1, 2),
    "text": ("one", "two"),
    "number or text": (1, "1"),
    "tuple": (RowRange(0, 3), RowRange(1, 3)),
    "set": (frozenset("ab"), frozenset("ac")),
    "dataclass": (ErrorLimits(), ErrorLimits(rms=0.5)),
    "section": [VocabularySection(file="a", dtype=dtype) for dtype in ("int64", "string")],
    "entry": (IDENTITY, KeyedIds(keys="a")),
    "array": (np.arange(3.0), np.array([0.0, 1.0, 3.0])),
    "dtype of an array": (np.arange(3), np.arange(3, dtype=np.int32)),
    "texts": (np.array(["a", "b"], object), np.array(["a", "c"], object)),
    "nested": ({"a": [np.arange(2)]}, {"a": [np.arange(3)]}),
}
FILES = ("first", "second")
INPUTS = (*VALUES, *FILES)


@dataclass(frozen=True)
class Reads:
    """What a step reads: values and files by name, and results of earlier steps by number."""

    inputs: frozenset[str]
    earlier: frozenset[int]
    by_entry: bool


class Stopped(Exception):
    pass


def make(
    base: Path,
    name: str,
    values: Sequence[Any],
    files: Sequence[Path],
    earlier: Sequence[Written | Vocabulary],
    progress: Callable[[str], None],
) -> str:
    """Makes a file whose content depends on all that the step reads."""
    progress(name)
    content = hashlib.sha256(repr(values).encode())
    for file in files:
        content.update(file.read_bytes())
    for result in earlier:
        path = result.path if isinstance(result, Written) else result.file
        content.update((base / path).read_bytes())
    (base / name).write_text(content.hexdigest())
    return content.hexdigest()


def run(
    root: Path, job: Sequence[Reads], changed: str, progress: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Runs the steps of a job, one of whose inputs has its other value; returns their results."""
    results = []
    with Staging(root, "m", 1) as stage:
        for number, reads in enumerate(job):
            values = [VALUES[name][name == changed] for name in VALUES if name in reads.inputs]
            files = [root / name for name in FILES if name in reads.inputs]
            earlier: list[Written | Vocabulary] = [
                Vocabulary(file=f"made-{step}", size=1, dtype="int64")
                if reads.by_entry
                else Written(f"made-{step}")
                for step in sorted(reads.earlier)
            ]
            name = f"made-{number}"
            results.append(
                Step(name).run(stage, make, name, values, files, earlier, progress=progress)
            )
    return results


def overwrite(file: Path, text: str) -> None:
    """Writes as many bytes in place, and sets the file's time back."""
    status = file.stat()
    with file.open("r+") as stream:
        stream.write(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@st.composite
def jobs(draw: st.DrawFn) -> list[Reads]:
    job: list[Reads] = []
    for number in range(draw(st.integers(1, 6))):
        inputs = draw(st.frozensets(st.sampled_from(INPUTS), max_size=4))
        earlier = draw(st.frozensets(st.integers(0, number - 1))) if number else frozenset()
        job.append(Reads(inputs, earlier, draw(st.booleans())))
    return job


@given(job=jobs(), changed=st.sampled_from(INPUTS), finished=st.integers(0, 6))
def test_changed_input_runs_the_steps_that_read_it_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, job: list[Reads], changed: str, finished: int
) -> None:
    root = tmp_path_factory.mktemp("job")
    fresh = tmp_path_factory.mktemp("fresh")
    for directory, file in itertools.product((root, fresh), FILES):
        (directory / file).write_text("one")

    def stop(name: str) -> None:
        if name == f"made-{finished}":
            raise Stopped

    try:
        run(root, job, "", stop)
    except Stopped:
        assert finished < len(job)
    for directory in (root, fresh):
        if changed in FILES:
            overwrite(directory / changed, "two")
    ran: list[str] = []
    results = run(root, job, changed, ran.append)

    readers: set[int] = set()
    for number, reads in enumerate(job):
        if changed in reads.inputs or reads.earlier & readers:
            readers.add(number)
    rerun = readers | set(range(finished, len(job)))
    assert ran == [f"made-{number}" for number in sorted(rerun)]
    assert results == run(fresh, job, changed)


def overwritten(base: Path, file: Path, text: str) -> str:
    """Copies a file, which somebody else writes to at the same time."""
    copied = file.read_text()
    overwrite(file, text)
    return copied


def test_step_whose_file_changes_while_it_is_read_is_not_finished(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    with Staging(tmp_path / "out", "m", 1) as stage:
        with pytest.raises(UsageError, match="file changed while it was read; run again"):
            Step("copy").run(stage, overwritten, file, text="two")
        overwrite(file, "one")  # what the step was keyed by
        with pytest.raises(UsageError, match="file changed"):  # so that it runs again
            Step("copy").run(stage, overwritten, file, text="six")


@dataclass(frozen=True)
class Box:
    content: str

    def copy(self, base: Path) -> str:
        return self.content


def test_step_cannot_have_inputs_that_its_key_lacks(tmp_path: Path) -> None:
    seen = "one"

    def copy(base: Path) -> str:
        return seen

    with Staging(tmp_path / "out", "m", 1) as stage:
        for function in (copy, Box("one").copy, functools.partial(make, name="a")):
            with pytest.raises(TypeError, match="may hold inputs that are no arguments"):
                Step("copy").run(stage, function)
        with pytest.raises(TypeError, match="a Staging has no digest"):
            Step("a").run(stage, make, "a", [stage], [], [], progress=print)
        with pytest.raises(ValueError, match="no step has written b"):
            Step("a").run(stage, make, "a", [], [], [Written("b")], progress=print)
