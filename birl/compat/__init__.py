"""Models of other libraries, read without running code."""
