"""Environments of functions that the policy calls."""
