"""Schemas that define the roles of a log's columns, written as TOML files and saved with a policy.

::

    episode = "trip"              # or { by = "user", gap = 1800.0 }: cut at gaps; or one_step = true: every row is one
    time = "at"
    terminated = "arrived"

    [[observation]]
    column = "speed"
    missing = "forward"           # repeat the last value of the episode; `fill` before the first
    fill = 0.0
    indicator = true

    [[observation]]
    column = "weather"
    values = ["sun", "rain"]
    unknown = true                # other values are one more category, not an error

    [action]
    column = "lane"
    kind = "discrete"
    size = 3

    [reward]
    column = "reward"
    lower = 0.0

    [propensity]
    column = "probability"
    kind = "probability"
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from birl.checks import check
from birl.errors import ConfigError, FileError, did_you_mean

T = TypeVar("T")
TomlValue: TypeAlias = "str | float | bool | Sequence[str | float | bool]"
SchemaPart: TypeAlias = (
    "ObservationColumn | ActionColumns | RewardColumn | PropensityColumn | SegmentColumn | Cut | LogSchema"
)
MISSING: Final = ("error", "drop", "fill", "forward")
KINDS: Final = ("probability", "log", "vector", "density", "log_density")
_DENSITIES: Final = ("density", "log_density")
RESERVED: Final = frozenset(
    {"log_propensity", "propensities", "cluster", "logger", "time", "time_gap", "censored", "reward_pending"}
)
"""Names of extra columns with roles of their own."""
_LARGEST: Final = 3.4028234663852886e38
"""The largest number of float32, in which observations and rewards are stored."""
_MAX_VALUES: Final = 1000
_MAX_BYTES: Final = 2**22
_LONG_KEY: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")
"""A key of many parts, whose parsing takes quadratic time. Texts in quotes with as many dots are refused, too."""
_SCALAR: Final = (str, int, bool)
_NOT_BEFORE: Final = ("observation", "action", "reward", "terminated", "truncated", "propensity", "outcome", "known_at")
"""Roles of columns that cannot also be observations, because an effect of the action is not known before it."""


@dataclass(frozen=True, kw_only=True)
class ObservationColumn:
    """A column, of numbers or lists, that is part of the observation.

    Attributes:
        column: name of the column. It holds numbers, lists of equal length or, with ``values``, categories.
        values: categories, which are one-hot encoded.
        unknown: whether other and missing values form one more category; otherwise they are an error.
        missing: treatment of missing numbers: ``"error"``; ``"drop"`` the whole episode; ``"fill"`` with the number
            ``fill``; or ``"forward"``: repeat the last number of the episode, with ``fill`` before the first one.
        fill: the number for ``"fill"`` and ``"forward"``.
        indicator: whether to add an element that is 1 where the number is missing.
    """

    column: str
    values: tuple[str | int | bool, ...] = ()
    unknown: bool = False
    missing: str = "error"
    fill: float | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        name = f"observation {_check_name('column', self.column)!r:.60}: "
        _check_values(self, name)
        check(f"{name}missing", self.missing, str, choices=MISSING)
        check(f"{name}unknown", self.unknown, bool)
        check(f"{name}indicator", self.indicator, bool)
        check(f"{name}fill", self.fill, float, low=-_LARGEST, high=_LARGEST, optional=True)
        if (self.missing in ("fill", "forward")) != (self.fill is not None):
            raise ConfigError(f"{name}missing is {self.missing!r}, fill is {self.fill}: 'fill' and 'forward' need fill")
        if self.values and (self.indicator or self.missing in ("fill", "forward")):
            raise ConfigError(f"{name}a category has no fill and no indicator: unknown = true counts missing ones, too")
        if self.unknown and not self.values:
            raise ConfigError(f"{name}unknown is for categories: list them in values, or leave unknown out")


@dataclass(frozen=True, kw_only=True)
class ActionColumns:
    """The columns of logged actions.

    Attributes:
        column: name of the column. Continuous actions may be lists.
        columns: names of the columns of continuous actions with one column for each dimension.
        kind: ``"discrete"`` or ``"continuous"``.
        size: number of discrete actions ``0 … size - 1``.
        values: the discrete actions in the order of their indices; instead of ``size``.
        mask: name of a column of lists with 1 for each allowed discrete action, else 0.
    """

    kind: str
    column: str | None = None
    columns: tuple[str, ...] = ()
    size: int | None = None
    values: tuple[str | int | bool, ...] = ()
    mask: str | None = None

    def __post_init__(self) -> None:
        check("action: kind", self.kind, str, choices=("discrete", "continuous"))
        check("action: size", self.size, int, optional=True, low=1)
        _check_values(self, "action: ")
        _check_optional_names(self, "column", "mask")
        for name in self.columns:
            _check_name("action: columns", name)
        if (self.column is None) == (not self.columns):
            raise ConfigError("action needs column = (a name), or columns = [one name for each dimension], not both")
        if self.discrete and self.columns:
            raise ConfigError(f"action: columns is {list(self.columns)!r:.80}; discrete actions have one column")
        if self.discrete and (self.size is None) == (not self.values):
            raise ConfigError(
                "action: discrete actions need size = (their number), or values = [all of them], not both"
            )
        if not self.discrete and (self.size is not None or self.values or self.mask):
            raise ConfigError("action: size, values and mask are for kind = 'discrete': leave them out")

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete."""
        return self.kind == "discrete"

    @property
    def count(self) -> int:
        """Number of discrete actions."""
        return self.size or len(self.values)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.columns or (str(self.column),)


@dataclass(frozen=True, kw_only=True)
class RewardColumn:
    """The column of rewards.

    Attributes:
        column: name of the column.
        lower, upper: bounds; a reward outside them is an error. Some estimates need ``lower``.
        missing: treatment of missing rewards: ``"error"``, ``"drop"`` the episode, or ``"fill"`` with ``fill``.
        fill: the number for ``"fill"``.
        delay: longest time from a step until its reward is final, such as the return period; in seconds if times are
            dates.
        known_at: instead of ``delay``, name of a column of the times at which rewards became final; missing where they
            are not yet.
    """

    column: str
    lower: float | None = None
    upper: float | None = None
    missing: str = "error"
    fill: float | None = None
    delay: float | None = None
    known_at: str | None = None

    role: ClassVar[str] = "reward"

    def __post_init__(self) -> None:
        _check_name(f"{self.role}: column", self.column)
        for name in ("lower", "upper"):
            check(f"{self.role}: {name}", getattr(self, name), float, optional=True)
        check(f"{self.role}: fill", self.fill, float, low=-_LARGEST, high=_LARGEST, optional=True)
        check(f"{self.role}: missing", self.missing, str, choices=MISSING[:3])
        if (self.missing == "fill") != (self.fill is not None):
            raise ConfigError(f"{self.role}: missing is {self.missing!r}, fill is {self.fill}: 'fill' needs fill")
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError(f"{self.role}: lower is {self.lower} and upper is {self.upper}: give lower <= upper")
        check(f"{self.role}: delay", self.delay, float, optional=True, above=0)
        _check_optional_names(self, "known_at")
        if self.known_at is not None and self.delay is not None:
            raise ConfigError(
                f"{self.role}: delay is {self.delay} and known_at is {self.known_at!r:.60}: both say when it is final; "
                "give one"
            )
        if self.missing == "drop" and (self.known_at or self.delay):
            raise ConfigError(
                f"{self.role}: missing is 'drop', but it may become known later: only those that are known early would "
                "be left; give missing = 'fill', and evaluations leave out what is not final"
            )


@dataclass(frozen=True, kw_only=True)
class OutcomeColumn(RewardColumn):
    """The column of a further outcome of actions, such as complaints: numbers, treated as rewards are.

    See `RewardColumn` for the attributes. It becomes an extra column of its name, which constraints of decisions read
    and nothing learns from.
    """

    role: ClassVar[str] = "outcome"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_not_reserved("outcome", self.column)


@dataclass(frozen=True, kw_only=True)
class SegmentColumn:
    """A column by which gains are divided, such as a region. It is not part of the observation.

    Attributes:
        column: name of the column. Its values are known before the action and constant within episodes; it becomes an
            extra column of its name.
        values: categories; without them it holds numbers.
        unknown: whether other and missing values form one more category; otherwise they are an error.
    """

    column: str
    values: tuple[str | int | bool, ...] = ()
    unknown: bool = False

    def __post_init__(self) -> None:
        name = f"segment {_check_name('column', self.column)!r:.60}: "
        _check_values(self, name)
        if check(f"{name}unknown", self.unknown, bool) and not self.values:
            raise ConfigError(f"{name}unknown is for categories: list them in values, or leave unknown out")
        _check_not_reserved("segment", self.column)


@dataclass(frozen=True, kw_only=True)
class PropensityColumn:
    """The column of propensities: probabilities of the logged actions under the logging policy.

    Attributes:
        column: name of the column; of lists if ``kind`` is ``"vector"``.
        kind: ``"probability"`` or its logarithm ``"log"``; the ``"vector"`` of the probabilities of all actions; or,
            for continuous actions, the ``"density"`` or ``"log_density"``.
        missing: treatment of missing propensities: ``"error"`` or ``"drop"`` the episode.
    """

    column: str
    kind: str
    missing: str = "error"

    def __post_init__(self) -> None:
        _check_name("propensity: column", self.column)
        check("propensity: kind", self.kind, str, choices=KINDS)
        check("propensity: missing", self.missing, str, choices=MISSING[:2])


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Definition of episodes by gaps in time, for logs without episode ids.

    Attributes:
        by: name of the column that separates sequences, such as a user.
        gap: longest time between two steps of an episode; in seconds if times are dates.
    """

    by: str
    gap: float

    def __post_init__(self) -> None:
        _check_name("episode: by", self.by)
        check("episode: gap", self.gap, float, above=0)


@dataclass(frozen=True, kw_only=True)
class LogSchema:
    """The roles of a log's columns. Columns without a role are not read.

    Attributes:
        episode: name of the column of episode ids, or a `Cut`; ``None`` with ``one_step``.
        one_step: whether every row is an episode of one step, as in the logs of contextual bandits.
        observation: the columns of the observation, in order.
        action, reward: the columns of actions and rewards.
        propensity: the column of propensities; ``None`` if they were not logged.
        time: name of the column of times (numbers or dates) that order the steps; ``None`` for the order of the log.
        order: ``"sort"`` by time, or ``"given"``: a decreasing time is then an error.
        duplicates: treatment of steps of an episode at the same time: ``"error"``, or keep only the ``"first"``, which
            is marked as an end if any of them is.
        unit_of_time: length of one step, in seconds if times are dates. It adds the extra column ``time_gap``: the
            number of units until the next step (1 for the last step of an episode).
        terminated: name of the column that is 1 where the task ended with this step.
        truncated: name of the column that is 1 where the episode was cut after this step.
        unmarked: how to treat an episode whose last step has neither mark: as ``"truncated"`` or ``"terminated"``.
        censored_after: an unmarked episode whose last step is at this time (a number, or a date in ISO 8601) or later
            counts as still running when the log ended. The extra column ``censored`` is 1 for its steps.
        log_end: time at which the log was read (a number, or a date in ISO 8601), for ``delay`` and ``known_at`` of
            rewards and outcomes; by default the latest time in the log. The extra column ``reward_pending`` is 1 for
            steps with a reward or an outcome that was not final then. Evaluations leave out what is too new.
        logger: name of the column of the policy or version that selected the action.
        cluster: name of the column of groups of dependent episodes, such as a user or a machine.
        outcome: columns of further outcomes of actions, such as complaints, which become extra columns of their names:
            constraints of decisions read them, and nothing learns from them.
        segment: columns by which gains are divided, which are not part of the observation.
    """

    observation: tuple[ObservationColumn, ...]
    action: ActionColumns
    reward: RewardColumn
    episode: str | Cut | None = None
    one_step: bool = False
    propensity: PropensityColumn | None = None
    time: str | None = None
    order: str = "sort"
    duplicates: str = "error"
    unit_of_time: float | None = None
    terminated: str | None = None
    truncated: str | None = None
    unmarked: str | None = None
    censored_after: float | str | None = None
    log_end: float | str | None = None
    logger: str | None = None
    cluster: str | None = None
    outcome: tuple[OutcomeColumn, ...] = ()
    segment: tuple[SegmentColumn, ...] = ()

    def __post_init__(self) -> None:
        _check_optional_names(self, "time", "terminated", "truncated", "logger", "cluster")
        check("order", self.order, str, choices=("sort", "given"))
        check("duplicates", self.duplicates, str, choices=("error", "first"))
        check("unmarked", self.unmarked, str, choices=("truncated", "terminated"), optional=True)
        check("unit_of_time", self.unit_of_time, float, optional=True, above=0)
        if not isinstance(self.censored_after, str):
            check("censored_after", self.censored_after, float, optional=True)
        if not isinstance(self.log_end, str):
            check("log_end", self.log_end, float, optional=True)
        if self.log_end is not None and not self.delays:
            raise ConfigError(
                "log_end tells which rewards were final, but no reward has delay or known_at: give one, or leave it out"
            )
        self._check_episode()
        if not self.observation:
            raise ConfigError("the schema has no [[observation]]: name at least one column")
        if not (self.terminated or self.unmarked):
            raise ConfigError(
                "the schema does not define where the task ends: give terminated = (a column), or unmarked = "
                "'truncated' if the task never ends, or unmarked = 'terminated' if it ends with the last step of "
                "every episode"
            )
        if self.time is None:
            needs = {
                "order": self.order == "given",
                "unit_of_time": self.unit_of_time is not None,
                "censored_after": self.censored_after is not None,
                "delay or known_at": self.delays,
                "episode = { by, gap }": isinstance(self.episode, Cut),
            }
            for name, used in needs.items():
                if used:
                    raise ConfigError(f"{name} needs times: give time = (a column), or leave it out")
        if self.propensity is not None and (self.propensity.kind in _DENSITIES) == self.action.discrete:
            allowed = KINDS[:3] if self.action.discrete else _DENSITIES
            raise ConfigError(
                f"propensity: kind is {self.propensity.kind!r}, but actions are {self.action.kind}: give one of "
                f"{', '.join(allowed)}"
            )
        seen: set[str] = set()
        for role, name in self.roles():
            if role in _NOT_BEFORE and name in seen:
                what = "named twice" if role in ("observation", "action") else "also an observation or action"
                raise ConfigError(f"{role}: the column {name!r:.60} is {what}: leave one out")
            seen |= {name} if role in ("observation", "action") else set()
        for role in ("outcome", "segment"):
            extra = [self.reward.column, *(each for key, each in self.roles() if key in ("outcome", role))]
            if len(set(extra)) < len(extra):
                name = next(each for each in extra if extra.count(each) > 1)
                raise ConfigError(f"{role}: the column {name!r:.60} is the reward, or named twice: leave one out")

    def _check_episode(self) -> None:
        """Check what defines episodes; a one-step episode ends with its row."""
        if check("one_step", self.one_step, bool) == (self.episode is not None):
            raise ConfigError(
                "episode and one_step define episodes in two ways: give episode = (a column), or one_step = true if "
                "every row is a decision of its own"
            )
        if self.episode is not None and not isinstance(self.episode, Cut):
            _check_name("episode", self.episode)
        if not self.one_step:
            return
        others = ("terminated", "truncated", "unit_of_time", "censored_after")
        if used := [name for name in others if getattr(self, name) is not None]:
            raise ConfigError(f"{used[0]} is for longer episodes, but one_step is true: leave one of them out")
        object.__setattr__(self, "unmarked", self.unmarked or "terminated")

    def roles(self) -> Iterator[tuple[str, str]]:
        """Iterate over pairs of a role and the name of its column."""
        if self.episode_column is not None:
            yield "episode", self.episode_column
        for each in self.observation:
            yield "observation", each.column
        for name in self.action.names:
            yield "action", name
        yield "reward", self.reward.column
        yield from (("outcome", each.column) for each in self.outcome)
        yield from (("segment", each.column) for each in self.segment)
        yield from (("known_at", each.known_at) for each in (self.reward, *self.outcome) if each.known_at is not None)
        others = {name: getattr(self, name) for name in ("time", "terminated", "truncated", "logger", "cluster")}
        others["action mask"] = self.action.mask
        others["propensity"] = self.propensity and self.propensity.column
        yield from ((role, name) for role, name in others.items() if name is not None)

    @property
    def delays(self) -> bool:
        """Whether rewards or outcomes become final later than their steps."""
        return any(each.delay is not None or each.known_at is not None for each in (self.reward, *self.outcome))

    @property
    def episode_column(self) -> str | None:
        """Name of the column of episode ids, or of the one that separates sequences; ``None`` for one-step episodes."""
        return self.episode.by if isinstance(self.episode, Cut) else self.episode

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read, without duplicates."""
        return tuple(dict.fromkeys(name for _, name in self.roles()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LogSchema:
        """Read a TOML file.

        Raises:
            FileError: if the file cannot be read.
            ConfigError: if the schema is invalid. The message names the line or the field.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise FileError(f"{path} cannot be read ({error}): `birl data schema` proposes a schema") from error
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_BYTES >> 20} MiB: give a schema file")
        try:
            return cls.parse(data.decode("utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> LogSchema:
        """Parse TOML text.

        Raises:
            ConfigError: if the schema is invalid.
        """
        try:
            if len(text) > _MAX_BYTES or _LONG_KEY.search(text):
                raise ValueError("it has more than 4 MiB, or a name of more than 64 parts")
            given: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # numbers of many digits, too
            raise ConfigError(
                f"this is not valid TOML ({error}): write strings in quotes and tables in [brackets]"
            ) from error
        errors: list[str] = []

        def make(kind: type[T], part: object, name: str) -> T | None:
            try:
                return _make(kind, part, name)
            except ConfigError as error:
                errors.append(str(error))
                return None

        parts = {"action": ActionColumns, "reward": RewardColumn, "propensity": PropensityColumn}
        given |= {name: make(kind, given[name], name) for name, kind in parts.items() if name in given}
        if isinstance(given.get("episode"), Mapping):
            given["episode"] = make(Cut, given["episode"], "episode")
        observations = given.get("observation", [])
        if not isinstance(observations, list):
            errors.append("observation is one table; it must be a list of them: write [[observation]]")
            observations = []
        for name in ("censored_after", "log_end"):
            if hasattr(given.get(name), "isoformat"):  # TOML has dates
                given[name] = given[name].isoformat()
        given["observation"] = tuple(make(ObservationColumn, each, "observation") for each in observations)
        kinds: dict[str, type[OutcomeColumn | SegmentColumn]] = {"outcome": OutcomeColumn, "segment": SegmentColumn}
        for name, each_kind in kinds.items():
            if name in given:
                columns = given[name] if isinstance(given[name], list) else [given[name]]
                given[name] = tuple(make(each_kind, each, name) for each in columns)
        if "episode" not in given and "one_step" not in given:
            text = (
                "the schema has no episode: give episode = …, or one_step = true if every row is a decision of its own"
            )
            raise ConfigError("; ".join([*errors, text, *_field_errors(cls, given, "the schema")]))
        if errors:
            raise ConfigError("; ".join([*errors, *_field_errors(cls, given, "the schema")]))
        return _make(cls, given, "the schema")

    def text(self) -> str:
        """Return the schema as TOML text, which `parse` reads."""
        values = {name: value for name, value in _non_default(self).items() if not dataclasses.is_dataclass(value)}
        lists = ("observation", "outcome", "segment")
        lines = [f"{name} = {to_toml(value)}" for name, value in values.items() if name not in lists]
        if isinstance(self.episode, Cut):
            lines.insert(0, f"episode = {{ by = {to_toml(self.episode.by)}, gap = {to_toml(self.episode.gap)} }}")
        tables: list[tuple[str, Any]] = [("[[observation]]", each) for each in self.observation]
        named = {"[action]": self.action, "[reward]": self.reward, "[propensity]": self.propensity}
        tables += [(name, part) for name, part in named.items() if part is not None]
        tables += [("[[outcome]]", each) for each in self.outcome]
        tables += [("[[segment]]", each) for each in self.segment]
        for name, part in tables:
            lines += ["", name, *(f"{key} = {to_toml(value)}" for key, value in _non_default(part).items())]
        return "\n".join(lines) + "\n"


def to_toml(value: TomlValue) -> str:
    """Format a string, number, bool or list as TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(to_toml, value))}]"
    return "".join(each if each.isprintable() else _escaped(each) for each in json.dumps(value, ensure_ascii=False))


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _non_default(part: SchemaPart) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    values = {field.name: (getattr(part, field.name), field.default) for field in dataclasses.fields(part)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _make(kind: type[T], given: object, name: str) -> T:
    """Build a dataclass from a TOML table."""
    table = check(name, given, Mapping, ": write a table of name = value")  # type: ignore[type-abstract]
    if errors := _field_errors(kind, table, name):
        raise ConfigError("; ".join(errors))
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def _field_errors(kind: type[Any], given: Mapping[str, Any], name: str) -> list[str]:
    """Return errors for unknown and missing fields of a table."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    errors = [
        f"{name} has no field {key!r:.60}{did_you_mean(key, fields)}; its fields are {', '.join(fields)}"
        for key in given
        if key not in fields
    ]
    needed = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in given]
    return errors + [f"{name} has no {key}: give {key} = …" for key in needed]


def _check_name(what: str, value: object) -> str:
    return check(what, value, str, ": give the name of a column")


def _check_optional_names(part: SchemaPart, *fields: str) -> None:
    for name in fields:
        if getattr(part, name) is not None:
            _check_name(name, getattr(part, name))


def _check_not_reserved(role: str, name: str) -> None:
    if name in RESERVED:
        raise ConfigError(
            f"{role}: column is {name!r}, the name of an extra column with a role of its own "
            f"({', '.join(sorted(RESERVED))}): rename it in the table"
        )


def _check_values(part: ObservationColumn | ActionColumns | SegmentColumn, name: str) -> None:
    values = check(f"{name}values", part.values, tuple, ": give a list")
    kinds = {bool if isinstance(value, bool) else type(value) for value in values}
    if len(kinds) > 1 or not kinds <= set(_SCALAR):
        raise ConfigError(
            f"{name}values are {list(values)!r:.80}; they must be all text, all whole numbers or all true/false"
        )
    if len(set(values)) < len(values):
        raise ConfigError(f"{name}values are {list(values)!r:.80}: list each value once")
    if len(values) > _MAX_VALUES:
        raise ConfigError(
            f"{name}there are {len(values)} values; at most {_MAX_VALUES} are allowed, because each is "
            "an element of the observation: group them, or keep the frequent ones and give unknown = true"
        )
