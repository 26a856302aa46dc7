"""Models of other libraries, read without running their code."""
