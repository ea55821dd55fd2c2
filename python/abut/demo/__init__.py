"""A tiny model, its tokenizer, and the training run of `abut demo`."""
