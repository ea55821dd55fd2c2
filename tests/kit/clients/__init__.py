"""Clients of the gateway and of the viewer's page, and what they do at random."""
