"""The codes that `rowcast-serve` exits with."""

from __future__ import annotations

EXIT_DONE = 0
"""Drained, or done with what was asked."""
EXIT_BUG = 1
"""An exception that nobody expected; the log has it."""
EXIT_USAGE = 2
"""Settings that are wrong, or an address that cannot be bound."""
EXIT_REQUIRED = 7
"""A required model could not be loaded at start."""
EXIT_INTERRUPTED = 130
"""A second signal came while the service drained."""
