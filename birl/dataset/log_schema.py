"""What the columns of a log mean: a schema that is written down once, as a TOML file, and read again with the policy.

::

    episode = "trip"              # or { by = "user", gap = 1800.0 }: cut where nothing happens for so long
    time = "at"
    terminated = "arrived"

    [[observation]]
    column = "speed"
    missing = "forward"           # the last one of the episode; before the first one, `fill`
    fill = 0.0
    indicator = true

    [[observation]]
    column = "weather"
    values = ["sun", "rain"]
    unknown = true                # other words are one more choice, not an error

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
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from birl.checks import check
from birl.errors import ConfigError, FileError, did_you_mean

T = TypeVar("T")
MISSING: Final = ("error", "drop", "fill", "forward")
KINDS: Final = ("probability", "log", "vector", "density", "log_density")
_DENSITIES: Final = ("density", "log_density")
_MAX_VALUES: Final = 1000
_MAX_BYTES: Final = 2**24
_SCALAR: Final = (str, int, bool)
_POST_ACTION: Final = ("observation", "action", "reward", "terminated", "truncated", "propensity")
"""Roles of columns that are no observation besides: what follows from the action is not known before it."""


@dataclass(frozen=True, kw_only=True)
class ObservationColumn:
    """A column, or a list in a column, of which observations are made.

    Attributes:
        column: its name. Numbers, or lists of as many numbers in each row; with ``values``, categories.
        values: categories: each gets one number of the observation, 1 where the row has this value, else 0.
        unknown: whether other values (and missing ones) count as one more category; else they are an error.
        missing: what a missing number is: an ``"error"``; a reason to ``"drop"`` the whole episode; the number
            ``fill``; or, ``"forward"``, the last one of the episode, and ``fill`` before there is one.
        fill: a number.
        indicator: whether one more number of the observation says that it was missing.
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
        check(f"{name}fill", self.fill, float, optional=True)
        if (self.missing in ("fill", "forward")) != (self.fill is not None):
            raise ConfigError(f"{name}missing is {self.missing!r}, fill is {self.fill}: 'fill' and 'forward' need fill")
        if self.values and (self.indicator or self.missing in ("fill", "forward")):
            raise ConfigError(f"{name}a category has no fill and no indicator: unknown = true counts missing ones, too")
        if self.unknown and not self.values:
            raise ConfigError(f"{name}unknown is for categories: list them in values, or leave unknown out")


@dataclass(frozen=True, kw_only=True)
class ActionColumns:
    """What was done.

    Attributes:
        column: name of the column. For continuous actions it may hold lists.
        columns: names, if each dimension of continuous actions has a column of its own.
        kind: ``"discrete"`` or ``"continuous"``.
        size: number of discrete actions, which are then ``0 … size - 1``.
        values: the discrete actions, in the order in which they are numbered; instead of ``size``.
        mask: name of a column of lists with 1 for each discrete action that could have been taken, else 0.
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
            raise ConfigError("action: choices need size = (their number), or values = [all of them], and not both")
        if not self.discrete and (self.size is not None or self.values or self.mask):
            raise ConfigError("action: size, values and mask are for kind = 'discrete': leave them out")

    @property
    def discrete(self) -> bool:
        """Whether they are choices."""
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
    """What it earned.

    Attributes:
        column: name of the column.
        lower, upper: what it can be; a reward outside is an error. Some estimates need ``lower``.
        missing: an ``"error"``; or ``"drop"`` the episode; or the number ``fill``.
        fill: a number.
    """

    column: str
    lower: float | None = None
    upper: float | None = None
    missing: str = "error"
    fill: float | None = None

    def __post_init__(self) -> None:
        _check_name("reward: column", self.column)
        for name in ("lower", "upper", "fill"):
            check(f"reward: {name}", getattr(self, name), float, optional=True)
        check("reward: missing", self.missing, str, choices=MISSING[:3])
        if (self.missing == "fill") != (self.fill is not None):
            raise ConfigError(f"reward: missing is {self.missing!r}, fill is {self.fill}: 'fill' needs fill")
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError(f"reward: lower is {self.lower} and upper is {self.upper}: lower must not be above it")


@dataclass(frozen=True, kw_only=True)
class PropensityColumn:
    """How probable the logged action was when it was chosen.

    Attributes:
        column: name of the column; of lists if ``kind`` is ``"vector"``.
        kind: ``"probability"`` or its logarithm ``"log"``; the ``"vector"`` of the probabilities of all actions; or, of
            continuous actions, the ``"density"`` or ``"log_density"``.
        missing: an ``"error"``; or ``"drop"`` the episode.
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
    """Episodes that the log does not name: a user's steps, cut where nothing happens for a while.

    Attributes:
        by: name of the column whose values do not share an episode, such as a user.
        gap: a longer time between two steps ends an episode; in seconds, if times are dates.
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
        episode: name of the column with the id of the episode, or a `Cut`.
        observation: of which columns observations are made, in this order.
        action, reward: what was done, and what it earned.
        propensity: how probable that was; ``None`` if it was not logged.
        time: name of the column by which steps of an episode are ordered: numbers or dates. ``None``: as they stand.
        order: ``"sort"`` by time, or ``"given"``: then a time that goes back is an error.
        duplicates: two steps of an episode at the same time: an ``"error"``, or only the ``"first"`` is kept, marked as
            an end if one of them is.
        unit_of_time: length of one step, in seconds if times are dates. Then the extra column ``time_gap`` has the
            number of units until the next step (1 for the last one of an episode).
        terminated: name of the column that is 1 where the task ended with this step.
        truncated: name of the column that is 1 where the episode was cut after this step.
        unmarked: what the end of an episode is whose last step has neither mark: ``"truncated"`` or ``"terminated"``.
        censored_after: an unmarked episode whose last step is not before this time was still running when the log
            ended. The extra column ``censored`` is 1 for its steps. A number, or a date in ISO 8601.
        logger: name of the column that says which policy or version chose the action.
        cluster: name of the column of what episodes have in common, such as a user or a machine.
    """

    episode: str | Cut
    observation: tuple[ObservationColumn, ...]
    action: ActionColumns
    reward: RewardColumn
    propensity: PropensityColumn | None = None
    time: str | None = None
    order: str = "sort"
    duplicates: str = "error"
    unit_of_time: float | None = None
    terminated: str | None = None
    truncated: str | None = None
    unmarked: str | None = None
    censored_after: float | str | None = None
    logger: str | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        _check_optional_names(self, "time", "terminated", "truncated", "logger", "cluster")
        check("order", self.order, str, choices=("sort", "given"))
        check("duplicates", self.duplicates, str, choices=("error", "first"))
        check("unmarked", self.unmarked, str, choices=("truncated", "terminated"), optional=True)
        check("unit_of_time", self.unit_of_time, float, optional=True, above=0)
        if not isinstance(self.censored_after, str):
            check("censored_after", self.censored_after, float, optional=True)
        if not isinstance(self.episode, Cut):
            _check_name("episode", self.episode)
        if not self.observation:
            raise ConfigError("there is no [[observation]]: name at least one column")
        if not (self.terminated or self.unmarked):
            raise ConfigError(
                "nothing says where the task ended: give terminated = (a column), or unmarked = 'truncated' if it "
                "never ends by itself, or unmarked = 'terminated' if the last step of every episode is its end"
            )
        if self.time is None:
            needs = {
                "order": self.order == "given",
                "unit_of_time": self.unit_of_time is not None,
                "censored_after": self.censored_after is not None,
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
            if role in _POST_ACTION and name in seen:
                what = "named twice" if role in ("observation", "action") else "an observation or action, too"
                raise ConfigError(f"{role}: the column {name!r:.60} is {what}: leave one out")
            seen |= {name} if role in ("observation", "action") else set()

    def roles(self) -> Iterator[tuple[str, str]]:
        """Roles and the columns that have them."""
        yield "episode", self.episode.by if isinstance(self.episode, Cut) else self.episode
        for each in self.observation:
            yield "observation", each.column
        for name in self.action.names:
            yield "action", name
        yield "reward", self.reward.column
        others = {name: getattr(self, name) for name in ("time", "terminated", "truncated", "logger", "cluster")}
        others["action mask"] = self.action.mask
        others["propensity"] = self.propensity and self.propensity.column
        yield from ((role, name) for role, name in others.items() if name is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read, each once."""
        return tuple(dict.fromkeys(name for _, name in self.roles()))

    @classmethod
    def load(cls, path: Any) -> LogSchema:
        """Read a TOML file.

        Raises:
            FileError: if there is none.
            ConfigError: if it is no schema; the message names the line or the field.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise FileError(f"{path} cannot be read ({error}): `birl data schema` proposes a schema") from error
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_BYTES >> 20} MiB: that is no schema")
        try:
            return cls.parse(data.decode("utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> LogSchema:
        """Read TOML.

        Raises:
            ConfigError: if it is no schema.
        """
        try:
            given: dict[str, Any] = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"this is no TOML ({error}): strings stand in quotes, tables in [brackets]") from error
        errors: list[str] = []

        def make(kind: type[Any], part: Any, name: str) -> Any:
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
        if hasattr(given.get("censored_after"), "isoformat"):  # TOML has dates
            given["censored_after"] = given["censored_after"].isoformat()
        given["observation"] = tuple(make(ObservationColumn, each, "observation") for each in observations)
        if errors:
            raise ConfigError("; ".join([*errors, *_field_errors(cls, given, "the schema")]))
        return _make(cls, given, "the schema")

    def text(self) -> str:
        """The schema as TOML, which `parse` reads."""
        own = {name: value for name, value in _non_default(self).items() if not dataclasses.is_dataclass(value)}
        lines = [f"{name} = {to_toml(value)}" for name, value in own.items() if name != "observation"]
        if isinstance(self.episode, Cut):
            lines.insert(0, f"episode = {{ by = {to_toml(self.episode.by)}, gap = {to_toml(self.episode.gap)} }}")
        tables: list[tuple[str, Any]] = [("[[observation]]", each) for each in self.observation]
        named = {"[action]": self.action, "[reward]": self.reward, "[propensity]": self.propensity}
        tables += [(name, part) for name, part in named.items() if part is not None]
        for name, part in tables:
            lines += ["", name, *(f"{key} = {to_toml(value)}" for key, value in _non_default(part).items())]
        return "\n".join(lines) + "\n"


def to_toml(value: Any) -> str:
    """A string, number, bool or list as TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _non_default(part: Any) -> dict[str, Any]:
    """Fields that differ from what they are when they are left out."""
    values = {field.name: (getattr(part, field.name), field.default) for field in dataclasses.fields(part)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _make(kind: type[T], given: Any, name: str) -> T:
    """A dataclass of this kind from a TOML table."""
    check(name, given, Mapping, ": write a table of name = value")  # type: ignore[type-abstract]
    if errors := _field_errors(kind, given, name):
        raise ConfigError("; ".join(errors))
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


def _field_errors(kind: type[Any], given: Mapping[str, Any], name: str) -> list[str]:
    """What a table has that it must not have, and has not that it must."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    errors = [
        f"{name} has no field {key!r:.60}{did_you_mean(key, fields)}; there are: {', '.join(fields)}"
        for key in given
        if key not in fields
    ]
    needed = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in given]
    return errors + [f"{name} has no {key}: give {key} = …" for key in needed]


def _check_name(what: str, value: Any) -> str:
    return check(what, value, str, ": give the name of a column")


def _check_optional_names(part: Any, *fields: str) -> None:
    for name in fields:
        if getattr(part, name) is not None:
            _check_name(name, getattr(part, name))


def _check_values(part: Any, name: str) -> None:
    values = check(f"{name}values", part.values, tuple, ": give a list")
    kinds = {bool if isinstance(value, bool) else type(value) for value in values}
    if len(kinds) > 1 or not kinds <= set(_SCALAR):
        raise ConfigError(
            f"{name}values are {list(values)!r:.80}; they must be all text, all whole numbers or all true/false"
        )
    if len(set(values)) < len(values):
        raise ConfigError(f"{name}values are {list(values)!r:.80}: each must be there once")
    if len(values) > _MAX_VALUES:
        raise ConfigError(
            f"{name}there are {len(values)} values; at most {_MAX_VALUES} are possible: each would be a number of the "
            "observation. Group them, or keep the frequent ones and give unknown = true"
        )
