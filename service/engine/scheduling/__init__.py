"""Queues requests, merges them into batches, runs compute threads."""
