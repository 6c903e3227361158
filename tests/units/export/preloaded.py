"""What `forked_runs` has imported before a command begins."""

import export.cli.commands
import export.jobs.bundle_job  # noqa: F401
from export.graphs.loading import load_tensorflow

load_tensorflow()
import tensorflow_recommenders  # noqa: E402, F401
