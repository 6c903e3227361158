"""Runs the steps of an export, here or on Ray, and publishes the result."""
