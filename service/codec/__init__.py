"""Requests and answers as JSON, as protobuf, and as the headers around them. No transport, no model."""
