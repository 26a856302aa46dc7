"""A family of algorithms in some environments: its runs, and the table and the picture of what they scored."""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks import scores

__all__ = ["Family", "Setting", "main"]

ROOT = Path(__file__).parents[1]


class Setting(Protocol):
    """An environment, and what every algorithm and side has there; ``str`` says it in words."""

    @property
    def env(self) -> str:
        """Its name."""

    @property
    def steps(self) -> int:
        """Length of a run, in steps of the environment."""


@dataclass(frozen=True)
class Family:
    """What is run.

    Attributes:
        title: of the table.
        settings: by a short name.
        algorithms: what is run in each of them, by the same names. Those with equal ones share a table.
        peers: packages that have an algorithm, too.
        results: file of the scores; table and picture are next to it.
        evaluations: number of them in a run.
        tail: number of the last ones, whose mean is the outcome of a run.
        notes: what the table says below.
    """

    title: str
    settings: Mapping[str, Any]
    algorithms: Mapping[str, tuple[str, ...]]
    peers: Mapping[str, str]
    results: Path
    evaluations: int = 10
    tail: int = 3
    notes: str = ""

    @property
    def tasks(self) -> dict[str, scores.Task]:
        """Every algorithm in its environments."""
        return {
            f"{algorithm.lower()}-{name}": scores.Task(
                algorithm, each.env, "", each.steps, each.steps // self.evaluations
            )
            for name, each in self.settings.items()
            for algorithm in self.algorithms[name]
        }

    def report(self, options: argparse.Namespace, versions: str) -> scores.Report:
        """What evaluates a run."""
        return scores.Report(options, versions, self.tasks[options.task], self.results)

    def outcomes(self) -> dict[str, dict[str, scores.Outcome]]:
        """What is known, by task and side."""
        return scores.outcomes(self.tasks, self.results, self.tail)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Settings in which something was run; those with the same algorithms are in one table."""
        known = self.outcomes()
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, each in self.settings.items():
            if any(f"{algorithm.lower()}-{name}" in known for algorithm in self.algorithms[name]):
                found.setdefault(self.algorithms[name], {})[name] = each
        return list(found.values())

    def lines(self, group: Mapping[str, Any]) -> list[tuple[str, str, dict[str, scores.Outcome]]]:
        """Algorithm, side, and outcomes by setting, of everything that was run in a group's environments."""
        found, rows = self.outcomes(), []
        for algorithm in self.algorithms[next(iter(group))]:
            for side in scores.SIDES:
                tasks = ((name, found.get(f"{algorithm.lower()}-{name}", {}).get(side)) for name in group)
                each = {name: outcome for name, outcome in tasks if outcome is not None}
                rows += [(algorithm, side, each)] if each else []
        return rows

    def table(self) -> str:
        """The outcomes as Markdown."""
        picture = self.results.with_suffix(".svg").name
        text = [f"# {self.title}", "", f"<!-- written by benchmarks/{self.results.stem}.py -->", ""]
        text += [f"![Last scores]({picture})", ""]
        counted = f"over the last {self.tail} of {self.evaluations} evaluations of"
        text += [f"Mean return of {scores.EPISODES} greedy episodes, {counted}"]
        text += ["a run and over seeds, with 95 % bootstrap intervals over seeds. In brackets: number of seeds, and"]
        text += ["the median of the seconds that a run took, while other work was running: no benchmark of speed.", ""]
        groups = self.groups
        for group in groups:
            heads = (f"{each.env}, {each.steps:,} steps" for each in group.values())
            text += [f"| algorithm | side | {' | '.join(heads)} |", "|---" * (2 + len(group)) + "|"]
            for algorithm, side, each in self.lines(group):
                cells = (each.get(name) for name in group)
                words = (
                    f"{cell} [{len(cell.last)}, {statistics.median(cell.seconds):.0f} s]" if cell else ""
                    for cell in cells
                )
                text += [f"| {algorithm} | {scores.SIDES[side][0]} | {' | '.join(words)} |"]
            text += [""]
        settings = [f"- {setting}" for group in groups for setting in group.values()]
        return "\n".join([*text, self.notes, "", *settings, ""])

    def plot(self) -> None:
        """Draw the outcomes with their intervals, a panel for each environment and a row for each group."""
        import matplotlib
        from matplotlib.figure import Figure

        groups = [(group, self.lines(group)) for group in self.groups]
        heights = [1 + 0.3 * len(lines) for _, lines in groups]
        with matplotlib.rc_context({"svg.hashsalt": "birl", "svg.fonttype": "none"}):
            figure = Figure((11, sum(heights)), layout="constrained", facecolor="white")
            parts = figure.subfigures(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
            for part, (group, lines) in zip(parts, groups, strict=True):
                panels = part.subplots(1, len(group), sharey=True, squeeze=False)[0]
                for panel, (name, setting) in zip(panels, group.items(), strict=True):
                    for height, (_, side, each) in enumerate(lines):
                        if name in each:
                            low, high = each[name].interval
                            colour = scores.SIDES[side][1]
                            panel.plot([low, high], [height, height], color=colour, linewidth=3, alpha=0.5)
                            panel.plot(each[name].last.mean(), height, "o", color=colour)
                    panel.set_title(f"{setting.env},\n{setting.steps:,} steps", fontsize="medium")
                    panel.set_xlabel("mean return")
                    panel.grid(alpha=0.3)
                labels = [f"{algorithm}, {scores.SIDES[side][0]}" for algorithm, side, _ in lines]
                panels[0].set_yticks(range(len(lines)), labels)
                panels[0].invert_yaxis()
            metadata = {"Date": None, "Creator": None, "Title": self.title}
            figure.savefig(self.results.with_suffix(".svg"), metadata=metadata)


Run = Callable[[argparse.Namespace, Any], None]


def main(family: Family, script: str, description: str | None, run_birl: Run, run_sb3: Run | None = None) -> None:
    """Run one of the subcommands.

    Args:
        family: what is run.
        script: file that is run by the peer's interpreter.
        description: of the script.
        run_birl, run_sb3: make one run, of the options and the setting; ``None`` if there is no peer.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one run of one side")
    every = list(dict.fromkeys(name for each in family.algorithms.values() for name in each))
    run.add_argument("--env", choices=family.settings, required=True)
    run.add_argument("--algorithm", choices=every, required=True)
    run.add_argument("--side", choices=["birl", "birl-compiled", *(["sb3"] if run_sb3 else [])], required=True)
    run.add_argument("--seed", type=int, required=True)
    commands.add_parser("table", help=f"write {family.results.stem}.md and {family.results.stem}.svg")
    options = parser.parse_args()
    if options.command == "table":
        family.results.with_suffix(".md").write_text(family.table(), encoding="utf-8")
        family.plot()
        return
    if options.algorithm not in family.algorithms[options.env]:
        parser.error(f"--env {options.env} has {', '.join(family.algorithms[options.env])}, not {options.algorithm}")
    if options.side == "sb3" and options.algorithm not in family.peers:
        parser.error(f"--side sb3 has {' and '.join(family.peers)}, not {options.algorithm}")
    if options.side == "sb3" and importlib.util.find_spec("sb3_contrib") is None:
        from benchmarks.peers import peer_python

        python = peer_python("sb3-contrib", ROOT / ".bench")
        os.execv(python, [python, script, *sys.argv[1:]])
    options.task = f"{options.algorithm.lower()}-{options.env}"
    one = run_sb3 if run_sb3 is not None and options.side == "sb3" else run_birl
    one(options, family.settings[options.env])
