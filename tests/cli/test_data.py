"""``birl data``: from files to parts that algorithms learn from, by the commands of the guide."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from birl.dataset import ReplayBuffer
from birl.datasets import get_dataset, write_minari
from birl.run.fingerprint import digest

GUIDE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pyarrow.Table:
    """The table of the guide, in two files, and its schema; without clusters."""
    monkeypatch.chdir(tmp_path)
    script = "\n".join(re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.DOTALL | re.MULTILINE))
    (tmp_path / "page.py").write_text(script, encoding="utf-8")
    table = runpy.run_path("page.py")["table"].drop_columns(["driver"])
    own = re.sub("cluster = .*", "", Path("schema.toml").read_text(encoding="utf-8"))
    Path("schema.toml").write_text(own, encoding="utf-8")
    (tmp_path / "logs").mkdir()
    for index in range(2):
        pyarrow.parquet.write_table(table.slice(600 * index, 600), f"logs/{index}.parquet")
    capsys.readouterr()  # what the guide prints
    return table


def test_a_proposal_without_a_reward_warns_on_standard_error(birl_: Any, logs: pyarrow.Table) -> None:
    birl_("data", "schema", "logs/0.parquet")
    assert "no column is named like the reward" not in birl_.notes
    names = ["profit" if name == "reward" else name for name in logs.column_names]
    pyarrow.parquet.write_table(logs.rename_columns(names), "logs/named.parquet")
    birl_("data", "schema", "logs/named.parquet")
    assert "be among the observations: move it to [reward]" in birl_.notes


def test_the_commands_of_the_guide(birl_: Any, logs: pyarrow.Table) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```", GUIDE, flags=re.DOTALL | re.MULTILINE)
    corrected = Path("schema.toml").read_text(encoding="utf-8")
    for line in block.splitlines():
        words = shlex.split(line, comments=True)[1:]
        if ">" in words:
            proposed = birl_(*words[: words.index(">")])
            Path(words[-1]).write_text(proposed)
            assert "Proposed for 1200 rows" in proposed
            assert 'episode = "trip"   # its name; text, 200 different' in proposed
            continue
        if words[0] == "data" and words[1] == "import":
            assert "schema.toml: action has no kind: give kind" in birl_(*words, status=1)  # it is a proposal
            Path("schema.toml").write_text(corrected)
        if words[0] == "train":
            words[words.index("50000")] = "10"
            words += ["--set", "batch_size=8"]
        said = birl_(*words)
        if words[:2] == ["data", "import"]:
            assert said.startswith("data: 200 episodes, 200 of them terminated, 1200 of 1200 rows")
        if words[:2] == ["data", "report"]:
            assert said.startswith("data: 200 episodes, 1200 steps; ")
            assert "doubtful: the mean of 1 / propensity differs from the number of actions" in said
            assert "<h2" in Path("report.html").read_text("utf-8")
        if words[:2] == ["data", "split"]:
            assert [line.split() for line in said.splitlines()] == [
                ["PART", "EPISODES", "STEPS"],
                ["data/train", "120", "720"],
                ["data/select", "40", "240"],
                ["data/certify", "40", "240"],
            ]
    assert list(Path("runs/cql").glob("model_*.d3"))
    assert "EPISODES    : 120, 120 of them terminated" in birl_("stats", "data/train")
    assert json.loads(Path("data/select/import.json").read_text())["part"]["name"] == "select"


def test_rows_that_are_left_out_are_reported(birl_: Any, logs: pyarrow.Table) -> None:
    text = 'cluster = "version"\nduplicates = "first"\n' + Path("schema.toml").read_text(encoding="utf-8")
    Path("schema.toml").write_text(text.replace('missing = "forward"', 'missing = "drop"').replace("fill = 0.0", ""))
    holes = logs.set_column(logs.column_names.index("speed"), "speed", pyarrow.array([None] + [0.5] * 1199))
    pyarrow.parquet.write_table(pyarrow.concat_tables([holes, holes.slice(600, 6)]), "holes.parquet")
    command = ["data", "import", "holes.parquet", "--schema"]
    birl_(*command, "schema.toml", "--out", "data")
    assert "left out: 1 episodes, 6 rows: observation 'speed' is missing" in birl_.notes
    assert "left out: 6 rows with the episode and time" in birl_.notes
    said = birl_("data", "split", "data", "--by", "cluster", status=1)
    assert "would have 1 of 2 clusters" in said or "would have 0 of 2 clusters" in said
    assert "'train' is not name=share" in birl_("data", "split", "data", "--shares", "train", status=1)
    assert "exists already" in birl_(*command, "schema.toml", "--out", "data", status=1)
    assert "there is no file 'nowhere.csv'" in birl_("data", "schema", "nowhere.csv", status=1)
    assert "nowhere.toml" in birl_(*command, "nowhere.toml", "--out", "x", status=1)
    assert "Usage" in birl_("data", "import", "--help")


def test_pending_rewards_are_reported(birl_: Any, logs: pyarrow.Table) -> None:
    days = pyarrow.array(np.arange(len(logs)) * 86400, pyarrow.timestamp("s"))
    dated = logs.set_column(logs.column_names.index("at"), "at", days)
    pyarrow.parquet.write_table(dated, "dated.parquet")
    text = Path("schema.toml").read_text(encoding="utf-8")
    Path("delayed.toml").write_text(text.replace("[reward]", "[reward]\ndelay = 604800.0"))
    birl_("data", "import", "dated.parquet", "--schema", "delayed.toml", "--out", "dated")
    assert (
        "pending: 2 episodes, the first from 1973-04-03, have rewards that were not final when the log ended "
        "(1973-04-14): evaluations leave out episodes from then on"
    ) in birl_.notes


def test_interleaved_rows_and_episodes_without_a_part_are_reported(birl_: Any, logs: pyarrow.Table) -> None:
    text = Path("schema.toml").read_text(encoding="utf-8")
    Path("schema.toml").write_text(re.sub(r"(?m)^(time|terminated|truncated) = .*", "", text))
    command = ["data", "import", "--schema", "schema.toml", "--out"]
    birl_(*command, "whole", "logs/*.parquet")
    assert "no time is named" not in birl_.notes
    birl_("data", "split", "whole")
    assert "the shares sum" not in birl_.notes
    birl_("data", "split", "whole", "--shares", "train=.5,select=.2", "--out", "less")
    assert "the shares sum to 0.7: the remaining episodes are in no part" in birl_.notes
    pyarrow.parquet.write_table(logs.take(np.random.default_rng(0).permutation(1200)), "shuffled.parquet")
    birl_(*command, "shuffled", "shuffled.parquet")
    assert "rows of 200 episodes are interleaved with others" in birl_.notes


def test_fresh_replaces_imports_and_all_earlier_parts(birl_: Any, logs: pyarrow.Table) -> None:
    command = ["data", "import", "logs/*.parquet", "--schema", "schema.toml", "--out", "data"]
    birl_(*command)
    birl_("data", "split", "data", "--shares", "a=.5,b=.5")
    refused = "data exists already: give another folder, or replace it with --fresh"
    assert refused in birl_(*command, status=1)
    assert "a exists already" in birl_("data", "split", "data", "--shares", "a=.4", status=1)
    birl_("data", "report", "data", "--out", "data", "--json", "data")
    episodes = [tuple(map(float, each.rewards.ravel())) for each in ReplayBuffer.open("data").episodes]

    birl_("data", "split", "data", "--shares", "b=.3,c=.4", "--seed", 1, "--fresh")
    assert sorted(path.name for path in Path("data").iterdir() if path.is_dir()) == ["b", "c"]
    parts = [len(ReplayBuffer.open(f"data/{name}").episodes) for name in "bc"]
    assert parts == [60, 80] and len(episodes) == 200

    Path("data/c/queries.json").write_text("[]")
    assert "it records the questions that these episodes have answered" in birl_(*command, "--fresh", status=1)
    Path("data/c/queries.json").unlink()
    for own in (Path("data/c/notes.txt"), Path("data/c/notes.json")):
        own.write_text("mine")
        for words in (command, ["data", "split", "data", "--shares", "b=.5"]):
            assert f"{own} would be removed with" in birl_(*words, "--fresh", status=1)
        assert own.read_text() == "mine" and len(ReplayBuffer.open("data/b").episodes) == 60
        own.unlink()
    birl_(*command, "--fresh")
    assert not any(path.is_dir() for path in Path("data").iterdir())
    assert not any(path.name.startswith(".new-") for path in Path().iterdir())
    assert [tuple(map(float, each.rewards.ravel())) for each in ReplayBuffer.open("data").episodes] == episodes
    command[-1] = "logs"
    assert "logs is not the folder of an import or a split" in birl_(*command, "--fresh", status=1)


def test_clusters_are_not_split_by_episode(birl_: Any, logs: pyarrow.Table) -> None:
    trips = logs["trip"].to_pylist()
    number = {trip: index for index, trip in enumerate(dict.fromkeys(trips))}
    text = 'cluster = "user"\n' + Path("schema.toml").read_text(encoding="utf-8")
    Path("schema.toml").write_text(text)
    for name, size, status in (("alone", 1, 0), ("pairs", 2, 1)):
        users = pyarrow.array([number[trip] // size for trip in trips])
        pyarrow.parquet.write_table(logs.append_column("user", users), f"{name}.parquet")
        birl_("data", "import", f"{name}.parquet", "--schema", "schema.toml", "--out", name)
        said = birl_("data", "split", name, "--by", "episode", status=status)
        assert ("the episodes belong to clusters, which would be in several parts" in said) == bool(status)
        birl_("data", "split", name, "--by", "cluster", "--out", f"{name}-parts", "--shares", "a=.5,b=.5")


def test_reports_name_columns_loggers_and_other_parts(birl_: Any, logs: pyarrow.Table) -> None:
    names = {"version": "<script>", "speed": "<b>"}
    logs = logs.rename_columns([names.get(name, name) for name in logs.column_names])
    pyarrow.parquet.write_table(logs, "hostile.parquet")
    text = Path("schema.toml").read_text(encoding="utf-8").replace('column = "speed"', 'column = "<b>"')
    Path("schema.toml").write_text(text.replace('logger = "version"', 'logger = "<script>"'))
    birl_("data", "import", "hostile.parquet", "--schema", "schema.toml", "--out", "data")
    birl_("data", "split", "data")
    command = ["data", "report", "data/certify", "--other", "data/train", "--gamma", "0.9", "--seed", "1"]
    said = birl_(*command, "--json", "r.json", "--out", "r.html")
    assert said.startswith("data/certify: 40 episodes, 240 steps; ")
    assert "there are 40 episodes; at least 100 is safe" in said
    report = json.loads(Path("r.json").read_text("utf-8"))
    checks = {check["title"]: check for check in report["checks"]}
    columns = [row[0] for row in checks["Observations"]["tables"]["Columns"]["rows"]]
    assert columns == ["<b>", "<b> is missing", "weather = sun", "weather = rain", "weather is unknown"]
    assert {row[0] for row in checks["Returns"]["tables"]["By logger"]["rows"]} == {"v1", "v2"}
    assert checks["Order"]["tables"]["Other parts"]["rows"] == [["data/train", 0.0]]
    assert checks["Observations"]["facts"]["part_auc"] is not None
    page = Path("r.html").read_text("utf-8")
    assert "<b> is" not in page and "&lt;b&gt; is missing" in page
    assert all(one["message"][:60] in said for one in report["messages"])
    assert birl_(*command) == said  # the same without files
    assert "there is no file or folder 'nowhere'" in birl_("data", "report", "nowhere", status=1)
    assert "no/r.html" in birl_(*command, "--out", "no/r.html", status=1)
    Path("data/certify/import.json").write_text("[]")
    assert "is not a JSON object" in birl_(*command, status=1)


def test_a_query_instead_of_files(birl_: Any, logs: pyarrow.Table) -> None:
    sql = "select * from 'logs/*.parquet' where version = 'v2'"
    command = ["data", "import", "--schema", "schema.toml", "--out", "data"]
    assert re.match(r"data: \d+ episodes, \d+ of them terminated, (\d+) of \1 rows", birl_(*command, "--sql", sql))
    assert json.loads(Path("data/import.json").read_text())["files"][0]["sql"] == sql
    assert "rows of the query." in birl_("data", "schema", "--sql", sql)
    assert "there are no logs: give files, or a query" in birl_(*command, status=1)
    assert "give files or --sql" in birl_(*command, "logs/0.parquet", "--sql", sql, status=1)
    assert "--database x needs --sql" in birl_(*command, "logs/0.parquet", "--database", "x", status=1)


@pytest.mark.filterwarnings("ignore:env_spec is None:UserWarning")  # of Minari
def test_episodes_for_other_programs(birl_: Any, logs: pyarrow.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path.cwd() / "minari"))
    birl_("data", "import", "logs/*.parquet", "--schema", "schema.toml", "--out", "data")
    assert birl_("data", "export", "data", "steps.parquet") == "steps.parquet: 200 episodes, 1200 rows\n"
    assert set(pyarrow.parquet.read_table("steps.parquet")["logger"].to_pylist()) == {"v1", "v2"}
    said = birl_("data", "import", "steps.parquet", "--schema", "steps.toml", "--out", "again")
    assert said.startswith("again: 200 episodes, 200 of them terminated, 1200 of 1200 rows")
    assert digest([ReplayBuffer.open("again").storage]) == digest([ReplayBuffer.open("data").storage])
    assert birl_("data", "export", "data", "my/trips-v0") == "my/trips-v0: 200 episodes, 1200 steps\n"
    assert len(minari.load_dataset("my/trips-v0")) == 200
    birl_("data", "export", "pendulum-random", "swing-v0", "--env-id", "Pendulum-v1")
    assert minari.load_dataset("swing-v0").recover_environment().spec.id == "Pendulum-v1"
    assert "'steps.csv' has an unknown format: write to" in birl_("data", "export", "data", "steps.csv", status=1)
    assert "--env-id x is for Minari" in birl_("data", "export", "data", "x.parquet", "--env-id", "x", status=1)
    assert "steps.parquet exists already" in birl_("data", "export", "data", "steps.parquet", status=1)
    assert "there is no file or folder 'nowhere'" in birl_("data", "export", "nowhere", "x.parquet", status=1)


@pytest.mark.filterwarnings("ignore:env_spec is None:UserWarning")  # of Minari
@pytest.mark.filterwarnings("error:the environment of")  # none is needed, so none is missed
@pytest.mark.parametrize(
    "command",
    [
        ("data", "report", "my/own-v0", "--out", "r.html"),
        ("stats", "my/own-v0"),
        ("train", "BC", "--dataset", "my/own-v0", "--n-steps", "2", "--out", "run"),
    ],
)
def test_a_minari_dataset_chooses_no_code(
    birl_: Any, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    write_minari(get_dataset("pendulum-random")[0], "my/own-v0")
    (file,) = tmp_path.rglob("metadata.json")
    spec = {
        "id": "Own-v0",
        "entry_point": "os:mkdir",
        "kwargs": {"path": str(tmp_path / "made")},
        "additional_wrappers": [],
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"env_spec": json.dumps(spec)}))
    birl_(*command)
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_the_loop_over_five_splits_as_the_guide_has_it(
    birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every word of it but the number of steps; the shell's part, the loop and patterns of folders, is played here."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "ope.md").read_text(encoding="utf-8")
    (block,) = [own for own in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if "for k in" in own]
    before, rest = block.split("for k in 0 1 2 3 4; do\n")
    inside, after = rest.split("done\n")
    lines = before.splitlines() + [line.replace("$k", str(k)) for k in range(5) for line in inside.splitlines()]
    rng = np.random.default_rng(0)
    schema = 'episode = "visit"\nterminated = "over"\n[[observation]]\ncolumn = "x"\n[action]\ncolumn = "offer"\n'
    schema += 'kind = "discrete"\nsize = 2\n[reward]\ncolumn = "paid"\n[propensity]\ncolumn = "p"\nkind = "probability"'
    Path("schema.toml").write_text(schema, encoding="utf-8")
    Path("logs").mkdir()
    for month in range(1, 10):
        x, offer = rng.normal(size=50), rng.integers(2, size=50)
        visit, over = np.repeat([f"{month}-{k}" for k in range(25)], 2), np.tile([0, 1], 25)
        rows = {"visit": visit, "over": over, "x": x, "offer": offer, "paid": (offer == (x > 0)) * 1.0}
        pyarrow.parquet.write_table(pyarrow.table({**rows, "p": np.full(50, 0.5)}), f"logs/2026-0{month}.parquet")
    for line in lines:
        words = shlex.split(line)[1:]
        if words[0] == "train":
            words[words.index("5000")] = "2"
            words += ["--set", "batch_size=8"]
        birl_(*words)
    (line,) = after.splitlines()
    words = shlex.split(line)[1:]
    said = birl_(*(str(found) for word in words for found in (sorted(Path().glob(word)) if "*" in word else [word])))
    assert sorted(row.split()[0] for row in said.splitlines()[1:3]) == ["bc", "cql"]
    assert said.splitlines()[0].split() == ["SETTING", "MEAN", "RANK"]
    assert "train with it on all of these episodes" in said
    assert not Path("certify/queries.json").exists()  # it was not asked


def test_tables_are_not_datasets(birl_: Any, logs: pyarrow.Table) -> None:
    said = birl_("train", "DiscreteBC", "--dataset", "logs/0.parquet", status=1)
    assert "'logs/0.parquet' is a table: birl data schema logs/0.parquet > schema.toml" in said
    assert "birl data import logs/0.parquet --schema schema.toml --out episodes" in said
    said = birl_("train", "DiscreteBC", "--dataset", "logs", status=1)
    assert "'logs' is a folder without episodes: give one that birl data import or birl data split wrote" in said


def test_files_of_other_programs(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    count, length = 120, 4
    seen = np.arange(count * length * 2, dtype=np.float32).reshape(-1, 2)
    ends = np.arange(count * length) % length == length - 1
    arrays = {"observations": seen, "actions": np.ones((len(seen), 1), np.float32), "terminals": ends}
    np.savez("maze.npz", **arrays)
    printed = birl_("data", "import", "maze.npz", "--out", "data")
    assert printed == "data: 120 episodes, 0 of them terminated, 360 steps, format ogbench\n"
    assert "has no rewards" in birl_.notes
    dataset = ReplayBuffer.open("data")
    assert dataset.transition_count == 360
    np.testing.assert_array_equal(dataset.episodes[1].final_observation, seen[7])
    record = json.loads(Path("data/import.json").read_text())
    assert (record["format"], record["episodes"], record["files"][0]["file"]) == ("ogbench", 120, "maze.npz")
    assert "120 episodes" in birl_("data", "report", "data")
    assert "train" in birl_("data", "split", "data", "--shares", "train=.5,certify=.5")
    assert ReplayBuffer.open("data/train").size() == 60
    steps = {"observation": seen, "action": arrays["actions"], "reward": np.ones(len(seen)), "is_last": ends}
    np.savez("robot.npz", **steps, is_terminal=ends)
    assert "last_step='step'" in birl_("data", "import", "robot.npz", "--out", "robot", status=1)
    assert not Path("robot").exists()
    printed = birl_("data", "import", "robot.npz", "--format", "rlds", "--option", "last_step=step", "--out", "robot")
    assert printed == "robot: 120 episodes, 120 of them terminated, 480 steps, format rlds\n"
    for words, match in (
        (["--format", "rdls"], "did you mean 'rlds'"),
        (["--option", "lastep=step"], "no option 'lastep'; it has: observation_keys, last_step"),
        (["--option", "last_step"], "is not NAME=VALUE"),
        (["--sql", "select 1"], "--sql needs --schema"),
        (["--schema", "a.toml", "--format", "rlds"], "give one kind"),
    ):
        assert match in birl_("data", "import", "robot.npz", "--out", "other", *words, status=1)
    refused = birl_("data", "report", "robot.npz", status=1)
    assert "format rlds of another program: birl data import robot.npz --out" in refused


def test_a_schema_of_columns_of_lerobot(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frames = {
        "observation.state": np.arange(24.0).reshape(12, 2).tolist(),
        "action": np.arange(12.0).reshape(12, 1).tolist(),
        "episode_index": np.repeat([0, 1, 2], 4),
        "frame_index": np.tile(np.arange(4), 3),
        "timestamp": np.tile(np.arange(4) / 10, 3),
        "index": np.arange(12),
        "task_index": np.zeros(12, np.int64),
        "next.reward": np.arange(12) / 12,
        "next.done": np.arange(12) % 4 == 3,
        "next.success": np.arange(12) % 8 == 7,
    }
    pyarrow.parquet.write_table(pyarrow.table(frames), "file-000.parquet")
    proposed = birl_("data", "schema", "file-000.parquet")
    for line in (
        'episode = "episode_index"', 'time = "timestamp"', 'terminated = "next.done"', 'column = "next.reward"',
        '# not used: "next.success"', '# not used: "frame_index"', '# not used: "index"',
    ):  # fmt: skip
        assert line in proposed
    Path("schema.toml").write_text(proposed)
    birl_("data", "import", "file-000.parquet", "--schema", "schema.toml", "--out", "data")
    (episode, *_) = ReplayBuffer.open("data").episodes
    assert episode.terminated
    assert episode.observations.tolist() == frames["observation.state"][:4]
