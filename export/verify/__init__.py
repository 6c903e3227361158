"""Compares what was written with the checkpoint and the original model."""
