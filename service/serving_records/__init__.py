"""Requests in records of TensorFlow Serving, for the warm-up and the replay."""
