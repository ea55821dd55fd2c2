"""Threads, loops and deadlines that foreign code cannot hold hostage."""
