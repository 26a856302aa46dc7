"""Golden tests: every algorithm against a plain reference written from its paper that imports nothing of birl."""
