"""What the exporter knows of a model, whichever framework trained it."""
