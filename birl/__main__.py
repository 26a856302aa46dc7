"""``python -m birl`` is ``birl``."""

from birl.cli import main
from birl.cli.run_processes import hold_leash

if __name__ == "__main__":
    hold_leash()
    raise SystemExit(main())
