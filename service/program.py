"""The program of a running service: its supervisor, which `rowcast-serve` becomes, and the workers
that the supervisor starts.

Each process imports what it needs once it runs: the supervisor stays small.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from command_line.interruptions import end_when_interrupted

if TYPE_CHECKING:
    from service.coordinator import Coordinator
    from service.workers.worker_start import WorkerStart

# The supervisor, and a worker, whose first import is this module. Both handle signals later.
if __name__ in {"__main__", "__mp_main__"}:
    end_when_interrupted()


def create_app(start: WorkerStart, coordinator: Coordinator, is_replacement: bool) -> Any:
    """Returns the ASGI application of a worker."""
    from service import app

    return app.create_app(start, coordinator, is_replacement)


def main() -> None:
    """Supervises a service. The command line has the descriptor of a file with its settings."""
    from service.exit_codes import EXIT_USAGE
    from service.observability import logging
    from service.workers.supervisor import Supervisor

    with open(int(sys.argv[1]), "rb") as file:
        settings = json.load(file)
    logging.configure(settings["log_level"])
    code = EXIT_USAGE
    try:
        code = Supervisor(settings, create_app).run()
    except OSError as problem:
        about = logging.fields(problem=str(problem))
        logging.logger(f"{__package__}.program").error("cannot_start", extra=about)
    finally:
        # Not `shutdown`: threads may still log.
        logging.finish()
    sys.exit(code)


if __name__ == "__main__":
    main()
