"""``python -m birl`` is ``birl``."""

from birl.cli import main
from birl.cli.run_processes import follow_parent

if __name__ == "__main__":
    follow_parent()
    raise SystemExit(main())
