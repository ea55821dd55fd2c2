"""How a template writes calls: found by rendering some, and proved."""
