"""Turns lookups into features: what their ids are, and which of them stay inside of a tower."""
