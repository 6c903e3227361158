"""The manifest and its parts, file names, dtypes, checksums."""
