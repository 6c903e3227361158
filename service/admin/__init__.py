"""The commands of operators, their API, and the status of a service."""
