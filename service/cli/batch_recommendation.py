"""Recommends for all users of a file: blocks of users are computed by processes, staged,
and joined at the end.

The blocks lie beside the destination, in a directory whose name is a digest of all that determines
them. A block's file is named by its number and its crc32c once it is whole: a run that was stopped
is resumed with its whole blocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from glob import escape
from importlib.metadata import version as library_version
from itertools import pairwise
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import parquet

from bundle.errors import (
    BundleError,
    DigestMismatch,
    FeatureError,
    UnknownCandidate,
)
from bundle.format import paths
from bundle.format.changes_position import ChangesPosition
from bundle.format.checksums import digest
from bundle.format.features import DenseFeature, input_entry, readers_of, sent_dtype
from bundle.storage import catalog, files
from bundle.storage.output_file import OutputFile, OutputRejected
from rows.batches import Rows, check_columns, column_types, count_rows, read_batches
from rows.cells import holds_lists, plain_values, sent_values, single_cells
from rows.errors import FileRejected, RowsError
from rows.files import SourceFile, source_file
from runtime.errors import ComputationFailed
from service.changes.opening import last_change, open_version
from service.cli.bundle_source import EXIT_DAMAGED, EXIT_DESTINATION, EXIT_SOURCE
from service.config import ServiceSettings, SettingsError, read_settings
from service.contract.messages import RecommendationRequest, Target
from service.contract.reading import from_body
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.retrieval.pipeline import select
from service.engine.validation import NotFinite, check_attributes, choose_index
from service.errors import ServiceError
from service.exit_codes import EXIT_BUG, EXIT_USAGE
from service.versions.policy import rank_versions
from service.versions.rejections import LoadRejected
from service.versions.state_file import StateFile, StateUnreadable

BLOCK_USERS = 4096
"""Number of users of a staged file, which a run that is stopped loses at most in each process."""
_CANDIDATES = 20_000
"""Approximate number of candidates that are ranked at once. With more, more users share the cost of
a call, and all of their candidates are in memory.
"""
_CONTEXT_ID = "context_id"
_MODELS_SHOWN = 10
_TYPES = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
_TYPES["list<string>"] = pa.list_(pa.string())
_AT_FAULT = (ServiceError, FeatureError, UnknownCandidate, NotFinite, ComputationFailed)
"""The errors that the features of a user, or the options, cause."""


class BatchError(Exception):
    """A failure that stops a run: a message that names the cause, and an exit code."""


@dataclass(frozen=True)
class Task:
    """The recommendation that every user gets.

    Attributes:
      root: The directory of the bundles.
      model: The name of the model.
      options: The options of `:recommend`, a JSON object.
      id_column: The column that identifies users in the output; a feature too, if the model takes
        one of its name.
      exclude_column: The column with lists of candidates that a user is not recommended; empty:
        there is none.
      version: The version to use; 0: the one that a service would serve.
      denied: The ids on the deny list.
      changes_dir: The directory of the changes; None: see `ServiceSettings`.
      changes: The last change when the run began; None: there is none.
    """

    root: Path
    model: str
    options: str
    id_column: str
    exclude_column: str = ""
    version: int = 0
    denied: tuple[str, ...] = ()
    changes_dir: Path | None = None
    changes: ChangesPosition | None = None


@dataclass(frozen=True)
class Summary:
    """The facts about a run that has ended.

    Attributes:
      users: The number of users.
      failed: The number of users without a list.
      done_before: The number of users that an earlier run had done.
      version: The version that recommended.
      changes: The sequence of the last change when the run began; 0: there is none.
    """

    users: int
    failed: int
    done_before: int
    version: int
    changes: int


def run(
    task: Task, users: Path, out: Path, workers: int, progress: Callable[[int, int], object]
) -> Summary:
    """Writes the lists of all users.

    Args:
      task: What is recommended.
      users: A file with a row for each user, in a format that `rows.files` reads.
      out: The file to write. An existing one is replaced once all users are done; a link is
        followed.
      workers: The number of processes.
      progress: Takes the number of users that are done, and the number of all users.

    Raises:
      BatchError: The run cannot go on; see its exit code. Finished blocks stay, for the next run.
    """
    output = _output_of(out)
    task = _resolve(task)
    try:
        source = source_file(users, otherwise="parquet")
        check_columns([source], {task.id_column, task.exclude_column} - {""})
        total = _count(task, source)
        directory = output.path.with_name(f".{output.path.name}.parts-{_key(task, users)}")
        blocks = _blocks(source)
        # One empty block if there are no users.
        if not total:
            types = {task.id_column: pa.null(), **column_types(source)}
            empty = {name: pa.array([], kind) for name, kind in types.items()}
            blocks = iter([Rows(source, empty, 0, 0)])
    except (OSError, RowsError) as problem:
        if isinstance(problem, FileRejected) and problem.column:
            raise BatchError(str(problem), EXIT_USAGE) from problem
        raise BatchError(f"{users} cannot be read: {problem}", EXIT_SOURCE) from problem
    try:
        with _lock(directory):
            done = dict(_whole_blocks(directory))
            done_before = _compute(task, blocks, total, directory, done, workers, progress)
            block_files = [done[number] for number in sorted(done)]
            failed_count = _join(block_files, directory / "joined", output)
            shutil.rmtree(directory, ignore_errors=True)
        # The blocks of runs that were stopped, and had other inputs, are of no use any more.
        for abandoned in output.path.parent.glob(f".{escape(output.path.name)}.parts-*"):
            with suppress(OSError), _lock(abandoned):
                shutil.rmtree(abandoned, ignore_errors=True)
    except BlockingIOError:
        raise BatchError(f"another run is writing {out}", EXIT_DESTINATION) from None
    except OutputRejected as problem:
        raise BatchError(f"OUT: {problem}; run again to continue", EXIT_DESTINATION) from problem
    except BundleError as problem:
        raise BatchError(f"the bundle cannot be read: {problem}", EXIT_DAMAGED) from problem
    except OSError as problem:
        raise BatchError(
            f"{out} cannot be written: {problem}; run again to continue", EXIT_DESTINATION
        ) from problem
    changes = task.changes.sequence if task.changes else 0
    return Summary(total, failed_count, done_before, task.version, changes)


def _count(task: Task, source: SourceFile) -> int:
    """Returns the number of users."""
    count = count_rows(source)
    if count is None:
        return sum(map(len, read_batches(source, [task.id_column])))
    return count


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Creates a directory and keeps other runs from it; removes it at the end if it is empty.

    Raises:
      BlockingIOError: Another run uses the directory.
    """
    # The kernel releases the lock of a run that was killed.
    directory.mkdir(exist_ok=True)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            with suppress(OSError):
                directory.rmdir()
    finally:
        os.close(lock)


def _output_of(out: Path) -> OutputFile:
    """Returns the file to write.

    Raises:
      BatchError: It cannot be written, or its name is not that of a Parquet file.
    """
    try:
        if source_file(out, otherwise="parquet").format != "parquet":
            raise BatchError(
                f"OUT is {out}: it is written as Parquet, name it .parquet", EXIT_USAGE
            )
        output = OutputFile(out)
    except (FileRejected, OutputRejected) as problem:
        raise BatchError(f"OUT: {problem}", EXIT_USAGE) from problem
    except OSError as problem:
        raise BatchError(f"{out} cannot be written: {problem}", EXIT_DESTINATION) from problem
    if not output.path.parent.is_dir():
        raise BatchError(
            f"{out} cannot be written: its directory does not exist; create it first",
            EXIT_DESTINATION,
        )
    return output


def _resolve(task: Task) -> Task:
    """Returns the task with the version that a service would serve, and its deny list."""
    try:
        settings = _settings_of(task)
        desired = StateFile.of(settings).read().of(task.model)
        existing = catalog.committed_versions(task.root, task.model)
    except SettingsError as problem:
        raise BatchError(str(problem), EXIT_USAGE) from problem
    except StateUnreadable as problem:
        raise BatchError(str(problem), EXIT_SOURCE) from problem
    except OSError as problem:
        raise BatchError(
            f"{task.root / task.model} cannot be listed: {problem.strerror}", EXIT_SOURCE
        ) from problem
    if not existing and not (task.root / task.model).is_dir():
        raise BatchError(
            f"--root {task.root} has no model {task.model!r}; it has {_model_names(task.root)}",
            EXIT_SOURCE,
        )
    versions = rank_versions(desired, existing)
    if task.version not in {0, *existing} or not (task.version or versions):
        missing = "version to serve"
        if task.version:
            missing = f"version {task.version}"
        raise BatchError(
            f"model {task.model!r} has no {missing}; it has {existing or 'none'}", EXIT_SOURCE
        )
    try:
        changes = last_change(settings, task.model)
    except BundleError as problem:
        raise BatchError(str(problem), EXIT_SOURCE) from problem
    return replace(
        task, version=task.version or versions[0], denied=desired.denied, changes=changes
    )


def _settings_of(task: Task) -> ServiceSettings:
    return read_settings({"root": task.root, "changes_dir": task.changes_dir})


def _model_names(root: Path) -> str:
    """Returns the names of the models under a root, for a message."""
    names = sorted(path.name for path in root.iterdir() if paths.is_name(path.name))
    models = [name for name in names if catalog.committed_versions(root, name)]
    if not models:
        return "none"
    listed = ", ".join(models[:_MODELS_SHOWN])
    if len(models) > _MODELS_SHOWN:
        listed += ", ..."
    return listed


def _key(task: Task, users: Path) -> str:
    """Returns the digest of all that determines the blocks."""
    versions = library_version("rowcast"), library_version("pyarrow")
    precision = _settings_of(task).precision
    # Without the directories: they may be mounted elsewhere when the run goes on.
    parameters = (versions, BLOCK_USERS, precision, replace(task, root=Path(), changes_dir=None))
    key = hashlib.sha256(repr(parameters).encode())
    for path in (task.root / task.model / str(task.version) / paths.MANIFEST, users):
        with path.open("rb") as file:
            key.update(hashlib.file_digest(file, "sha256").digest())
    return key.hexdigest()[:16]


def _whole_blocks(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields the blocks that are whole, by number; removes all other files."""
    for path in directory.iterdir():
        number, _, crc = path.stem.partition("-")
        if crc and path.suffix == ".parquet":
            with path.open("rb") as file:
                if f"{digest(file).crc32c:08x}" == crc:
                    yield int(number), path
                    continue
        path.unlink()


def _compute(
    task: Task,
    blocks: Iterator[Rows],
    total: int,
    directory: Path,
    done: dict[int, Path],
    workers: int,
    progress: Callable[[int, int], object],
) -> int:
    """Computes the blocks that are not done, and adds them to `done`; returns the number of users
    that were done before.
    """
    finished = 0
    done_before = 0
    pending: dict[Future[tuple[Path, int, str]], tuple[int, int]] = {}

    def collect() -> int:
        """Waits for a block, and returns the number of users that were computed meanwhile."""
        users = 0
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            number, rows = pending.pop(future)
            path, failed_count, problem = future.result()
            # No user has a list: the options or the columns are wrong, not the users.
            if number == 0 and 0 < rows == failed_count:
                path.unlink()
                raise BatchError(
                    f"none of the first {rows} users has a list; the first error: {problem}",
                    EXIT_USAGE,
                )
            done[number] = path
            users = users + rows
        return users

    with _processes(workers) as pool:
        for number, rows in enumerate(blocks):
            if number in done:
                finished += len(rows)
                done_before += len(rows)
            else:
                future = pool.submit(_write_block, task, rows, directory, number)
                pending[future] = (number, len(rows))
            # Users are read as they are needed, not all at once. The first block is waited for:
            # options that fit no user end the run there.
            while len(pending) >= 2 * workers or (pending and number == 0):
                finished += collect()
            progress(finished, total)
        while pending:
            finished += collect()
            progress(finished, total)
        return done_before


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Starts processes, which have ended when the block of the `with` statement is left.

    Raises:
      BatchError: One of them has ended by itself.
    """
    earlier_children = active_children()
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker)
    try:
        yield pool
    except BrokenExecutor as problem:
        raise BatchError(
            f"a process has ended ({problem}); run again to continue", EXIT_BUG
        ) from problem
    except BaseException:
        # The blocks in progress are lost: to complete them can take minutes.
        for process in active_children():
            if process not in earlier_children:
                process.terminate()
        raise
    finally:
        # Nothing of the pool, such as its semaphores, is left when the program exits.
        pool.shutdown(cancel_futures=True)


def _blocks(source: SourceFile) -> Iterator[Rows]:
    """Yields the users."""
    try:
        for rows in read_batches(source, batch_rows=BLOCK_USERS):
            for first in range(0, len(rows), BLOCK_USERS):
                yield rows.slice(first, BLOCK_USERS)
    except RowsError as problem:
        raise BatchError(f"the file of users cannot be read: {problem}", EXIT_SOURCE) from problem


def _begin_worker() -> None:
    """Lets a worker end with its parent, however the parent ends, and by nothing else."""
    # A terminal sends SIGINT to all processes. The parent decides what becomes of the blocks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _write_block(task: Task, rows: Rows, directory: Path, number: int) -> tuple[Path, int, str]:
    """Writes the lists of a block; returns its file, how many users have none, and why the first
    has none.
    """
    try:
        table, problems = _recommender(task).lists(rows)
    except RowsError as problem:
        raise BatchError(f"the file of users does not fit: {problem}", EXIT_SOURCE) from None
    staged = directory / f"{number:08d}"
    parquet.write_table(table, staged)

    # On the disk before it has its name: a later run relies on blocks with a checksum.
    files.sync(staged)
    with staged.open("rb") as file:
        path = staged.with_name(f"{number:08d}-{digest(file).crc32c:08x}.parquet")
    staged.rename(path)
    first_problem = ""
    if problems:
        first_problem = problems[0]
    return path, len(problems), first_problem


def _join(block_files: list[Path], staged: Path, output: OutputFile) -> int:
    """Writes all blocks into one file, which it publishes at the end; returns how many users
    have no list.
    """
    failed_count = 0
    # One block at a time is in memory. The file has its name once it is complete.
    with parquet.ParquetWriter(staged, parquet.read_schema(block_files[0])) as writer:
        for block_file in block_files:
            table = parquet.read_table(block_file)
            failed_count += table.num_rows - table["error"].null_count
            writer.write_table(table)
    output.replace(staged)
    return failed_count


@cache
def _recommender(task: Task) -> _Recommender:
    """Returns the recommender of a process, which loads the version with the first block."""
    return _Recommender(task)


class _Recommender:
    """Recommends with one loaded version."""

    def __init__(self, task: Task) -> None:
        """Loads the version of a task.

        Raises:
          BatchError: The version cannot be loaded, or the options do not fit it.
        """
        # The limits of a service protect it from its clients. Here users compute for themselves.
        names = ("max_candidates", "max_k", "max_values", "max_queries", "max_response_bytes")
        limits = dict.fromkeys(names, 1 << 40)
        # Whatever the environment of a service says: there are no shards here.
        alone = {"shard": None, "shard_addresses": ()}
        self._settings = _settings_of(task).model_copy(update={**limits, **alone})
        try:
            self._version = open_version(task.model, task.version, self._settings, task.denied)
        except (BundleError, LoadRejected, OSError) as problem:
            code = EXIT_SOURCE
            if isinstance(problem, DigestMismatch):
                code = EXIT_DAMAGED
            raise BatchError(
                f"{task.model} version {task.version} cannot be loaded: {problem}", code
            ) from None
        self._task = task
        self._options = orjson.loads(task.options)

        # Checked here with an empty context: one message, and not one for each user.
        try:
            body = {**self._options, "context": {}}
            request = from_body(RecommendationRequest, body, Target(), self._settings)
            corpus = choose_index(self._version, request.index)[1].corpus
            check_attributes(corpus, request.attributes, "attributes")
        except ServiceError as problem:
            raise BatchError(str(problem), EXIT_USAGE) from None
        self._types = {"ids": _TYPES[corpus.entry.id_dtype], "scores": pa.float32()}
        for name in request.attributes:
            self._types[f"attribute:{name}"] = _TYPES[corpus.entry.attributes[name]]
        self._id_dtype = corpus.entry.id_dtype
        # Users who are computed together, each with as many candidates.
        self._users = max(1, _CANDIDATES // max(1, request.retrieved_count))

    def lists(self, rows: Rows) -> tuple[pa.Table, list[str]]:
        """Returns the rows of a block's users, and what is wrong with those who have no list."""
        values_by_column = [self._values(rows, name) for name in rows.columns]
        user_requests = [
            self._user_request(dict(zip(rows.columns, values, strict=True)))
            for values in zip(*values_by_column, strict=True)
        ]
        user_columns: list[Mapping[str, Any]] = [{}] * len(user_requests)

        # The requests of one body have the same features: users who lack one are a group of their
        # own.
        groups: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
        for position, user_request in enumerate(user_requests):
            features = tuple(sorted(user_request["context"]))
            groups.setdefault((_CONTEXT_ID in user_request, features), []).append(position)
        for positions in groups.values():
            for first in range(0, len(positions), self._users):
                chunk = positions[first : first + self._users]
                lists = self._recommend([user_requests[position] for position in chunk])
                for position, columns in zip(chunk, lists, strict=True):
                    user_columns[position] = columns

        types = {name: pa.list_(kind) for name, kind in self._types.items()}
        types["error"] = pa.string()
        arrays = [
            pa.array([columns.get(name) for columns in user_columns], kind)
            for name, kind in types.items()
        ]
        ids = single_cells(rows, self._task.id_column).array
        problems = [columns["error"] for columns in user_columns if "error" in columns]
        return pa.table([ids, *arrays], [self._task.id_column, *types]), problems

    def _values(self, rows: Rows, column: str) -> list[Any]:
        """Returns the values of a column as requests have them; None is not sent."""
        manifest = self._version.manifest
        readers = readers_of(manifest.features).get(column)
        if column == self._task.exclude_column:
            return sent_values(rows, column, self._id_dtype, lists=True)
        if not readers:
            return plain_values(rows, len(rows))[column]
        feature = input_entry(column, manifest.features[readers[0]])
        lists = holds_lists(feature)
        values = sent_values(rows, column, sent_dtype(feature, column), lists=lists)
        # Without its numbers, an input is missing; a list of ids may be empty.
        if lists and isinstance(feature, DenseFeature):
            values = [value or None for value in values]
        return values

    def _user_request(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns a user as one of the requests of a JSON body; what is null is not sent."""
        # The id is a feature only if the model takes one of its name.
        task = self._task
        features = {name: value for name, value in row.items() if value is not None}
        if task.id_column not in self._version.manifest.inputs and task.id_column != _CONTEXT_ID:
            features.pop(task.id_column, None)
        user_request: dict[str, Any] = {}
        if task.exclude_column:
            user_request["exclude_ids"] = features.pop(task.exclude_column, [])
        if _CONTEXT_ID in features:
            user_request[_CONTEXT_ID] = features.pop(_CONTEXT_ID)
        return {**user_request, "context": features}

    def _recommend(self, user_requests: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """Returns the columns of each user; of one who has no list, `error` alone."""
        try:
            body = {**self._options, "requests": user_requests}
            request = from_body(RecommendationRequest, body, Target(), self._settings)
            request = request.without(self._version.manifest.unread_inputs)
            execution = Execution("recommend")
            computation = select(self._version, request, self._settings, execution)
            result = completed(computation)
        except _AT_FAULT as problem:
            # One user fails all that are computed together. Halving finds this user in a few calls.
            if len(user_requests) == 1:
                return [{"error": str(problem)}]
            half = len(user_requests) // 2
            return self._recommend(user_requests[:half]) + self._recommend(user_requests[half:])
        columns = {"ids": result.ids.tolist(), "scores": result.scores}
        columns |= {f"attribute:{name}": values for name, values in result.attributes.items()}
        ends = result.offsets.tolist()
        return [
            {name: values[first:last] for name, values in columns.items()}
            for first, last in pairwise(ends)
        ]
