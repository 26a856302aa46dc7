"""``birl ope``: verdicts, rankings and model selection from logs."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer

from birl import ope
from birl._version import __version__
from birl.acting.sequence_context import StatefulTransformerWrapper
from birl.algorithm import Algorithm, TransformerAlgorithm
from birl.algorithm.policy_api import PolicyAPI
from birl.algos import CQL, CalQL, DiscreteCQL
from birl.cli.common import (
    Device,
    Import,
    PolicyEpsilon,
    PolicyStd,
    PolicyTemperature,
    TargetReturn,
    import_user_module,
    models_of,
    newest_model,
    note,
    print_line,
    print_table,
    step_of,
    with_options,
)
from birl.cli.datasets import load_dataset
from birl.cli.evaluate import check_target
from birl.cli.loading import is_import, load_evaluated_policy, load_model
from birl.cli.run_folder import settings_of, target_of
from birl.dataset.logs.row_digests import row_digests
from birl.dataset.replay_buffer import ReplayBuffer
from birl.dataset.row_sketch import RowSketch
from birl.errors import BirlError, ConfigError, FileError
from birl.metrics import AverageValueEstimationEvaluator
from birl.ope.constraints import read_constraints
from birl.ope.decision_page import (
    CONTRADICTED,
    SECOND_OPINIONS,
    JSONObject,
    as_json,
    contradicts,
    plans_by_file,
    ranking_as_json,
    second_opinions,
    write_ranking,
    write_report,
)
from birl.ope.evaluated_policies import EvaluatedPolicy
from birl.ope.holdout_ledger import CERTIFY, SELECT, question_digest, record_query
from birl.ope.html_page import plain_text
from birl.ope.learned_rows import HeldOutRows
from birl.ope.screening import KEPT
from birl.run.fingerprint import digest

LoadedPolicy: TypeAlias = PolicyAPI | StatefulTransformerWrapper | EvaluatedPolicy

_KEYWORDS = ("logs", "logged", "estimated")
_GAIN_COLUMNS = ("GAIN", "FROM", "TO", "EFFECTIVE", "BY", *SECOND_OPINIONS.values(), "DIFFERS")
MAX_ROWS = 2**20
"""Number of digests of the rows that a run learned from."""
app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR|MODEL|TABLE|MODULE:NAME…",
        help="Run folders (newest models), model files, saved policies, decision tables (.csv, .toml, .json), or "
        "functions and classifiers of your own.",
    ),
]
Dataset = Annotated[Path, typer.Option(metavar="DIR|FILE", help="Episodes, as birl data split writes them.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the report (.html and .json) there.")]
Constraints = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint",
        metavar="'COLUMN <= +1%'",
        help="Limit of another outcome, several times for several: a change against the baseline with a sign, in "
        "percent (+1%) or in units (-0.5); a value without one.",
    ),
]
Segments = Annotated[
    list[str] | None,
    typer.Option(
        "--segment",
        metavar="COLUMN",
        help="Show the gain for each value of this column, which is known before the action; repeat it for several.",
    ),
]
SegmentLoss = Annotated[
    float | None, typer.Option(min=0, help="Largest loss of any segment with which a policy may ship.")
]
Cvar = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Compare the mean return of this share of the worst episodes with the baseline."
    ),
]
MinCvarGain = Annotated[
    float | None, typer.Option(help="Required difference of the worst episodes' mean return; below 0 allows a loss.")
]
Quantile = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Compare this quantile of returns with the baseline.")
]
MinQuantileGain = Annotated[
    float | None, typer.Option(help="Required difference of the quantile; below 0 allows a loss.")
]
Confidence = Annotated[float, typer.Option(min=0.5, max=0.9999, help="Confidence of two-sided intervals.")]
Keep = Annotated[int, typer.Option(min=1, help="Number of candidates to evaluate; a cheap screen sets others aside.")]


WorstCase = Annotated[
    float | None,
    typer.Option(metavar="RETURN", help="Lowest return of an episode; by default that of the range of rewards."),
]
MinStrength = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="GAMMA",
        help="Hidden confounding that must not turn ship; by default 1.5 for estimated propensities, else 1.",
    ),
]
Bound = Annotated[
    str,
    typer.Option(metavar="t|betting|bernstein", help="The last two hold for any tails, need a range, and are wider."),
]


Unit = Annotated[str, typer.Option(metavar="NAME", help="Unit of rewards on the page, such as EUR.")]


@dataclass(frozen=True)
class EvaluationOptions:
    """Options that all commands share."""

    gamma: Annotated[float, typer.Option(min=0, max=1, help="Discount factor.")] = 0.99
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Number of steps of an episode that count; by default all.")
    ] = None
    behaviour: Annotated[
        str,
        typer.Option(metavar="logged|estimated|MODEL", help="Source of the propensities, or the policy that acted."),
    ] = "logged"
    reward_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LOW HIGH",
            help="Lowest and highest reward of a step that are possible; by default those of the schema.",
        ),
    ] = None
    epsilon: PolicyEpsilon = None
    temperature: PolicyTemperature = None
    std: PolicyStd = None
    target_return: TargetReturn = None
    allow_reuse: Annotated[
        bool, typer.Option("--allow-reuse", help="Answer even if the episodes were used before; the report says so.")
    ] = False
    seed: Annotated[int, typer.Option(min=0, help="Seed of the parts of episodes that models are fitted on.")] = 0
    device: Device = "cpu"
    import_: Import = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    @property
    def sampling(self) -> dict[str, float | None]:
        """Options that make a stochastic policy of a greedy one."""
        return {"epsilon": self.epsilon, "temperature": self.temperature, "std": self.std}

    def load(self, path: Path, sampling: Mapping[str, float | None]) -> tuple[Path, LoadedPolicy]:
        """Load a policy; a sequence model aims at ``target_return``, or at the target of its run.

        Raises:
            ConfigError: if a sequence model has no target return.
        """
        target = target_of(path, self.target_return)
        file, policy = load_evaluated_policy(path, self.device, sampling, target)
        if isinstance(policy, TransformerAlgorithm):
            check_target(type(policy), target)
        return file, policy

    def check_target(self, *policies: object) -> None:
        """Raise `ConfigError` if there is a target return, but no sequence model."""
        if self.target_return is None or any(isinstance(policy, StatefulTransformerWrapper) for policy in policies):
            return
        raise ConfigError("--target-return is for sequence models, and none of the policies is one: leave it out")

    def load_policies(self, models: Sequence[Path]) -> dict[str, LoadedPolicy]:
        """Load the policies to evaluate, by the names of their files or folders."""
        if self.import_ is not None:
            import_user_module(self.import_)
        names = [str(path) for path in models]
        if len(set(names)) < len(names):
            raise ConfigError(f"{next(name for name in names if names.count(name) > 1)} is given twice: leave one out")
        loaded = {path: self.load(path, self.sampling) for path in models}
        for path, (file, _) in loaded.items():
            steps = settings_of(path).get("n_steps") if path.is_dir() else None
            if isinstance(steps, int) and (step := step_of(file)) < steps:
                note(f"{path}: its newest model is from step {step} of {steps}")
        return {str(path): policy for path, (_, policy) in loaded.items()}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that `birl.ope.evaluate`, `birl.ope.rank` and `birl.ope.choose` share.

        This loads the logging policy. For an algorithm, it is the distribution that the algorithm samples from.
        """
        behaviour: str | LoadedPolicy = self.behaviour
        if behaviour not in ("logged", "estimated"):
            _, policy = self.load(Path(self.behaviour), {})
            behaviour = ope.Sampled(policy) if isinstance(policy, Algorithm) else policy
        shared = {"gamma": self.gamma, "horizon": self.horizon, "behaviour": behaviour, "seed": self.seed}
        return shared | {"reward_range": self.reward_range}


@app.command(short_help="Verdicts on policies: ship, do not ship, more data, test online, cannot tell.")
@with_options(EvaluationOptions)
def report(
    models: Models,
    dataset: Dataset,
    against: Annotated[str, typer.Option(metavar="logs|MODEL", help="Baseline of the gain.")] = "logs",
    min_gain: Annotated[float, typer.Option(help="Required gain, in discounted returns.")] = 0.0,
    out: Out = None,
    confidence: Confidence = 0.95,
    constraint: Constraints = None,
    segment: Segments = None,
    segment_loss: SegmentLoss = None,
    worst_case: WorstCase = None,
    min_strength: MinStrength = None,
    bound: Bound = "t",
    cvar: Cvar = None,
    min_cvar_gain: MinCvarGain = None,
    quantile: Quantile = None,
    min_quantile_gain: MinQuantileGain = None,
    unit: Unit = "",
    *,
    options: EvaluationOptions,
) -> None:
    """Decide whether policies may ship, by held-out episodes that were not used before.

    Exit status: 0 ship (at least one of several), 6 test online, 4 more data, 3 do not ship, 5 cannot tell; 1 after
    an error.
    """
    limits, segments = read_constraints(constraint or ()), segment or []
    if segment_loss is not None and not segments:
        raise ConfigError("--segment-loss limits losses of segments, and there are none: give --segment COLUMN")
    required: dict[str, Any] = {"worst_case": worst_case, "min_strength": min_strength, "bound": bound}
    tails = [*_tail("cvar", cvar, min_cvar_gain), *_tail("quantile", quantile, min_quantile_gain)]
    further: dict[str, Any] = {
        "tails": [[each.kind, each.share, each.min_gain] for each in tails],
        "constraints": sorted(map(str, limits)),
        "segments": sorted(segments),
        "segment_loss": segment_loss,
    }
    further |= {**required, "bound": None if bound == "t" else bound}
    policies = options.load_policies(models)
    baseline = against if against == "logs" else options.load(Path(against), options.sampling)[1]
    arguments = {**options.arguments(), "confidence": confidence}
    options.check_target(*policies.values(), baseline, arguments["behaviour"])
    data, contents = _load_data(dataset)
    digests = {name: _digest_of(name) for name in policies}
    models_asked = {"policies": sorted(digests.values()), "against": _digest_of(against)}
    behaviour = _digest_of(options.behaviour)
    question = question_digest(
        **{**arguments, **models_asked, **options.sampling, "min_gain": min_gain, "behaviour": behaviour},
        target_return=options.target_return,
        **{name: value for name, value in further.items() if value not in ([], None)},  # old questions stay the same
    )
    compared = policies if isinstance(baseline, str) else {**policies, against: baseline}
    seen = _names_of_seen(compared, dataset, data, contents)
    arguments |= {"against": baseline, "against_name": against}
    arguments |= {"tails": tails, "constraints": limits, "segments": segments, "segment_loss": segment_loss}
    evaluations = {
        name: ope.evaluate(policy, data, seen=bool({name, against} & seen), name=name, **arguments)
        for name, policy in policies.items()
    }
    verdicts = ope.verdicts(evaluations, min_gain, **required)
    if all(
        evaluation.decides is None and evaluation.facts.get("no_propensities") for evaluation in evaluations.values()
    ):
        note(f"no estimate is shown, so the episodes of {dataset} stay unused")  # no policy could be estimated
        _print_verdicts(evaluations, verdicts, None, options.as_json, estimates=False)
        raise typer.Exit(_exit_status(verdicts))
    reused = record_query(dataset, contents, CERTIFY, question, reuse=options.allow_reuse)  # before any answer is shown
    notes = [f"these episodes were used before, so the estimates are too optimistic ({dataset})"] if reused else []
    if out is not None:
        described = {name: f"{_described(name, policy)}; SHA-256 {digests[name]}" for name, policy in policies.items()}
        inputs = {"episodes": f"{dataset}; digest {contents}", "date": f"{date.today()}, birl {__version__}"}
        write_report(out, evaluations, verdicts, notes, described, inputs, unit)
    _print_notes(notes)
    _print_verdicts(evaluations, verdicts, out, options.as_json, notes)
    raise typer.Exit(_exit_status(verdicts))


@app.command(short_help="Ranks of policies, with their ranges.")
@with_options(EvaluationOptions)
def rank(
    models: Models,
    dataset: Dataset,
    out: Out = None,
    keep: Keep = KEPT,
    confidence: Confidence = 0.95,
    *,
    options: EvaluationOptions,
) -> None:
    """Rank policies by the lower bound of their gain over the logs, on episodes that only select policies.

    BY is the estimator that decides. LINEAR is the gain by a linear model alone, DR by this model and weights,
    with ! if refused. DIFFERS is the share of the logged steps in which a policy acts differently from the logging
    policy.
    """
    policies, arguments = options.load_policies(models), options.arguments()
    options.check_target(*policies.values(), arguments["behaviour"])
    data, contents = _load_data(dataset)
    seen = _names_of_seen(policies, dataset, data, contents)
    ranking = ope.rank(policies, data, confidence=confidence, seen=seen, keep=keep, **arguments)
    notes = _select_notes(dataset, contents, options.allow_reuse)
    if out is not None:
        write_ranking(out, ranking, notes)
    if ranking.set_aside:
        notes.append(f"set aside by the screen, which keeps {keep}: {', '.join(ranking.set_aside)}")
    _print_notes(notes)
    if options.as_json:
        print(json.dumps(ranking_as_json(ranking, notes)))
        return
    rows = [["POLICY", "RANK", *_GAIN_COLUMNS]]
    for name, evaluation in ranking.evaluations.items():
        best, worst = ranking.ranges[name]
        rows.append([plain_text(name), f"{best}" if best == worst else f"{best}-{worst}", *_gain_cells(evaluation)])
    print_table(rows)
    remedies = []
    for name, evaluation in ranking.evaluations.items():
        if contradicts(evaluation):
            note(f"{plain_text(name)}: {CONTRADICTED}")
        refusals = [finding for finding in evaluation.findings if finding.refused and evaluation.decides is None]
        for text in dict.fromkeys(finding.text for finding in refusals):
            note(f"{plain_text(name)}: {plain_text(text)}")
        remedies += [finding.remedy for finding in refusals]
    for remedy in dict.fromkeys(filter(None, remedies)):
        note(f"this would help: {remedy}")
    print_line(plain_text(ranking.advice))


@app.command(short_help="The best model of each run, and the order of runs.")
@with_options(EvaluationOptions)
def choose(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, of one algorithm or several.")],
    dataset: Annotated[Path | None, typer.Option(metavar="DIR|FILE", help="Episodes to choose by.")] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of --dataset: name of the part to choose by, next to the part that each run learned from. "
            "Runs of several splits are ordered by their mean ranks; runs with the same name are one setting.",
        ),
    ] = None,
    models: Annotated[int, typer.Option(min=1, help="Number of models of a run to evaluate, evenly spaced.")] = 10,
    keep: Keep = KEPT,
    *,
    options: EvaluationOptions,
) -> None:
    """Choose a model of each run, and order the runs: checkpoints and hyperparameters without a simulator.

    The rank of a model is averaged with those of the models before and after it, because the best of many estimates is
    often only the luckiest.
    """
    arguments = {**options.arguments(), "keep": keep}
    if (dataset is None) == (part is None):
        raise ConfigError("give --dataset with the episodes to choose by, or --part with their name in each split")
    splits = {dataset: runs} if dataset is not None else _splits(runs, str(part))
    choices: dict[Path, dict[str, ope.Choice]] = {}
    notes: list[str] = []
    for path, folders in splits.items():
        files = {str(run): _spaced_models(run, models) for run in folders}
        choices[path], new = _choose_models(files, path, options, arguments)
        notes += new
    _print_notes(notes)
    if dataset is None:
        _print_settings(choices, notes, options.as_json)
    elif options.as_json:
        print(json.dumps({"notes": notes, "runs": _choices_as_json(choices[dataset])}))
    else:
        _print_choices(choices[dataset])


def _choose_models(
    files: Mapping[str, Sequence[Path]], dataset: Path, options: EvaluationOptions, arguments: Mapping[str, Any]
) -> tuple[dict[str, ope.Choice], list[str]]:
    """Choose a model of each run by one dataset; also return notes."""
    policies = options.load_policies([file for run_files in files.values() for file in run_files])
    options.check_target(*policies.values(), arguments["behaviour"])
    data, contents = _load_data(dataset)
    runs = {run: {str(file): policies[str(file)] for file in run_files} for run, run_files in files.items()}
    choices = ope.choose(runs, data, seen=_names_of_seen(policies, dataset, data, contents), **arguments)
    notes = _select_notes(dataset, contents, options.allow_reuse)
    if set_aside := [run for run in files if run not in choices]:
        notes.append(f"set aside by the screen, which keeps {arguments['keep']}: {', '.join(set_aside)}")
    overfitting = (_overfitting_note(files[run], options, data) for run in choices)
    return choices, notes + [text for text in overfitting if text is not None]


def _print_choices(choices: Mapping[str, ope.Choice]) -> None:
    """Print the chosen model of each run."""
    rows = [["MODEL", "MEAN RANK", *_GAIN_COLUMNS]]
    for run, choice in choices.items():
        if choice.name is None:
            rows.append([plain_text(run), *["-"] * 5, "refused", *["-"] * 3])
        else:
            cells = _gain_cells(choice.evaluations[choice.name])
            rows.append([plain_text(choice.name), f"{choice.rank:.1f}", *cells])
    print_table(rows)
    best = next(iter(choices.values())).name
    refused = "These logs cannot rank any of the models."
    print_line(refused if best is None else f"Take {plain_text(best)}, and certify it.")


def _print_settings(choices: Mapping[Path, dict[str, ope.Choice]], notes: Sequence[str], as_json: bool) -> None:
    """Print settings by their mean ranks over splits."""
    means = ope.mean_ranks([{Path(run).name: choice for run, choice in split.items()} for split in choices.values()])
    if as_json:
        data = {str(path): _choices_as_json(split) for path, split in choices.items()}
        print(json.dumps({"notes": notes, "mean_ranks": means, "splits": data}))
        return
    print_table([["SETTING", "MEAN RANK"], *([plain_text(name), f"{mean:.1f}"] for name, mean in means.items())])
    best = plain_text(next(iter(means)))
    print_line(f"Take {best}: train with it on all of these episodes, and certify the result on others.")


def _print_notes(notes: Sequence[str]) -> None:
    for text in notes:
        note(plain_text(text))


def _splits(runs: Sequence[Path], part: str) -> dict[Path, list[Path]]:
    """Group runs by the episodes that evaluate them."""
    splits: dict[Path, list[Path]] = {}
    for run in runs:
        trained = settings_of(run).get("dataset")
        if not isinstance(trained, str) or not Path(trained).is_dir():
            raise ConfigError(f"{run} does not name the folder that it learned from: --part needs runs of birl train")
        splits.setdefault(Path(trained).parent / part, []).append(run)
    names = [sorted(run.name for run in folders) for folders in splits.values()]
    odd = next(
        (split_names for split_names in names if split_names != names[0] or len(set(split_names)) < len(split_names)),
        None,
    )
    if odd is not None:
        raise ConfigError(
            f"splits have runs named {', '.join(names[0])} and {', '.join(odd)}: give one run of each setting in each "
            "split, in folders with the name of the setting"
        )
    return splits


def _choices_as_json(choices: dict[str, ope.Choice]) -> list[JSONObject]:
    return [
        {"run": run, "model": choice.name, "ranks": dict(zip(choice.evaluations, choice.ranks.tolist(), strict=True))}
        for run, choice in choices.items()
    ]


def _select_notes(dataset: Path, contents: str, allow_reuse: bool) -> list[str]:
    """Record that episodes select policies, before any answer is shown; return a note if they have certified."""
    reused = record_query(dataset, contents, SELECT, "", reuse=allow_reuse)
    return [f"these episodes have certified before: select by others ({dataset})"] if reused else []


def _print_verdicts(
    evaluations: dict[str, ope.Evaluation],
    verdicts: dict[str, ope.Verdict],
    out: Path | None,
    json_only: bool,
    notes: Sequence[str] = (),
    estimates: bool = True,
) -> None:
    if json_only:
        hidden = () if estimates else ("estimates",)
        data = [as_json(evaluations[name], verdicts[name]) for name in evaluations]
        visible = [{key: value for key, value in row.items() if key not in hidden} for row in data]
        print(json.dumps({"notes": list(notes), "policies": visible}))
        return
    for name, verdict in verdicts.items():
        print_line(f"{plain_text(name)}: {verdict.verdict}")
        for text in (*verdict.reasons, *verdict.remedies):
            print_line(f"  {plain_text(text)}")
        for text in verdict.turns:
            print_line(f"  {text}")
    if out is not None:
        note(f"{out / 'report.html'}: the evidence, and the assumptions that logs cannot check")
        for name in plans_by_file(verdicts):
            note(f"{out / name}: the plan of an online test, for birl ope read --plan")


def _gain_cells(evaluation: ope.Evaluation) -> list[str]:
    """Return the cells of `_GAIN_COLUMNS`."""
    row, gain = evaluation.gain, ["-"] * 3
    if row is not None and row.gain_interval is not None:
        gain = [f"{float(x):.4g}" for x in (row.gain.value, row.gain_interval.lower, row.gain_interval.upper)]
    ess = evaluation.facts.get("ess")
    differs = "-" if evaluation.differs is None else f"{evaluation.differs:.2f}"
    effective = "-" if ess is None else f"{ess:.0f}"
    return [*gain, effective, evaluation.decides or "refused", *second_opinions(evaluation), differs]


def _spaced_models(run: Path, count: int) -> list[Path]:
    """Return up to ``count`` models of a run, evenly spaced and including the newest."""
    files = models_of(run) if run.is_dir() else []
    if not files:
        raise FileError(f"{run} is no run folder with models (model_<step>.d3): give folders that birl train wrote")
    return [files[round(place)] for place in np.unique(np.linspace(len(files) - 1, 0, min(count, len(files))))]


def _overfitting_note(models: Sequence[Path], options: EvaluationOptions, data: ReplayBuffer) -> str | None:
    """Return a note if the values of a conservative critic indicate overfitting."""
    loaded = [load_model(file, options.device, options.import_)[1] for file in models]
    if not isinstance(loaded[0], CQL | CalQL | DiscreteCQL):
        return None
    peak = ope.turns_down([AverageValueEstimationEvaluator()(model, data) for model in loaded])
    if peak is None:
        return None
    return f"{models[peak]}: after this model, values of logged states fall, which is overfitting; prefer earlier ones"


def _exit_status(verdicts: dict[str, ope.Verdict]) -> int:
    """Return the exit status of the most useful verdict: ship, then test online, more data and so on."""
    order = ("ship", "test_online", "more_data", "do_not_ship", "cannot_tell")
    return ope.STATUS[min((verdict.verdict for verdict in verdicts.values()), key=order.index)]


def _tail(kind: str, share: float | None, min_gain: float | None) -> list[ope.LowerTail]:
    """Return the figure of the lower tail that options ask for, if any."""
    if share is None and min_gain is not None:
        raise ConfigError(f"--min-{kind}-gain is {min_gain}, but there is no --{kind}: give the share of the episodes")
    return [] if share is None else [ope.LowerTail(kind, share, min_gain)]


def _described(name: str, policy: LoadedPolicy) -> str:
    """Return a description of a policy as text."""
    if isinstance(policy, PolicyAPI | StatefulTransformerWrapper):
        return _policy_text(policy.serving_description())
    if isinstance(policy, ope.DecisionTable):
        return f"decision table of {len(policy.rules)} rules"
    return f"{getattr(policy, '__name__', type(policy).__name__)} of {name}"


def _policy_text(description: Mapping[str, object]) -> str:
    """Return a description of a policy as text: EpsilonGreedy of DiscreteCQL, epsilon 0.1."""
    known = ("type", "draws", "of", "members", "weight")
    parts = [f"{key} {value}" for key, value in description.items() if key not in known]
    members = description.get("members")
    for member in members if isinstance(members, list) else ():
        parts.append(f"{member['weight']:g} of ({_policy_text(member)})")
    algorithm = f" of {description['of']}" if "of" in description else ""
    return ", ".join([f"{description['type']}{algorithm}{'' if description['draws'] else ', greedy'}", *parts])


def _load_data(path: Path) -> tuple[ReplayBuffer, str]:
    """Load the dataset; also return the digest of its contents."""
    if not path.exists():
        raise FileError(f"there is no {path}: give a folder that birl data split wrote, or a file .h5")
    data = load_dataset(str(path))
    return data, digest(data.reader.storages)


def _digest_of(name: str) -> str:
    """Return the digest of a model file, or of the newest model of a folder; keywords stay as they are."""
    if name in _KEYWORDS:
        return name
    path = Path(name)
    if is_import(path):  # the text of its module; data that the module reads are not seen
        found = importlib.import_module(name.partition(":")[0]).__file__
        return name if found is None else hashlib.sha256(Path(found).read_bytes() + name.encode()).hexdigest()
    file = newest_model(path) if path.is_dir() else path
    return name if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def _names_of_seen(policies: Mapping[str, LoadedPolicy], dataset: Path, data: ReplayBuffer, contents: str) -> set[str]:
    """Return the policies that learned from these episodes, by their records or those of their run folders."""
    held_out_rows = HeldOutRows(data)
    seen = held_out_rows.seen_by(policies)
    for name in policies:
        if name in seen:
            continue
        trained = settings_of(Path(name)).get("dataset")
        if not isinstance(trained, str):
            continue
        source, held_out = Path(trained).resolve(), dataset.resolve()
        nested = source == held_out or source in held_out.parents or held_out in source.parents  # a part of the other
        if nested and source.exists():
            seen.add(name)
            continue
        try:
            storages = load_dataset(trained).reader.storages
            same = digest(storages) == contents
            learned = RowSketch.of(np.concatenate([row_digests(each) for each in storages]), MAX_ROWS)
        except BirlError as error:
            note(f"{trained}, which {name} learned from, cannot be read and may be this dataset: {error}")
            continue
        if same or held_out_rows.shared_with(learned):
            seen.add(name)
    return seen
