"""Servers and clusters that tests start, real ones and stand-ins."""
