"""Turns the features of requests into the inputs of towers: ids, rows, combined vectors."""
