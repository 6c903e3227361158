"""What `forked_runs` has imported before a command begins."""

# ruff: noqa: E402, F401 - TensorFlow is loaded before what imports it

import export.cli.commands
import export.jobs.bundle_job
import export.jobs.saved_model_job
from export.graphs.loading import load_tensorflow

load_tensorflow()
import tensorflow_recommenders

import export.tensorflow_models.front_end
import runtime.scann
