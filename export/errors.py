"""The errors that stop an export, with their exit codes.

ExportError
├── UsageError              2   an invalid recipe or option
├── CheckpointError         3   a checkpoint that is missing, damaged or of an unsupported format
├── NotConvertible          4   a model or table that cannot be exported as requested
├── VerificationFailed      5   the export differs from the trained model; nothing is published
└── DestinationError        6   the destination exists, is full, or cannot be written
"""

from __future__ import annotations

from collections.abc import Sequence


class ExportError(Exception):
    """An error that stops an export. The message names what is wrong and the remedy.

    Attributes:
      exit_code: The exit code of the program.
      code: The code of the error in its JSON.
    """

    exit_code = 1
    code = "INTERNAL"


class UsageError(ExportError):
    """The recipe or an option is invalid."""

    exit_code = 2
    code = "INVALID_ARGUMENT"


class CheckpointError(ExportError):
    """The checkpoint is missing, damaged or of an unsupported format."""

    exit_code = 3
    code = "CHECKPOINT"


class NotConvertible(ExportError):
    """The model or a table cannot be exported as requested."""

    exit_code = 4
    code = "NOT_CONVERTIBLE"


class VerificationFailed(ExportError):
    """The export differs from the trained model; nothing is published.

    Attributes:
      steps: Names of the job's steps whose results are wrong. The next run does them again.
    """

    exit_code = 5
    code = "VERIFICATION_FAILED"

    def __init__(self, message: str, steps: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.steps = tuple(steps)


class DestinationError(ExportError):
    """The destination exists, is full, or cannot be written."""

    exit_code = 6
    code = "DESTINATION"
