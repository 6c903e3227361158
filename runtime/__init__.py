"""Runs towers with LiteRT or TensorFlow, and searches indexes with ScaNN or exactly."""
