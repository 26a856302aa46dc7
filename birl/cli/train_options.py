"""Options of ``birl train``."""

from __future__ import annotations

from typing import Annotated

import typer

from birl.cli.online import BUFFER_SIZE, ErrorAction, ExplorerName, Gradients, HindsightGoals, Order
from birl.run.cluster import AUTO


def _fragment(word: str) -> int | str:
    """A number of steps, or ``auto``."""
    return word if word == AUTO else int(word)


EpochLength = Annotated[
    int | None, typer.Option(min=1, help="Steps between evaluations and models; by default a tenth, at most 10000.")
]
Trials = Annotated[int | None, typer.Option(min=1, help="Episodes of each evaluation.  [default: 10]")]
StopAt = Annotated[
    float | None, typer.Option(metavar="SCORE", help="End the run when an evaluation's mean return is as high.")
]
KeepModels = Annotated[
    int | None, typer.Option(min=1, help="Number of newest models kept beside the best; by default all.")
]
MultiStep = Annotated[
    int | None, typer.Option(min=1, help="Steps whose rewards a transition adds up (n-step returns).  [default: 1]")
]
Prioritized = Annotated[
    bool, typer.Option("--prioritized", help="Draw steps by their errors (prioritised replay), not uniformly.")
]
PriorityAlpha = Annotated[
    float | None, typer.Option(min=0, max=1, help="How much errors count; 0 is uniform.  [default: 0.6]")
]
PriorityBeta = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Share of the bias that is corrected at first; it rises to 1.  [default: 0.4]"),
]
Demonstrations = Annotated[
    str | None, typer.Option(metavar="NAME|FILE.h5", help="Online: an expert's steps, as of `birl collect`, for GAIL.")
]
NumEnvs = Annotated[
    int | None, typer.Option(min=1, help="Online: number of environments to train in at once.  [default: 1]")
]
FrameStacked = Annotated[
    int | None, typer.Option(min=1, help="Online: last observations that are joined to one.  [default: 1]")
]
ActionMasked = Annotated[
    bool,
    typer.Option(
        "--action-mask", help="Take only actions that the environment allows by its masks, info[action_mask]."
    ),
]
ExplorerKind = Annotated[
    ExplorerName | None,
    typer.Option(
        help="Online: random or noisy actions instead of the greedy ones, or greedy ones alone; by default "
        "epsilon-greedy (discrete) or noise (continuous actions), and none for policies that are random themselves, "
        "such as SAC's."
    ),
]
EpsilonStart = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of random actions at first.  [default: 1]")
]
EpsilonEnd = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of random actions in the end.  [default: 0.05]")
]
EpsilonSteps = Annotated[
    int | None, typer.Option(min=1, help="Steps between these two.  [default: a fifth of --n-steps]")
]
EpsilonDecay = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Factor of that share in each step, instead of a straight line."),
]
ConstantEpsilon = Annotated[float | None, typer.Option(min=0, max=1, help="Share of random actions throughout.")]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="Of --explorer boltzmann, in units of returns.  [default: 1]")
]
NoiseStd = Annotated[
    str | None,
    typer.Option(
        metavar="X[,Y…]",
        help="Deviation of the noise, in the environment's units; of ou-noise that of each step. One number, or one "
        "for each quantity.  [default: a 20th of the range; a 10th for ou-noise]",
    ),
]
NoiseTheta = Annotated[
    float | None, typer.Option(min=0, max=1, help="Of ou-noise: how strongly it is drawn to 0.  [default: 0.15]")
]
RandomSteps = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Online: steps with random actions before the first update.  [default: a tenth of --n-steps, at most "
        "1000]",
    ),
]
BufferSize = Annotated[
    int | None, typer.Option(min=1, help=f"Online: newest steps that are kept.  [default: {BUFFER_SIZE}]")
]
WholeEpisodes = Annotated[
    bool, typer.Option("--whole-episodes", help="Online: keep and drop whole episodes, not single steps.")
]
Recent = Annotated[
    float | None,
    typer.Option(
        "--recent",
        metavar="ETA",
        min=0,
        max=1,
        help="Online: draw new steps more often (ERE), the more, the lower; 0.996 is usual. It rises to 1, uniform "
        "draws, over the run.",
    ),
]
Hindsight = Annotated[
    HindsightGoals | None,
    typer.Option(
        help="Online: learn as if goals that were achieved in the same episode had been pursued (HER): states after "
        "the step, the last one, or any. For environments like Gymnasium's GoalEnv, with compute_reward."
    ),
]
HindsightShare = Annotated[
    float | None,
    typer.Option(
        "--hindsight-k", metavar="K", min=0, help="Steps with such goals for each with its own.  [default: 4]"
    ),
]
Shift = Annotated[
    int | None,
    typer.Option(
        "--random-shift",
        metavar="PIXELS",
        min=1,
        help="Online: shift the images of minibatches at random by up to so many pixels (DrQ); 4 is usual.",
    ),
]
UpdateInterval = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Online: steps between updates; for AWR some 2048, as an update takes long.  [default: 1; 2 for "
        "DQN and its kind]",
    ),
]
NUpdates = Annotated[
    int | None,
    typer.Option(
        min=1, help="Online: updates after every --update-interval steps.  [default: 1; 20 for REDQ and DroQ]"
    ),
]
LoggingSteps = Annotated[
    int | None, typer.Option(min=1, help="Write metrics every so many steps, not only once an epoch.")
]
LogGradients = Annotated[
    bool, typer.Option("--log-gradients", help="Write statistics of the gradients of every parameter, too.")
]
EvalSteps = Annotated[
    int | None, typer.Option(min=1, help="Online: steps of each evaluation, instead of --n-trials episodes.")
]
EvalEpsilon = Annotated[
    float | None, typer.Option(min=0, max=1, help="Online: share of random actions in evaluations.  [default: 0]")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Online: processes that find gradients, each in environments of its own (A3C, NStepDQN)."),
]
Collectors = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Online: processes that make the steps, each in --num-envs environments of its own, while this one "
        "learns. See birl.Cluster.",
    ),
]
CollectorOrder = Annotated[
    Order | None,
    typer.Option(
        "--order",
        help="Of --collectors: one fragment of each, then updates; one after another by number; or as they arrive, "
        "which no seed repeats.  [default: turns; together for algorithms that learn from rollouts]",
    ),
]
FragmentLength = Annotated[
    str | None,
    typer.Option(
        "--fragment",
        metavar="STEPS|auto",
        parser=_fragment,
        help="Of --collectors: steps that each environment makes at once; auto measures how many.  [default: 50]",
    ),
]
OnError = Annotated[
    ErrorAction | None,
    typer.Option(
        "--on-error",
        help="Of --collectors: an environment that raises an error ends the run, or is made anew.  [default: stop]",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Of --collectors, or of the runs of --seeds: Ray places them, in its cluster there; auto finds it, local "
        "is this machine.",
    ),
]
SynchronousLearners = Annotated[
    int | None,
    typer.Option(
        min=1, help="Of --collectors: processes that learn, this one included, each from its own share of the steps."
    ),
]
GradientsOf = Annotated[
    Gradients | None,
    typer.Option(
        "--gradients",
        help="Of --learners: averaged in each update, or pushed to this process in turn.  [default: together]",
    ),
]
ReplayShards = Annotated[
    int | None,
    typer.Option(min=0, help="Of --collectors: processes that draw the minibatches of a replay for this one."),
]
EvalStatistics = Annotated[
    bool,
    typer.Option("--eval-statistics", help="Online: median, deviation, least and greatest return of evaluations, too."),
]
AtariGame = Annotated[
    bool,
    typer.Option(
        "--atari",
        help="Online: the usual preprocessing of an Atari game: grey frames of 84x84, four steps an action, no sticky "
        "actions; in training, clipped rewards and episodes of one life.",
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME",
        help="Published settings, which are printed with their sources; what you set yourself stays. See birl.recipes.",
    ),
]
