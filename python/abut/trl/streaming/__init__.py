"""The rollout worker of `AsyncGRPOTrainer`: rollouts that stream while the trainer trains."""
