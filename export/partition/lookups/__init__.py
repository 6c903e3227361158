"""Lookups of a traced call, whichever front end makes them, and the rows that they read."""
