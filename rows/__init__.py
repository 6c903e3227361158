"""Reads the files of users, in batches of checked columns: CSV, JSON lines, Parquet, TFRecord."""
