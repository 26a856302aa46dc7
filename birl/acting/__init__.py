"""Policies at work: ways to act, the actor beside an environment, explorers and exports."""
