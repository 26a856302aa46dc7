"""Audit of logged data: one scan of the data, and checks of its statistics."""
