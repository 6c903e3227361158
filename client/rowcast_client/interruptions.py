"""What an interruption does to a program before and after it has imported what it needs.

`scripts/generate_stubs` copies this module to the client, which is a distribution of its own.
"""

from __future__ import annotations

import signal


def end_when_interrupted() -> None:
    """Lets an interruption end the process at once, as long as nothing is to be cleaned up: imports
    would print a traceback, or lose the interruption. A program that ignores it goes on to.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_when_interrupted() -> None:
    """Lets an interruption raise KeyboardInterrupt again after `end_when_interrupted`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
