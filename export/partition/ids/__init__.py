"""Recognizes how ids become rows: a module for each kind of rule."""
