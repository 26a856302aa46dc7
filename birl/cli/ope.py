"""``birl ope``: from logs to a decision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from birl import ope
from birl._version import __version__
from birl.algos import CQL, CalQL, DiscreteCQL
from birl.cli.common import (
    Device,
    Import,
    PolicyEpsilon,
    PolicyStd,
    PolicyTemperature,
    import_user_module,
    load_dataset,
    load_model,
    load_policy,
    models_of,
    newest_model,
    note,
    print_table,
    step_of,
)
from birl.cli.run_folder import settings_of
from birl.errors import BirlError, ConfigError, FileError
from birl.metrics import AverageValueEstimationEvaluator
from birl.ope.decision_page import (
    BESIDE,
    CONTRADICTED,
    as_json,
    beside,
    contradicts,
    ranking_as_json,
    write_ranking,
    write_report,
)
from birl.ope.holdout_ledger import CERTIFY, SELECT, look, question
from birl.ope.html_page import plain
from birl.ope.screening import KEPT
from birl.run.fingerprint import digest

_WORDS = ("logs", "logged", "estimated")
_GAIN = ("GAIN", "FROM", "TO", "EFFECTIVE", "BY", *BESIDE.values(), "DIFFERS")

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Models = Annotated[
    list[Path],
    typer.Argument(metavar="DIR|MODEL…", help="Run folders (newest models), model files, or saved policies."),
]
Dataset = Annotated[Path, typer.Option(metavar="DIR|FILE", help="Episodes, as birl data split writes them.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the page (.html) and the numbers (.json) there.")]
Gamma = Annotated[float, typer.Option(min=0, max=1, help="Discount of a step.")]
Horizon = Annotated[int | None, typer.Option(min=1, help="Steps of an episode that count; by default all.")]
Behaviour = Annotated[
    str, typer.Option(metavar="logged|estimated|MODEL", help="Where propensities come from, or the policy that acted.")
]
Confidence = Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of two-sided intervals.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Reuse = Annotated[bool, typer.Option("--allow-reuse", help="Answer by episodes that were looked at; the page says so.")]
Keep = Annotated[int, typer.Option(min=1, help="How many are evaluated; of more, a cheap screen sets some aside.")]
Seed = Annotated[int, typer.Option(min=0, help="Fixes the parts of episodes that models are fitted on.")]


@app.command(short_help="A verdict on policies: ship, do not ship, more data, cannot tell.")
def report(
    models: Models,
    dataset: Dataset,
    against: Annotated[str, typer.Option(metavar="logs|MODEL", help="What the gain is over.")] = "logs",
    min_gain: Annotated[float, typer.Option(help="The gain that is asked for, in discounted returns.")] = 0.0,
    out: Out = None,
    gamma: Gamma = 0.99,
    horizon: Horizon = None,
    behaviour: Behaviour = "logged",
    confidence: Confidence = 0.95,
    epsilon: PolicyEpsilon = None,
    temperature: PolicyTemperature = None,
    std: PolicyStd = None,
    allow_reuse: Reuse = False,
    seed: Seed = 0,
    device: Device = "cpu",
    own: Import = None,
    as_json_: Json = False,
) -> None:
    """Say whether policies may ship, by episodes that nobody has looked at.

    Exit status: 0 ship (of several: one of them), 4 more data, 3 do not ship, 5 cannot tell; 1 after an error.
    """
    drawn = {"epsilon": epsilon, "temperature": temperature, "std": std}
    policies = _policies(models, device, own, drawn)
    versus = against if against == "logs" else load_policy(Path(against), device, drawn)[1]
    acted = _behaviour(behaviour, device)
    data, contents = _data(dataset)
    digests = {name: _digest_of(name) for name in policies}
    asked = question(
        policies=sorted(digests.values()),
        against=_digest_of(against),
        min_gain=min_gain,
        gamma=gamma,
        horizon=horizon,
        behaviour=_digest_of(behaviour),
        confidence=confidence,
        seed=seed,
        **drawn,
    )
    seen = _seen({**policies, **({} if against == "logs" else {against: versus})}, dataset, data, contents)
    found = {
        name: ope.evaluate(
            policy,
            data,
            gamma=gamma,
            horizon=horizon,
            against=versus,
            behaviour=acted,
            confidence=confidence,
            seen=bool({name, against} & seen),
            name=name,
            against_name=against,
            seed=seed,
        )
        for name, policy in policies.items()
    }
    said = ope.verdicts(found, min_gain)
    if all(one.decides is None and one.facts.get("no_propensities") for one in found.values()):  # whatever the policy
        note(f"no estimate is shown, and no look at {dataset} is spent")
        _say(found, said, None, as_json_, estimates=False)
        raise typer.Exit(_status(said))
    reused = look(dataset, contents, CERTIFY, asked, reuse=allow_reuse)  # before anybody sees an answer
    notes = [f"these episodes were looked at before: what is said of them is too good ({dataset})"] if reused else []
    if out is not None:
        each = {
            name: f"{_in_words(policy.serving_description())}; SHA-256 {digests[name]}"
            for name, policy in policies.items()
        }
        logs = {"episodes": f"{dataset}; digest {contents}", "date": f"{date.today()}, birl {__version__}"}
        write_report(out, found, said, notes, {"policies": each, **logs})
    for text in notes:
        note(text)
    _say(found, said, out, as_json_, notes)
    raise typer.Exit(_status(said))


@app.command(short_help="Ranks of policies, with their ranges.")
def rank(
    models: Models,
    dataset: Dataset,
    out: Out = None,
    keep: Keep = KEPT,
    gamma: Gamma = 0.99,
    horizon: Horizon = None,
    behaviour: Behaviour = "logged",
    confidence: Confidence = 0.95,
    epsilon: PolicyEpsilon = None,
    temperature: PolicyTemperature = None,
    std: PolicyStd = None,
    allow_reuse: Reuse = False,
    seed: Seed = 0,
    device: Device = "cpu",
    own: Import = None,
    as_json_: Json = False,
) -> None:
    """Rank policies by the lower bound of their gain over the logs, on episodes that are for choosing alone.

    BY decides. FQE and DR are gains by a model alone, and by weights with it, with ! if refused. DIFFERS is the share
    of the logged steps in which a policy does something else than the one that logged.
    """
    policies = _policies(models, device, own, {"epsilon": epsilon, "temperature": temperature, "std": std})
    acted = _behaviour(behaviour, device)
    data, contents = _data(dataset)
    seen = _seen(policies, dataset, data, contents)
    found = ope.rank(
        policies,
        data,
        gamma=gamma,
        horizon=horizon,
        behaviour=acted,
        confidence=confidence,
        seen=seen,
        keep=keep,
        seed=seed,
    )
    reused = look(dataset, contents, SELECT, "", reuse=allow_reuse)  # before anybody sees an answer
    notes = [f"these episodes have certified before: choose by others ({dataset})"] if reused else []
    if out is not None:
        write_ranking(out, found, notes)
    notes += [f"set aside by the screen, which keeps {keep}: {', '.join(found.set_aside)}"] if found.set_aside else []
    for text in notes:
        note(plain(text))
    if as_json_:
        print(json.dumps(ranking_as_json(found, notes)))
        return
    rows = [["POLICY", "RANK", *_GAIN]]
    for name, one in found.evaluations.items():
        best, worst = found.ranges[name]
        rows.append([plain(name), f"{best}" if best == worst else f"{best}-{worst}", *_gain_of(one)])
    print_table(rows)
    helps = []
    for name, one in found.evaluations.items():
        if contradicts(one):
            note(f"{plain(name)}: {CONTRADICTED}")
        refused = [each for each in one.findings if each.refused and one.decides is None]
        for reason in dict.fromkeys(each.says for each in refused):
            note(f"{plain(name)}: {plain(reason)}")
        helps += [each.remedy for each in refused]
    for remedy in dict.fromkeys(filter(None, helps)):
        note(f"this would help: {remedy}")
    print(plain(found.advice))


@app.command(short_help="Which model of which run to take.")
def choose(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, of one algorithm or several.")],
    dataset: Annotated[Path | None, typer.Option(metavar="DIR|FILE", help="Episodes to choose by.")] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of --dataset: the part to choose by, in the folder of the part that each run learned from. "
            "Runs of several splits are ordered by their mean ranks; those of one name are one setting.",
        ),
    ] = None,
    models: Annotated[int, typer.Option(min=1, help="How many models of a run to look at, evenly spread.")] = 10,
    keep: Keep = KEPT,
    gamma: Gamma = 0.99,
    horizon: Horizon = None,
    behaviour: Behaviour = "logged",
    epsilon: PolicyEpsilon = None,
    temperature: PolicyTemperature = None,
    std: PolicyStd = None,
    allow_reuse: Reuse = False,
    seed: Seed = 0,
    device: Device = "cpu",
    own: Import = None,
    as_json_: Json = False,
) -> None:
    """Choose a model of each run, and order the runs by it: checkpoints and hyper-parameters without a simulator.

    A model is ranked together with those before and after it: the best of many estimates is mostly the luckiest.
    """
    drawn = {"epsilon": epsilon, "temperature": temperature, "std": std}
    acted = _behaviour(behaviour, device)

    def chosen(place: Path, of: Sequence[Path]) -> tuple[dict[str, ope.Choice], list[str]]:
        files = {str(run): _spread(run, models) for run in of}
        policies = _policies([file for each in files.values() for file in each], device, own, drawn)
        data, contents = _data(place)
        found = ope.choose(
            {run: {str(file): policies[str(file)] for file in each} for run, each in files.items()},
            data,
            gamma=gamma,
            horizon=horizon,
            behaviour=acted,
            seen=_seen(policies, place, data, contents),
            keep=keep,
            seed=seed,
        )
        reused = look(place, contents, SELECT, "", reuse=allow_reuse)  # before anybody sees an answer
        notes = [f"these episodes have certified before: choose by others ({place})"] if reused else []
        aside = [run for run in files if run not in found]
        notes += [f"set aside by the screen, which keeps {keep}: {', '.join(aside)}"] if aside else []
        return found, notes + [t for run in found if (t := _overfitted(files[run], device, own, data)) is not None]

    if (dataset is None) == (part is None):
        raise ConfigError("give --dataset with the episodes to choose by, or --part with their name in each split")
    if dataset is None:
        _choose_by_splits(_splits(runs, str(part)), chosen, as_json_)
        return
    found, notes = chosen(dataset, runs)
    for text in notes:
        note(plain(text))
    if as_json_:
        print(json.dumps({"notes": notes, "runs": _told(found)}))
        return
    rows = [["MODEL", "MEAN RANK", *_GAIN]]
    for run, choice in found.items():
        if choice.name is None:
            rows.append([plain(run), *["-"] * 5, "refused", *["-"] * 3])
        else:
            rows.append([plain(choice.name), f"{choice.rank:.1f}", *_gain_of(choice.evaluations[choice.name])])
    print_table(rows)
    best = next(iter(found.values())).name
    print("None can be judged by these logs." if best is None else f"Take {plain(best)}, and certify it.")


def _choose_by_splits(
    splits: Mapping[Path, Sequence[Path]],
    chosen: Callable[[Path, Sequence[Path]], tuple[dict[str, ope.Choice], list[str]]],
    as_json_: bool,
) -> None:
    """Print settings by their mean ranks over splits."""
    found: dict[Path, dict[str, ope.Choice]] = {}
    notes: list[str] = []
    for place, runs in splits.items():
        found[place], said = chosen(place, runs)
        notes += said
    for text in notes:
        note(plain(text))
    means = ope.mean_ranks([{Path(run).name: one for run, one in each.items()} for each in found.values()])
    if as_json_:
        told = {str(place): _told(each) for place, each in found.items()}
        print(json.dumps({"notes": notes, "mean_ranks": means, "splits": told}))
        return
    print_table([["SETTING", "MEAN RANK"], *([plain(name), f"{mean:.1f}"] for name, mean in means.items())])
    print(f"Take {plain(next(iter(means)))}: learn with it from all of these episodes, and certify it by others.")


def _splits(runs: Sequence[Path], part: str) -> dict[Path, list[Path]]:
    """Runs by the episodes that they are to be judged by."""
    found: dict[Path, list[Path]] = {}
    for run in runs:
        trained = settings_of(run).get("dataset")
        if not isinstance(trained, str) or not Path(trained).is_dir():
            raise ConfigError(f"{run} does not say of which folder it learned: --part is for runs of birl train")
        found.setdefault(Path(trained).parent / part, []).append(run)
    names = [sorted(run.name for run in own) for own in found.values()]
    odd = next((own for own in names if own != names[0] or len(set(own)) < len(own)), None)
    if odd is not None:
        raise ConfigError(
            f"splits have runs named {', '.join(names[0])} and {', '.join(odd)}: give one run of each setting in each "
            "split, in folders with the setting's name"
        )
    return found


def _told(found: Mapping[str, ope.Choice]) -> list[dict[str, Any]]:
    return [
        {"run": run, "model": one.name, "ranks": dict(zip(one.evaluations, one.ranks.tolist(), strict=True))}
        for run, one in found.items()
    ]


def _say(
    found: dict[str, ope.Evaluation],
    said: dict[str, ope.Verdict],
    out: Path | None,
    as_json_: bool,
    notes: Sequence[str] = (),
    estimates: bool = True,
) -> None:
    if as_json_:
        hidden = () if estimates else ("estimates",)
        told = [as_json(found[name], said[name]) for name in found]
        kept = [{key: value for key, value in one.items() if key not in hidden} for one in told]
        print(json.dumps({"notes": list(notes), "policies": kept}))
        return
    for name, one in said.items():
        print(f"{plain(name)}: {one.verdict}")
        for text in (*one.reasons, *one.remedies):
            print(f"  {plain(text)}")
        if one.flips_at is not None:
            print(f"  hidden confounding flips it from a Gamma of {one.flips_at:.3g} on")
    if out is not None:
        note(f"{out / 'report.html'}: what it rests on, and what no log can show")


def _gain_of(one: ope.Evaluation) -> list[str]:
    """Columns `_GAIN` of a table."""
    row, ends = one.gain, ["-"] * 3
    if row is not None and row.gain_interval is not None:
        ends = [f"{float(x):.4g}" for x in (row.gain.value, row.gain_interval.lower, row.gain_interval.upper)]
    effective = one.facts.get("ess")
    differs = "-" if one.differs is None else f"{one.differs:.2f}"
    return [*ends, "-" if effective is None else f"{effective:.0f}", one.decides or "refused", *beside(one), differs]


def _spread(run: Path, count: int) -> list[Path]:
    """So many models of a run, evenly spread, the newest among them."""
    found = models_of(run) if run.is_dir() else []
    if not found:
        raise FileError(f"{run} is no run folder with models (model_<step>.d3): give folders that birl train wrote")
    return [found[round(place)] for place in np.unique(np.linspace(len(found) - 1, 0, min(count, len(found))))]


def _overfitted(models: Sequence[Path], device: str, own: str | None, data: Any) -> str | None:
    """What the values of a conservative critic say of its run."""
    loaded = [load_model(file, device, own)[1] for file in models]
    if not isinstance(loaded[0], CQL | CalQL | DiscreteCQL):
        return None
    peak = ope.turns_down([AverageValueEstimationEvaluator()(each, data) for each in loaded])
    if peak is None:
        return None
    return f"{models[peak]}: the values of logged states fall from here on, which is overfitting; prefer models before"


def _status(said: dict[str, ope.Verdict]) -> int:
    """Of several verdicts the one that leaves most open to do."""
    order = ("ship", "more_data", "do_not_ship", "cannot_tell")
    return ope.STATUS[min((one.verdict for one in said.values()), key=order.index)]


def _policies(models: list[Path], device: str, own: str | None, drawn: dict[str, float | None]) -> dict[str, Any]:
    if own is not None:
        import_user_module(own)
    names = [str(path) for path in models]
    if len(set(names)) < len(names):
        raise ConfigError(f"{next(name for name in names if names.count(name) > 1)} is given twice: leave one out")
    found = {path: load_policy(path, device, drawn) for path in models}
    for path, (file, _) in found.items():
        steps = settings_of(path).get("n_steps") if path.is_dir() else None
        if steps is not None and (made := step_of(file)) < steps:
            note(f"{path}: its newest model is of step {made}, and the run was to make {steps}")
    return {str(path): policy for path, (_, policy) in found.items()}


def _in_words(told: Mapping[str, Any]) -> str:
    """A policy as people say it: EpsilonGreedy of DiscreteCQL, epsilon 0.1."""
    known = ("type", "draws", "of", "members", "weight")
    own = [f"{key} {value}" for key, value in told.items() if key not in known]
    own += [f"{one['weight']:g} of ({_in_words(one)})" for one in told.get("members", ())]
    of = f" of {told['of']}" if "of" in told else ""
    return ", ".join([f"{told['type']}{of}{'' if told['draws'] else ', greedy'}", *own])


def _behaviour(name: str, device: str) -> Any:
    """A word, or the policy that acted: of an algorithm what it sampled."""
    if name in ("logged", "estimated"):
        return name
    _, policy = load_policy(Path(name), device, {})
    return policy if isinstance(policy, ope.DrawnPolicy) else ope.Sampled(policy)


def _data(path: Path) -> tuple[Any, str]:
    if not path.exists():
        raise FileError(f"there is no {path}: give a folder that birl data split wrote, or a file .h5")
    data = load_dataset(str(path))
    return data, digest(data.reader.storages)


def _digest_of(name: str) -> str:
    """Of a model's file, of a folder that of its newest model; a word is itself."""
    if name in _WORDS:
        return name
    path = Path(name)
    file = newest_model(path) if path.is_dir() else path
    return name if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def _seen(policies: Mapping[str, Any], dataset: Path, data: Any, contents: str) -> set[str]:
    """Names of policies that learned from these episodes, as far as they say it, or the folders of their runs."""
    found = set()
    for name, policy in policies.items():
        if policy.logs is not None and data.logs is not None and policy.logs.shares(data.logs):
            found.add(name)
            continue
        trained = settings_of(Path(name)).get("dataset")
        if not isinstance(trained, str):
            continue
        place, own = Path(trained).resolve(), dataset.resolve()
        nested = place == own or place in own.parents or own in place.parents  # one is a part of the other
        if nested and place.exists():
            found.add(name)
            continue
        try:
            same = digest(load_dataset(trained).reader.storages) == contents
        except BirlError as error:
            note(f"{trained}, which {name} learned from, cannot be read, and might be this one: {error}")
            continue
        if same:
            found.add(name)
    return found
