"""What can stop an export, each with the exit code that tells it.

ExportError
├── UsageError              2   a recipe or option that cannot be meant
├── CheckpointError         3   a checkpoint that is missing, damaged or of a kind that is not read
├── NotConvertible          4   a model or table that cannot be exported as requested
├── VerificationFailed      5   what was written is not what was trained; nothing is committed
└── DestinationError        6   the destination exists, is full, or cannot be written
"""

from __future__ import annotations


class ExportError(Exception):
    """Anything that stops an export; the message names the thing and the cure."""

    exit_code = 1


class UsageError(ExportError):
    """A recipe or option that cannot be meant."""

    exit_code = 2


class CheckpointError(ExportError):
    """A checkpoint that is missing, damaged or of a kind that is not read."""

    exit_code = 3


class NotConvertible(ExportError):
    """A model or table that cannot be exported as requested."""

    exit_code = 4


class VerificationFailed(ExportError):
    """What was written is not what was trained; nothing is committed."""

    exit_code = 5


class DestinationError(ExportError):
    """The destination exists, is full, or cannot be written."""

    exit_code = 6
