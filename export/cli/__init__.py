"""The command line: `rowcast-export`, its commands and reports."""
