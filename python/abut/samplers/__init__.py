"""Samplers for real models, one module for each: `transformers` (in process)."""
