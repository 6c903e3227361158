"""Looks up the features of requests, and computes vectors from them."""
