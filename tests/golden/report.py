"""Print the table of goldens: ``python -m tests.golden.report``."""

from __future__ import annotations

import time

from tests.golden.table import CASES


def main() -> None:
    """One row for each golden."""
    print(f"{'golden':28s} {'parameters':>11s} {'losses':>11s} {'moved':>9s} {'seconds':>8s}")
    for case in CASES:
        begin = time.perf_counter()
        report = case.run()
        print(
            f"{case.name:28s} {max(report.parameters.values()):11.1e} {max(report.metrics.values(), default=0):11.1e} "
            f"{max(report.moved.values()):9.2f} {time.perf_counter() - begin:8.1f}"
        )


if __name__ == "__main__":
    main()
