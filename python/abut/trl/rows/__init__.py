"""The rows of a generation batch, from the lists of the `rollout_func` to the loss of a piece."""
