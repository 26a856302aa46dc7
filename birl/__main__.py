"""``python -m birl`` is ``birl``."""

from birl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
