"""The ledger: all messages and samples of agents' rollouts, exact to the token."""
