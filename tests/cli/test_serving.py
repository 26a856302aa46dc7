"""From rows of a log to actions without birl: exports with their schemas, and the reference server that reads them."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.algorithm.export_schema import schema_of
from birl.cli import main
from birl.dataset import LogSchema, ReplayBuffer, dump
from birl.dataset.log_record import LogRecord, Origin, load_record
from birl.dataset.logs.files import import_files
from birl.errors import ConfigError, CorruptFileError
from birl.preprocessing import MinMaxActionScaler

SERVER = Path(__file__).parents[2] / "examples" / "serve_policy.py"
QUIET: Any = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}
ALONE = f"""
import importlib, runpy, sys
for name in ("birl", "torch", "pyarrow"):
    sys.modules[name] = None  # importing it fails
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    sys.exit(f"{{name}} can be imported")
sys.argv = [{str(SERVER)!r}, *sys.argv[1:]]
runpy.run_path({str(SERVER)!r}, run_name="__main__")
"""
SCHEMA = """
episode = "trip"
time = "at"
terminated = "arrived"

[[observation]]
column = "speed"
missing = "forward"
fill = -1.0
indicator = true

[[observation]]
column = "weather"
values = ["sun", "rain"]
unknown = true

[[observation]]
column = "gear"
values = [1, 2, 3]

[[observation]]
column = "load"
missing = "fill"
fill = 0.5

[action]
column = "lane"
kind = "discrete"
values = ["left", "keep", "right"]

[reward]
column = "reward"

[propensity]
column = "probability"
kind = "probability"
"""


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A log as CSV, with its schema; its rows as a reader of CSV gives them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        {
            "trip": f"trip {index // 4}", "at": index % 4, "arrived": int(index % 4 == 3),
            "speed": "" if rng.random() < 0.3 else round(float(rng.normal()), 3),
            "weather": rng.choice(["sun", "rain", "hail", ""]), "gear": int(rng.integers(1, 4)),
            "load": "" if rng.random() < 0.3 else round(float(rng.random()), 3),
            "lane": rng.choice(["left", "keep", "right"]), "reward": round(float(rng.normal()), 3),
            "probability": 1 / 3,
        }
        for index in range(400)
    ]  # fmt: skip
    with open("trips.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    Path("schema.toml").write_text(SCHEMA)
    with open("trips.csv", newline="") as file:
        return list(csv.DictReader(file))


@contextmanager
def served(policy: str) -> Iterator[str]:
    """The address of the server, in a process of its own that has no birl."""
    command = [sys.executable, "-I", "-c", ALONE, policy, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.stderr.read()
            yield address
        finally:
            process.kill()


def post(address: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def check_limits(address: str) -> None:
    """No client takes the server's memory, all of its threads, or its time."""
    host, port = address.removeprefix("http://").split(":")
    for size in (-1, 2**20 + 1, 10**30, "x"):
        with socket.create_connection((host, int(port)), 60) as client:
            client.sendall(f"POST / HTTP/1.0\r\nContent-Length: {size}\r\n\r\n".encode())
            assert b" 400 " in client.makefile("rb").readline()
    silent = [socket.create_connection((host, int(port)), 60) for _ in range(40)]
    silent[0].sendall(b"POST / HTTP/1.0\r\nContent-Length: 9\r\n\r\n{")
    for client in silent[:2]:
        assert client.recv(1) == b""  # the server has closed the connection
    for client in silent:
        client.close()


def observed(data: str) -> np.ndarray:
    return np.concatenate([episode.observations for episode in ReplayBuffer.open(data).episodes])


def test_rows_of_a_log_get_the_actions_of_the_policy(birl_: Any, trips: list[dict[str, Any]]) -> None:
    birl_("data", "import", "trips.csv", "--schema", "schema.toml", "--out", "data")
    birl_("train", "DiscreteCQL", "--dataset", "data", "--n-steps", 30, "--out", "run", "--set", "learning_rate=0.01")
    Path("run/model_30.d3").rename("alone.d3")  # nothing but the file tells what it learned from
    said = birl_("export", "alone.d3", "policy.onnx")
    assert "policy.onnx: the greedy policy of alone.d3" in said and "policy.schema.json" in said
    assert "does not name the numbers" not in birl_.notes
    schema = json.loads(Path("policy.schema.json").read_text())
    assert schema["policy"] == {"type": "DiscreteCQL", "draws": False}
    assert schema["model"] == {
        "file": "policy.onnx",
        "sha256": hashlib.sha256(Path("policy.onnx").read_bytes()).hexdigest(),
    }
    (column_,) = schema["inputs"]
    assert {key: column_[key] for key in ("name", "dtype", "shape", "role")} == {
        "name": "input_0", "dtype": "float32", "shape": [None, 9], "role": "observation",
    }  # fmt: skip
    assert schema["action"] == {"kind": "discrete", "size": 3, "column": "lane", "values": ["left", "keep", "right"]}
    assert schema["logs"]["origins"] == [hashlib.sha256(Path("data/import.json").read_bytes()).hexdigest()]

    right = birl.load_learnable("alone.d3").predict(observed("data"))
    lanes = ["left", "keep", "right"]
    assert len(set(right.tolist())) > 1
    with served("policy.onnx") as address:
        found = []
        for trip in dict.fromkeys(row["trip"] for row in trips):  # the steps of an episode are sent together
            status, answer = post(address, {"rows": [row for row in trips if row["trip"] == trip]})
            assert status == 200
            found += answer["actions"]
        assert found == [lanes[action] for action in right]

        row = {**trips[0], "speed": 1.0, "weather": "sun", "load": 0.1}
        for change, wrong in {
            "unknown category": {"gear": 4}, "missing value": {"gear": ""},
            "could not convert string to float: 'fast'": {"speed": "fast"}, "not a finite number": {"load": "1e99"},
        }.items():  # fmt: skip
            ((column, value),) = wrong.items()
            expected = {"error": change, "row": 1, "column": column, "value": value}
            assert post(address, {"rows": [row, {**row, **wrong}]}) == (400, expected)
        assert post(address, {"rows": [{**row, "weather": 7}]})[1]["error"] == "unknown category"  # as an import says
        less = {name: value for name, value in row.items() if name != "load"}
        assert post(address, {"rows": [less]}) == (
            400, {"error": "missing column", "row": 0, "column": "load", "value": None}
        )  # fmt: skip
        assert post(address, {"rows": [{**row, "speed": None}]})[0] == 200  # null is a missing value with a rule
        for nothing in (b"", b"{", b"[]", b'{"rows": 3}', b'{"rows": [1]}', b'{"row": []}'):
            status, answer = post(address, nothing)
            assert status == 400 and "error" in answer
        assert post(address, {"rows": [row]})[0] == 200
        check_limits(address)
        assert post(address, {"rows": [row]})[0] == 200

    Path("policy.onnx").write_bytes(Path("policy.onnx").read_bytes() + b" ")
    done = subprocess.run(
        [sys.executable, str(SERVER), "policy.onnx", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "is not the file that its schema describes" in done.stderr


MASKED = """
episode = "user"
unmarked = "terminated"

[[observation]]
column = "place"

[[observation]]
column = "member"
values = [false, true]

[action]
column = "offered"
kind = "discrete"
size = 3
mask = "possible"

[reward]
column = "reward"
"""


@pytest.mark.slow
def test_lists_masks_and_policies_that_draw(birl_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = []
    for index in range(200):
        possible = [1, *rng.integers(0, 2, 2).tolist()]
        rows.append({
            "user": index // 2, "place": rng.normal(size=2).round(3).tolist(), "member": bool(rng.integers(2)),
            "possible": possible, "offered": int(rng.choice(np.flatnonzero(possible))), "reward": float(rng.random()),
        })  # fmt: skip
    Path("log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("schema.toml").write_text(MASKED)
    birl_("data", "import", "log.jsonl", "--schema", "schema.toml", "--out", "data")
    birl_("train", "DQN", "--dataset", "data", "--n-steps", 20, "--out", "run", "--set", "learning_rate=0.01")
    birl.ope.Mixture([
        birl.ope.EpsilonGreedy(birl.load_learnable("run/model_20.d3"), 0.3),
        birl.ope.Softmax(birl.load_learnable("run/model_20.d3"), 2.0),
    ], [0.75, 0.25]).save("mixture.d3")  # fmt: skip
    assert "the stochastic policy of mixture.d3" in birl_("export", "mixture.d3", "policy.onnx")
    schema = json.loads(Path("policy.schema.json").read_text())
    assert schema["policy"] == {
        "type": "Mixture",
        "draws": True,
        "members": [
            {"weight": 0.75, "type": "EpsilonGreedy", "draws": True, "epsilon": 0.3, "of": "DQN"},
            {"weight": 0.25, "type": "Softmax", "draws": True, "temperature": 2.0, "of": "DQN"},
        ],
    }
    assert [(each["role"], each["shape"]) for each in schema["inputs"]] == [
        ("observation", [None, 4]), ("action_mask", [None, 3]), ("noise", [None, 3]),
    ]  # fmt: skip
    assert [(each["column"], each["length"]) for each in schema["inputs"][1]["columns"]] == [("possible", 3)]
    assert [each["role"] for each in schema["outputs"]] == ["action", "log_probability"]
    policy = birl.ope.load_policy("mixture.d3")
    episodes = ReplayBuffer.open("data").episodes
    x: Any = {key: np.concatenate([each.observations[key] for each in episodes]) for key in episodes[0].observations}
    with served("policy.onnx") as address:
        status, answer = post(address, {"rows": rows})
        assert status == 200
        again = post(address, {"rows": rows})[1]["actions"]
        assert again != answer["actions"]  # it draws
        wrong = {**rows[0], "place": [1.0]}
        assert post(address, {"rows": [wrong]})[1]["error"] == "cannot reshape array of size 1 into shape (2,)"
        assert post(address, {"rows": [{**rows[0], "possible": None}]})[1]["error"] == "missing value"
    actions = np.array(answer["actions"])
    assert answer["log_probabilities"] == pytest.approx(policy.action_log_probability(x, actions), abs=1e-4)
    assert np.all(np.array([row["possible"] for row in rows])[np.arange(200), actions] == 1)


def test_what_was_evaluated_is_what_is_exported(birl_: Any, trips: list[dict[str, Any]]) -> None:
    birl_("data", "import", "trips.csv", "--schema", "schema.toml", "--out", "data")
    birl_("train", "DiscreteBC", "--dataset", "data", "--n-steps", 5, "--out", "run")
    birl_("export", "run", "policy.onnx", "--epsilon", 0.25)
    described = json.loads(Path("policy.schema.json").read_text())["policy"]
    assert described == {"type": "EpsilonGreedy", "draws": True, "epsilon": 0.25, "of": "DiscreteBC"}
    assert "Gaussian is for continuous actions" in birl_("export", "run", "policy.onnx", "--std", 0.1, status=1)
    assert "is not a sequence model" in birl_("export", "run", "p.onnx", "--epsilon", 0.1, "--batched", status=1)


def test_columns_of_other_models(birl_: Any, trips: list[dict[str, Any]]) -> None:
    """Of arrays columns have numbers; logs can be named; logs that make other observations are refused."""
    birl_("data", "import", "trips.csv", "--schema", "schema.toml", "--out", "data")
    ReplayBuffer.open("data").dump("named.h5")
    birl_("train", "DQN", "--dataset", "named.h5", "--n-steps", 5, "--out", "named")
    named = json.loads(birl.load_learnable("named/model_5.d3").export("named.onnx").read_text())["inputs"][0]["columns"]
    names = ReplayBuffer.open("data").dataset_info.columns["observation"]
    assert [each["column"] for each in named] == list(names) and len(names) == 9
    dump([replace(each, columns={}) for each in ReplayBuffer.open("data").episodes], "plain.h5")
    birl_("train", "DQN", "--dataset", "plain.h5", "--n-steps", 5, "--out", "run")
    birl_("export", "run", "policy.onnx")
    assert "run/model_5.d3 does not name the numbers of its observations, so policy.schema.json numbers" in birl_.notes
    assert "if it has learned from imported logs, --dataset DIR names them" in birl_.notes
    schema = json.loads(Path("policy.schema.json").read_text())
    assert [each["column"] for each in schema["inputs"][0]["columns"]] == [str(index) for index in range(9)]
    assert schema["action"] == {"kind": "discrete", "size": 3} and "logs" not in schema
    birl_("export", "run", "policy.onnx", "--dataset", "data")
    assert "does not name the numbers" not in birl_.notes
    schema = json.loads(Path("policy.schema.json").read_text())
    assert [each["column"] for each in schema["inputs"][0]["columns"]] == ["speed", "weather", "gear", "load"]
    assert "no import.json" in birl_("export", "run", "policy.onnx", "--dataset", "run", status=1)
    assert "for the schema of an .onnx file" in birl_("export", "run", "p.pt", "--dataset", "data", status=1)

    swapped = re.sub(r'(?s)(\[\[observation\]\]\ncolumn = "gear".*?)(\[\[observation.*?)(\[action)', r"\2\1\3", SCHEMA)
    assert swapped != SCHEMA and len(swapped) == len(SCHEMA)
    Path("swapped.toml").write_text(swapped)
    birl_("data", "import", "trips.csv", "--schema", "swapped.toml", "--out", "swapped")
    birl_("train", "DQN", "--dataset", "data", "--n-steps", 5, "--out", "known")
    message = "import the logs with the schema of the model"
    assert message in birl_("export", "known", "policy.onnx", "--dataset", "swapped", status=1)
    with pytest.raises(ConfigError, match=message):
        birl.load_learnable("known/model_5.d3").fit(ReplayBuffer.open("swapped"), n_steps=1, **QUIET)
    assert message in birl_("train", "DQN", "--dataset", "swapped", "--n-steps", 5, "--out", "x", "--init-from",
                            "known", status=1)  # fmt: skip


def test_policies_are_not_judged_by_other_columns(
    birl_: Any, trips: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    birl_("data", "import", "trips.csv", "--schema", "schema.toml", "--out", "data")
    Path("other.toml").write_text(SCHEMA.replace('["sun", "rain"]', '["rain", "sun"]'))
    birl_("data", "import", "trips.csv", "--schema", "other.toml", "--out", "other")
    algo = birl.algos.DiscreteBCConfig(batch_size=8).create()
    algo.fit(ReplayBuffer.open("data"), n_steps=1, **QUIET)
    birl.ope.Softmax(algo).save("policy.d3")
    for command in ("report", "rank"):
        said = birl_("ope", command, "policy.d3", "--dataset", "other", status=1)
        assert "policy.d3 has logs whose observations are encoded as" in said
    assert not Path("other/queries.json").exists()
    birl_("data", "split", "data", "--shares", "train=.5,certify=.5")
    assert main(["ope", "report", "policy.d3", "--dataset", "data/certify"]) == 5  # it has learned from the whole
    assert "learned from these episodes" in capsys.readouterr().out


def test_quantities_and_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        {"trip": index // 6, "x": rng.normal(size=2).tolist(), "gas": rng.random(), "turn": rng.random(), "reward": 1.0}
        for index in range(60)
    ]
    Path("log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    schema = LogSchema.parse(
        'episode = "trip"\nunmarked = "terminated"\n[[observation]]\ncolumn = "x"\n[action]\nkind = "continuous"\n'
        'columns = ["gas", "turn"]\n[reward]\ncolumn = "reward"'
    )
    import_files(["log.jsonl"], schema, "data")
    algo = birl.algos.BCConfig(action_scaler=MinMaxActionScaler(), batch_size=8).create()
    algo.fit(ReplayBuffer.open("data", birl.dataset.FrameStackTransitionPicker(3)), n_steps=2, **QUIET)
    algo.export("policy.onnx")
    schema_ = json.loads(Path("policy.schema.json").read_text())
    assert schema_["action"] == {"kind": "continuous", "size": 2, "columns": ["gas", "turn"]}
    (input_,) = schema_["inputs"]
    assert input_["frames"] == 3 and input_["shape"] == [None, 6]
    assert input_["columns"] == [
        {"column": "x", "size": 2, "missing": "error", "length": 2, "fill": None, "indicator": False}
    ]
    with pytest.raises(ConfigError, match="save_policy"):
        algo.export("policy.pt")


def test_records_go_with_the_policy(birl_: Any, trips: list[dict[str, Any]]) -> None:
    birl_("data", "import", "trips.csv", "--schema", "schema.toml", "--out", "data")
    birl_("data", "split", "data", "--shares", "train=.5,certify=.5")
    birl_("data", "split", "data", "--shares", "train=.5,certify=.5", "--seed", 1, "--out", "other")
    whole, one, rest, separate = map(load_record, map(Path, ("data", "data/train", "data/certify", "other/certify")))
    assert whole is not None and one is not None and rest is not None and separate is not None
    assert whole.shares(one) and one.shares(whole) and not one.shares(rest) and one.shares(separate) and one.shares(one)
    algo = birl.algos.DiscreteBCConfig(batch_size=8).create()
    for part in ("train", "certify"):
        algo.fit(ReplayBuffer.open(f"data/{part}"), n_steps=1, **QUIET)
    birl.ope.Softmax(algo).save("policy.d3")
    again = birl.ope.load_policy("policy.d3").logs
    assert again is not None and again.origins == one.origins + rest.origins and again.schema == one.schema
    fqe = birl.ope.DiscreteFQE(algo=algo, config=birl.ope.DiscreteFQEConfig(batch_size=8, gamma=0.0))
    fqe.fit(ReplayBuffer.open("data/train"), n_steps=1, **QUIET)
    fqe.save("fqe.d3")
    assert birl.load_learnable("fqe.d3").algo.logs == again  # type: ignore[attr-defined]


def test_damaged_records_are_refused(birl_: Any, trips: list[dict[str, Any]]) -> None:
    birl_("data", "import", "trips.csv", "--schema", "schema.toml", "--out", "data")
    kept = Path("data/import.json").read_text()
    for damaged in ("", "{", "[]", "{}", kept[:-20], kept.replace('"observation"', '"observed"')):
        Path("data/import.json").write_text(damaged)
        with pytest.raises(CorruptFileError, match="import"):
            load_record(Path("data"))
    assert load_record(Path("nowhere")) is None


def test_a_record_is_the_same_after_json() -> None:
    record = LogRecord(LogSchema.parse(SCHEMA), ("speed",), (Origin("a", "b", "c"),))
    assert LogRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_names_of_parts(tmp_path: Path) -> None:
    """Observations of several parts have inputs in their order; images have no columns."""
    algo = birl.algos.DQNConfig().create()
    algo.create_impl(({"arm": (2,), "eye": (3, 16, 16)}, (1,)), 4)  # type: ignore[arg-type]
    algo.export(tmp_path / "policy.onnx")
    described = schema_of(tmp_path / "policy.onnx", algo.spec, algo.serving_description(), None, {})
    assert [each["columns"] and [one["column"] for one in each["columns"]] for each in described["inputs"]] == [
        ["0.arm.0", "0.arm.1"], None, ["1.0"],
    ]  # fmt: skip


@pytest.mark.slow
def test_recurrent_policies_are_described_and_refused_by_the_server(tmp_path: Path) -> None:
    contexts = birl.algos.DecisionTransformerConfig(context_size=4).create()
    recurrent = birl.algos.TD3Config(actor_encoder_factory=birl.models.LSTMEncoderFactory(hidden_size=8)).create()
    for algo, roles in (
        (contexts, ["observation", "action", "return_to_go", "timestep"]), (recurrent, ["observation", "state"])
    ):  # fmt: skip
        algo.create_impl((3,), 2)
        algo.export(tmp_path / "policy.onnx")
        described = json.loads((tmp_path / "policy.schema.json").read_text())
        assert [each["role"] for each in described["inputs"]] == roles
        command = [sys.executable, str(SERVER), str(tmp_path / "policy.onnx"), "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "needs earlier rows" in done.stderr
    assert [each["shape"] for each in described["inputs"]] == [[None, 3], [None, 16]]
