"""The messages of the calls, each declared once; JSON, protobuf and merging follow from it."""
