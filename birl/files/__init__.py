"""Archives and atomic writes; objects as JSON."""
