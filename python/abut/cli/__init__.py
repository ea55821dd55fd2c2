"""The `abut` command: one file for each of its commands."""
