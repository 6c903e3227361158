"""Recording and replaying as the settings say: what a process keeps of its calls, and what it asks of a new version."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryFile

from service.errors import ServiceError
from service.generations.generation import Generation
from service.generations.switch import Switch
from service.recordings.files import read_newest
from service.recordings.recorder import Recorder
from service.recordings.replay import CALLS_MAX, replay
from service.settings import ServiceSettings, SettingsError

NAME = ".rowcast-recordings"
"""Under the root, unless a setting says otherwise: no model has such a name."""


def check_recordings(settings: ServiceSettings) -> None:
    """Finds out at once whether what is to be recorded can be written.

    Raises:
      SettingsError: it cannot, where it is to lie.
    """
    if not settings.record_rate:
        return
    directory = settings.record_dir or settings.root / NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            return
    except OSError as problem:
        raise SettingsError(
            f"--record-dir (or ROWCAST_RECORD_DIR): {directory} cannot be written: {problem.strerror or problem}"
        ) from problem


class Recording:
    """What one process records, and replays of all processes' recordings."""

    def __init__(self, settings: ServiceSettings, switch: Switch, process: str) -> None:
        """Begins to record, unless the settings say no.

        Args:
          process: tells its files from those of the other workers.
        """
        self._settings, self._switch = settings, switch
        self._directory = settings.record_dir or settings.root / NAME
        self._bytes_max = settings.record_bytes_max // settings.workers
        self._recorder: Recorder | None = None
        if settings.record_rate:
            self._recorder = Recorder(self._directory, settings.record_rate, self._bytes_max, process)
        self.record = None if self._recorder is None else self._recorder.offer
        """For doors."""

    def try_out(self, generation: Generation, pause: Callable[[], object]) -> None:
        """Asks a version, before it is served, what the one that answers now was asked.

        Args:
          pause: called after each call.
        Raises:
          LoadRefused: it fails a call that the other one answers.
        """
        if self._recorder is None:
            return
        recorded = read_newest(self._directory / generation.model, CALLS_MAX, self._bytes_max)
        if not recorded:
            return
        try:
            lease = self._switch.lease(generation.model)
        except ServiceError:
            replay(generation, None, recorded, self._settings, pause)
            return
        with lease as before:
            replay(generation, before, recorded, self._settings, pause)

    def outcomes(self) -> dict[tuple[str, ...], float]:
        """Returns what became of the calls that were to be kept, by outcome; empty: none are."""
        return {} if self._recorder is None else {(what,): count for what, count in self._recorder.outcomes.items()}

    def close(self) -> None:
        """Ends the recording."""
        if self._recorder is not None:
            self._recorder.close()
