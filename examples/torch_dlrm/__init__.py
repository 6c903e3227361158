"""DLRM in PyTorch: the tables of a checkpoint, and a tower as a graph."""
