"""What logged data can support: one scan of the data, and the checks of its statistics."""
