"""Scripts for maintainers; each says how it is started. Tests import some."""
