"""The rollout worker of `AsyncGRPOTrainer`, which plays rollouts while the trainer trains."""
