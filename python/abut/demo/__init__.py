"""What `abut demo` runs on: a tiny model, its tokenizer, and how it trains."""
