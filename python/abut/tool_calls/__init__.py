"""Tool calls in what a policy wrote, as typed values."""
