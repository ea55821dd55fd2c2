"""Chat templates: what they write around messages, found by rendering and proved."""
