"""The `abut` command: `records.py` holds the commands that read records, each other file one."""
