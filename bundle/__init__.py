"""The bundle on disk: its format, and how tables, features and stores are read and written."""
