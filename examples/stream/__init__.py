"""A consumer that applies topics of Kafka to a served model, each message exactly once."""
