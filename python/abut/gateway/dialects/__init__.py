"""The protocols that clients speak, one file for each."""
