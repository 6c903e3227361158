"""Opens checkpoints, lists their tables and reads their rows."""
