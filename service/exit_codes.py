"""The exit codes of `rowcast-serve`."""

from __future__ import annotations

EXIT_OK = 0
"""The service has drained, or the command is done."""
EXIT_BUG = 1
"""An unexpected exception; the log has it."""
EXIT_USAGE = 2
"""Invalid settings, or an address that cannot be bound."""
EXIT_REQUIRED_MODEL = 7
"""A required model could not be loaded at start."""
EXIT_INTERRUPTED = 130
"""A second signal came while the service drained."""
