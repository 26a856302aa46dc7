"""Policies at work: acting with memory, exploration, and exports to other programs."""
