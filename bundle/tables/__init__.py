"""Table rows in mapped files, gathered and combined; keys and vocabularies."""
