"""Named tensors in the messages, records and JSON of other systems, to and from arrays."""
