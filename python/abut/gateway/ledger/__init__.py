"""The ledger: what was said and sampled in the rollouts of agents, exact to the token."""
