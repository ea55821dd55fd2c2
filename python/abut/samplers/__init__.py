"""Samplers draw tokens from the policy: the protocols, and one module for each kind."""
