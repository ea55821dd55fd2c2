"""A page that shows recorded rollouts, token by token, in a browser and without a server."""
