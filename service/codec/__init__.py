"""Converts requests and responses between the engine's types, JSON and protobuf."""
