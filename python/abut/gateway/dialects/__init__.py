"""The protocols of clients: a file for each."""
