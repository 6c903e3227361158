"""The command line: `rowcast-serve`, `ctl`, `pull` and `recommend`."""
