"""Threads, event loops and deadlines that foreign code cannot block."""
