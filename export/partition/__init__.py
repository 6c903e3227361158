"""Partitions the calls of a model, traced as TensorFlow graphs, at their lookups: into tables,
features and towers. All front ends share it; it has no private name of a framework.
"""
