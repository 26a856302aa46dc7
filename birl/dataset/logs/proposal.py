"""Proposals of a schema for a log, from the names and contents of its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from birl.dataset.log_schema import to_toml
from birl.dataset.logs.columns import Column, check_columns, check_not_empty, column_from_arrow, row_labels
from birl.dataset.logs.files import Logs, resolve_sources
from birl.errors import DataError, ShapeError

NO_REWARD: Final = "no column is named like the reward, so it may be among the observations: move it to [reward]"
_REQUIRED: Final = ("episode", "action", "reward")
_MAX_DISTINCT: Final = 1000  # largest number of distinct values that are counted
_MAX_CATEGORIES: Final = 20  # largest number of categories that are proposed
_MAX_COLUMNS: Final = 2000
_NESTED: Final = "structures, or lists of zero or different lengths"

# Common names, and names in d3rlpy, Minari, RLDS, RLlib, LeRobot, ReAgent, Open Bandit and VW.
_NAMES: Final = {
    "episode": "episode|episode_?ids?|episode_?index|eps_?id|mdp_?id|traj(ectory)?(_?id)?|session(_?id)?|trip(_?id)?",
    "time": "time|times|timestamp|time_?step|ts|t|at|step|step_?(id|index)|sequence_?number|date|datetime",
    "action": "actions?|act|a|chosen_?action|_?label_?action",
    "reward": "rewards?|r|_?label_?reward|next[._]rewards?",
    "terminated": "next[._](done|terminated)|terminated|terminateds|terminals?|is_?terminal|dones?|_?done_?",
    "truncated": "next[._]truncated|truncated|truncateds|truncations?|time_?outs?|is_?last",
    "propensity": "propensity(_?scores?)?|propensities|p_?scores?|pscore|action_?prob(ability)?|prob(ability)?|p"
    "|p_?action|pi_?b|behaviou?r_?prob(ability)?|logging_?prob(ability)?|action_?logp|log_?p(rob)?|action_?log_?prob"
    "|_?label_?probability",
    "mask": "action_?mask|possible_?actions_?mask|allowed(_?actions)?|legal_?actions(_?mask)?",
    "logger": "logger|policy(_?(id|name|version))?|model_?(id|version)|behaviou?r_?policy",
    "cluster": "cluster|user(_?id)?|customer(_?id)?|patient(_?id)?|machine(_?id)?|device(_?id)?|uid",
    "next": "next_?(obs|observations?|state|features|state_?features|action|actions)|new_?obs",
    "outcome": r"next[._]success",
    "number": "frame_?index|row_?(index|number)",
}  # fmt: skip
_UNUSED: Final = {
    "next": "the next row of the episode has it",
    "outcome": "it becomes known only after the action",
    "number": "it counts rows",
}
_ROLES: Final = {role: re.compile(names, re.IGNORECASE) for role, names in _NAMES.items()}


@dataclass
class Profile:
    """Summary statistics of a column."""

    kind: str = ""
    width: int = 0
    missing: int = 0
    infinite: int = 0
    low: Any = None  # a numpy number or datetime64
    high: Any = None
    values: dict[str | float, None] = field(default_factory=dict)
    whole: bool = True

    def add(self, column: Column, name: str) -> None:
        """Update the statistics with a chunk of rows."""
        self.missing += int(column.missing.sum())
        present = column.values[~column.missing]
        if not len(present):
            return
        width = present.shape[1] if present.ndim > 1 else 0
        kind = column.kind if self.kind in ("", column.kind) else "numbers"
        numbers = column.kind not in ("text", "dates") and self.kind not in ("text", "dates")
        if self.kind and (width != self.width or (kind != self.kind and not numbers)):
            raise DataError(
                f"column {name!r:.60} holds {self.kind} and {column.kind}, "
                "or lists of different lengths: give it one type"
            )
        self.kind, self.width = kind, width
        if present.dtype.kind == "f":
            self.infinite += int(np.isinf(present).sum())
            present = present[np.isfinite(present)]
        if column.labels is not None:
            new = [column.labels[index] for index in np.unique(present)]
        elif present.size:
            self.low = present.min() if self.low is None else min(self.low, present.min())
            self.high = present.max() if self.high is None else max(self.high, present.max())
            self.whole &= present.dtype.kind != "f" or bool(np.all(present == np.floor(present)))
            new = [] if width or len(self.values) > _MAX_DISTINCT else np.unique(present)[: _MAX_DISTINCT + 1].tolist()
        else:
            new = []
        for value in new:
            if len(self.values) <= _MAX_DISTINCT:
                self.values[value] = None

    def __str__(self) -> str:
        words = [f"lists of {self.width} {self.kind}" if self.width else self.kind or "only nulls"]
        if self.low is not None:
            low, high = (f"{end:.6g}" if self.kind == "numbers" else str(end)[:26] for end in (self.low, self.high))
            words.append(f"from {low} to {high}")
        if not self.width and self.kind != "true/false":
            words.append(
                f"{'over ' if len(self.values) > _MAX_DISTINCT else ''}{min(len(self.values), _MAX_DISTINCT)} different"
            )
        words += [f"{self.infinite} infinite, which is an error"] * bool(self.infinite)
        return ", ".join(words + [f"{self.missing} missing"] * bool(self.missing))


@dataclass(frozen=True)
class Proposal:
    """A proposed schema, for review and correction.

    Attributes:
        text: the schema in TOML, with the reason for each line.
        missing: the roles ``"episode"``, ``"action"`` and ``"reward"`` that match no name of a column.
    """

    text: str
    missing: tuple[str, ...]


def propose(logs: Logs) -> Proposal:
    """Propose a schema for the logs.

    If several columns could have a role, all are listed and none is assigned.

    Args:
        logs: files, patterns such as ``"logs/*.parquet"``, or other sources.

    Raises:
        FileError, DataError: if a file cannot be read.
        MissingExtraError: if pyarrow is not installed.
    """
    profiles: dict[str, Profile] = {}
    rows = 0
    sources = resolve_sources(logs)
    for source in sources:
        begin = rows
        for batch in source.read(None):
            names = tuple(batch.schema.names)
            if len(names) > _MAX_COLUMNS:
                raise DataError(
                    f"{source} has {len(names)} columns, a schema is proposed for at most {_MAX_COLUMNS}: write one "
                    "by hand, which names the relevant ones"
                )
            check_columns(names, names, str(source))
            for name in names:
                profile = profiles.setdefault(name, Profile())
                try:
                    profile.add(
                        column_from_arrow(batch.column(name), name, row_labels(str(source), rows - begin)), name
                    )
                except ShapeError:  # structures, or lists of different lengths
                    profile.kind = _NESTED
            rows += batch.num_rows
        check_not_empty(rows - begin, str(source))
    found = _match_roles(list(profiles))
    text = _schema_text(profiles, found, rows, [str(source) for source in sources])
    return Proposal(text, tuple(role for role in _REQUIRED if not found[role]))


def _match_roles(names: list[str]) -> dict[str, list[str]]:
    """Match the names of columns to roles."""
    found: dict[str, list[str]] = {role: [] for role in _ROLES}
    for name in names:
        if name == "index" and "frame_index" in names:  # LeRobot's
            found["number"].append(name)
            continue
        for role, pattern in _ROLES.items():
            if pattern.fullmatch(name):
                found[role].append(name)
                break
    return found


def _schema_text(profiles: dict[str, Profile], found: dict[str, list[str]], rows: int, files: list[str]) -> str:
    """Return the text of the proposed schema."""
    assigned = {name for names in found.values() for name in names}
    lines = [
        f"# Proposed for {rows} rows of {_comment(', '.join(files[:5]))}{' and others' * (len(files) > 5)}.",
        "# Check each line: an error here affects every result.",
    ]
    lines += [f"# {text}" for text in _missing_roles(found)] + [""]
    candidates = {role: [] if found[role] else _candidates(role, profiles, assigned, rows) for role in _CONTENT_RULES}
    for role in ("episode", "time", "terminated", "truncated", "logger", "cluster"):
        lines += _role_lines(role, role, found[role], profiles, role == "episode", candidates.get(role, []))
    if not found["episode"]:
        lines.append("# If every row is a decision of its own, as in a contextual bandit: one_step = true")
    if not found["time"]:
        lines.append("# Without a time, the rows of an episode must be in order in the log.")
    if not found["terminated"]:
        lines.append('# No column is named like the ends of the task. If it never ends: unmarked = "truncated".')
        lines.append('# If the last step of every episode is its end: unmarked = "terminated".')
    else:
        lines.append('# unmarked = "truncated"   # where the log or a limit cut episodes, which then have no mark')
    lines.append("")
    for name in (name for name in profiles if name not in assigned):
        roles = [word for role, word in (("terminated", "end"), ("action", "action")) if name in candidates[role]]
        proposed = [] if name in candidates["time"] else _observation_lines(name, profiles[name], rows)
        if name in candidates["propensity"] and not roles:
            proposed.insert(
                0,
                f"# if {_comment(name)} is the probability of the logged action, remove it here and name it in "
                "[propensity]",
            )
        if name in candidates["reward"] and not roles:
            proposed.insert(0, f"# if {_comment(name)} is the reward, remove it here and name it in [reward]")
        if roles:  # effects of an action must not become observations by mistake
            what = " or the ".join(roles)
            reason = f"# {_comment(name)} may be the {what}; it is an observation only if it was known before"
            proposed = [reason, *(line if line.startswith("#") or not line else f"# {line}" for line in proposed)]
        lines += proposed
    lines += ["[action]", *_role_lines("action", "column", found["action"], profiles, True, candidates["action"])]
    if len(found["action"]) == 1:
        lines += _action_lines(profiles[found["action"][0]])
    else:
        lines.append('# kind = …   # needed: "discrete", with values = […] or size = …, or "continuous"')
    lines += _role_lines("mask", "mask", found["mask"], profiles, False)
    lines += ["", "[reward]", *_role_lines("reward", "column", found["reward"], profiles, True, candidates["reward"])]
    if not found["reward"]:
        lines.append("# Write the name of the reward's column here, and remove it above: it is not an observation.")
    lines.append("# lower = 0.0   # the smallest possible reward, which some estimates need")
    lines.append("# delay = …   # if a reward is final only later than its step: after how long (seconds, for dates)")
    dates = [name for name in profiles if _CONTENT_RULES["time"](profiles[name], rows) and [name] != found["time"]]
    lines += [f"# known_at = {to_toml(name)}   # or, if it is the time at which the reward is final" for name in dates]
    lines.append("")
    if len(found["propensity"]) == 1:
        name = found["propensity"][0]
        lines += [
            "[propensity]",
            *_role_lines("propensity", "column", [name], profiles, False),
            _propensity_kind(name, profiles[name]),
        ]
    elif found["propensity"]:
        lines += ["# [propensity]", *_role_lines("propensity", "column", found["propensity"], profiles, False)]
    else:
        lines.append("# No column is named like probabilities of the logged actions: evaluation then relies on models.")
        if candidates["propensity"]:
            lines += [
                "# [propensity]",
                *_role_lines("propensity", "column", [], profiles, False, candidates["propensity"]),
            ]
    for name, why in ((name, why) for role, why in _UNUSED.items() for name in found[role]):
        lines.append(f"# not used: {to_toml(name)}, {_comment(profiles[name])}: {why}")
    return "\n".join(lines) + "\n"


def _missing_roles(found: dict[str, list[str]]) -> list[str]:
    """Return sentences about required roles that no column, or more than one, could have."""
    none = [role for role in _REQUIRED if not found[role]]
    several = [role for role in _REQUIRED if len(found[role]) > 1]
    others = [role for role in none if role != "reward"]
    sentences = [f"no column is named like the {' or the '.join(others)}: name it below."] * bool(others)
    sentences += [NO_REWARD] * ("reward" in none)
    if several:
        sentences.append(f"several columns are named like the {' and the '.join(several)}: choose one below.")
    return sentences


def _comment(value: object) -> str:
    """Escape a value for a TOML comment."""
    return to_toml(str(value))[1:-1]


_CONTENT_RULES: Final[dict[str, Callable[[Profile, int], bool]]] = {
    "time": lambda profile, rows: profile.kind == "dates" and len(profile.values) > 1,
    "episode": lambda profile, rows: (
        profile.kind in ("text", "whole numbers") and _MAX_CATEGORIES < len(profile.values) < rows
    ),
    "terminated": lambda profile, rows: profile.kind in ("true/false", "whole numbers") and {*profile.values} == {0, 1},
    "action": lambda profile, rows: (
        profile.kind in ("text", "whole numbers") and 1 < len(profile.values) <= min(_MAX_CATEGORIES, rows / 2)
    ),
    "reward": lambda profile, rows: (
        profile.low != profile.high
        and (
            profile.kind in ("numbers", "true/false")
            or (profile.kind == "whole numbers" and len(profile.values) < rows)
        )
    ),
    "propensity": lambda profile, rows: (
        profile.kind == "numbers"
        and not profile.whole
        and profile.low is not None
        and profile.low != profile.high
        and profile.low > 0
        and profile.high <= 1
    ),
}
"""Checks whether a column could have a role by its contents, for roles that no name matches."""


def _candidates(role: str, profiles: dict[str, Profile], assigned: set[str], rows: int) -> list[str]:
    """Return the columns whose contents fit a role."""
    fits = _CONTENT_RULES[role]
    return [
        name for name, profile in profiles.items() if name not in assigned and not profile.width and fits(profile, rows)
    ]


def _role_lines(
    role: str, key: str, names: list[str], profiles: dict[str, Profile], needed: bool, candidates: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a role: an assignment if one column matches, otherwise comments with the candidates."""
    if len(names) == 1:
        return [f"{key} = {to_toml(names[0])}   # its name; {_comment(profiles[names[0]])}"]
    if names:
        lines = [f"# {key} = {to_toml(name)}   # {_comment(profiles[name])}" for name in names]
        kind = f"the mark {role}" if role in ("terminated", "truncated") else f"the {role}"
        return [f"# {len(names)} columns could be {kind}; choose one:", *lines]
    lines = [f"# {key} = …   # needed: no column is named like the {role}"] if needed else []
    return lines + [f"# {key} = {to_toml(name)}   # it may be: {_comment(profiles[name])}" for name in candidates]


def _observation_lines(name: str, profile: Profile, rows: int) -> list[str]:
    lines = ["[[observation]]", f"column = {to_toml(name)}   # {_comment(profile)}"]
    if profile.kind == "text":
        if len(profile.values) > _MAX_CATEGORIES or len(profile.values) > rows / 2:
            reason = "text with too many distinct values for categories"
            return [f"# not used: {to_toml(name)}, {_comment(profile)}: {reason}", ""]
        lines.append(f"values = {to_toml(sorted(profile.values))}   # each becomes an element of the observation")
        lines.append("unknown = true" if profile.missing else "# unknown = true   # if other values may occur later")
    elif profile.kind not in ("numbers", "whole numbers", "true/false"):
        return [f"# not used: {to_toml(name)}, {_comment(profile)}: it is not numeric", ""]
    elif profile.low == profile.high and not profile.width:
        return [f"# not used: {to_toml(name)}, {_comment(profile)}: it is always the same", ""]
    elif profile.missing:
        lines.append('# missing = "forward"   # or "drop", or "fill": one is required')
        lines.append("# fill = 0.0")
        lines.append("# indicator = true")
    return [*lines, ""]


def _action_lines(profile: Profile) -> list[str]:
    if profile.kind == "text":
        values = to_toml(sorted(profile.values))
        return ['kind = "discrete"', f"values = {values}   # all logged actions: add other possible ones"]
    if profile.width or not profile.whole:
        return ['kind = "continuous"']
    size = int(profile.high) + 1 if profile.high is not None else 1
    if profile.kind == "whole numbers" and profile.low < 0:
        return ['kind = "discrete"', f"values = {to_toml(sorted(profile.values))}   # all logged actions: add others"]
    if profile.kind == "numbers":
        return [f'# kind = "continuous"   # or "discrete" with size = {size}: whole numbers stored as others', ""]
    logged = sorted(profile.values)
    if len(logged) < size and len(logged) <= _MAX_DISTINCT:
        return ['kind = "discrete"   # whole numbers', f"values = {to_toml(logged)}   # all logged actions: add others"]
    return ['kind = "discrete"   # whole numbers', f"size = {size}   # the largest logged action plus one"]


def _propensity_kind(name: str, profile: Profile) -> str:
    if profile.width:
        return 'kind = "vector"'
    if "log" in name.lower() or (profile.high is not None and profile.high <= 0):
        return 'kind = "log"   # its name, or no value above 0; "log_density" of continuous actions'
    if profile.high is not None and profile.high > 1:
        return 'kind = "density"   # values above 1 are no probabilities'
    return 'kind = "probability"   # "density" of continuous actions'
