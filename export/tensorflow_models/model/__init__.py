"""Builds the user's model without its tables, and traces its calls."""
