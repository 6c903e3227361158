"""What `forked_runs` has imported before a command begins."""

import gc

import export.cli.commands
import export.jobs.bundle_job  # noqa: F401
from export.graphs.loading import load_tensorflow

load_tensorflow()
import tensorflow_recommenders  # noqa: E402, F401

# LiteRT's converter collects all garbage four times for each export; none of the modules is any.
gc.freeze()
