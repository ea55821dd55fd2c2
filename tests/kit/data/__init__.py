"""Tokenizers, templates, records and requests, and what the core is compared with."""
