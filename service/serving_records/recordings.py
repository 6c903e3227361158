"""Requests that TensorFlow Serving recorded, for the replay against a new version.

The files of a model lie in its directory under `replay_dir`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bundle.errors import RecordDamaged
from bundle.storage.tfrecords import READ_ERRORS, read_records
from service.config import ServiceSettings, SettingsError
from service.observability import logging
from service.request_log.record import BODY_BYTES_MAX
from service.serving_records.logged_requests import LoggedRequest, read_elwc, read_prediction_log
from tensors.errors import NoRequest

_HIDDEN = (".", "_")
"""The first characters of the names of files that are not read, such as a file that is being
copied.
"""
_GZIP_SUFFIX = ".gz"

_log = logging.logger(__name__)


def check_readable(settings: ServiceSettings) -> None:
    """Checks at start that there are recordings, if the settings name some.

    Raises:
      SettingsError: The directory does not exist.
    """
    directory = settings.replay_dir
    if directory is not None and not directory.is_dir():
        raise SettingsError(
            f"--replay-dir (or ROWCAST_REPLAY_DIR): {directory} is no directory; one with a "
            "directory of TFRecord files for each model was expected"
        )


def read_recordings(settings: ServiceSettings, model: str) -> Iterator[LoggedRequest]:
    """Yields the recorded requests of a model: first those of the newest file, each file in its
    order.

    Records without a request that the service computes are left out, and so is everything behind a
    damaged record: the file may still be written. The first problem of a file is logged.
    """
    # Shards compute no such requests.
    if settings.replay_dir is None or settings.shard is not None:
        return
    for path in _newest_files(settings.replay_dir / model):
        problems: list[str] = []
        try:
            for number, record in enumerate(read_records(path, compressed=_is_gzip(path)), 1):
                # The limit of the service's own recordings.
                if len(record) > BODY_BYTES_MAX:
                    continue
                try:
                    yield _read(record, model, settings)
                except NoRequest as problem:
                    problems.append(f"record {number} {problem}")
        except (RecordDamaged, *READ_ERRORS) as problem:
            problems.append(str(problem))
        if problems:
            extra = logging.fields(model=model, file=path.name, problem=problems[0])
            _log.warning("recording_unreadable", extra=extra)


def _newest_files(directory: Path) -> list[Path]:
    """Returns the files of a directory, the file that was changed last first."""
    times = {}
    try:
        for path in directory.iterdir():
            if not path.name.startswith(_HIDDEN) and path.is_file():
                times[path] = path.stat().st_mtime_ns
    except OSError:
        # There are no recordings of this model, or a file was removed just now.
        return []
    return sorted(times, key=lambda path: (times[path], path.name), reverse=True)


def _is_gzip(path: Path) -> bool:
    return path.suffix == _GZIP_SUFFIX


def _read(record: bytes, model: str, settings: ServiceSettings) -> LoggedRequest:
    if settings.replay_format == "elwc":
        return read_elwc(record, model, settings.replay_signature)
    return read_prediction_log(record, model)
