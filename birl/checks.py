"""One vocabulary of argument checks."""
