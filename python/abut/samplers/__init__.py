"""What draws tokens from the policy: the protocols, and one module for each kind of sampler."""
