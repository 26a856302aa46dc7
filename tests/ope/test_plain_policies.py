"""Decision tables, classifiers and functions as policies: read by names, in any order, and refused in words."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import from_table
from birl.errors import ActionError, ConfigError, DataError, FileError, ShapeError
from birl.ope import ClassifierPolicy, DecisionTable, DiscreteFQE, DiscreteFQEConfig, as_policy, evaluate, rank
from tests.ope.test_segments import SCHEMA, visits

NAMED = type(SCHEMA).parse(SCHEMA.text().replace("size = 2", 'values = ["wait", "remind"]'))


def log(n: int = 300, seed: int = 0) -> Any:
    table = visits(n, seed)
    return from_table({**table, "offer": np.array(["wait", "remind"])[table["offer"]]}, NAMED)


def write(folder: Path, name: str, text: str) -> DecisionTable:
    (folder / name).write_text(text)
    return DecisionTable.load(folder / name)


CSV = """age,channel,action
> 40,"app, web",remind
[18..30),shop,wait
,!= app,remind
,,wait
"""
TOML = """
[[rule]]
when = { age = "> 40", channel = ["app", "web"] }
action = "remind"
[[rule]]
when = { channel = "shop", age = "[18..30)" }
action = "wait"
[[rule]]
when = { channel = "!= app" }
probabilities = { remind = 1.0 }
[[rule]]
action = "wait"
"""


def plain(age: float, channel: str) -> int:
    if age > 40 and channel in ("app", "web"):
        return 1
    if 18 <= age < 30 and channel == "shop":
        return 0
    return int(channel != "app")


def test_tables_of_all_formats_do_the_same(tmp_path: Path) -> None:
    data, table = log(), visits(300, 0)
    rules = [{"when": {"age": "> 40", "channel": ["app", "web"]}, "action": "remind"}]
    rules += [{"when": {"age": "[18..30)", "channel": "shop"}, "action": "wait"}]
    rules += [{"when": {"channel": "!= app"}, "action": "remind"}, {"action": "wait"}]
    tables = [
        write(tmp_path, "a.csv", CSV),
        write(tmp_path, "a.toml", TOML),
        write(tmp_path, "a.json", json.dumps(rules)),
        write(tmp_path, "b.json", json.dumps({"rule": rules})),
    ]
    expected = np.eye(2)[[plain(a, c) for a, c in zip(table["age"], table["channel"], strict=True)]]
    x = np.concatenate([episode.observations for episode in data.episodes])
    for each in tables:
        policy: Any = as_policy(each, data)
        np.testing.assert_array_equal(policy.action_probability(x), expected)
        np.testing.assert_array_equal(policy.action_probability(x, np.zeros((300, 1), int)), expected[:, 0])
    values = {evaluate(each, data).rows["doubly_robust"].value for each in tables}
    assert len(values) == 1
    columns = CSV.splitlines()
    moved = "\n".join([",".join([columns[0].split(",")[k] for k in (2, 0, 1)]), "remind,> 40,app", "wait,,"])
    assert as_policy(write(tmp_path, "c.csv", moved), data)  # the order of columns does not matter


def test_probabilities_of_a_table(tmp_path: Path) -> None:
    data = log()
    table = write(tmp_path, "a.csv", "channel,p(remind),p(wait)\napp,0.9,0.1\n,0.25,0.75\n")
    policy: Any = as_policy(table, data)
    app = np.concatenate([episode.observations for episode in data.episodes])
    chance = policy.action_probability(app)
    np.testing.assert_allclose(chance[:, 1], np.where(app[:, 0] == 1, 0.9, 0.25))
    found = evaluate(table, data, against=DecisionTable.load(tmp_path / "a.csv"))
    assert found.gain is not None and float(found.gain.gain.value) == 0
    assert set(rank({"table": table, "other": write(tmp_path, "b.csv", "age,action\n,wait\n")}, data).evaluations)
    edges = write(tmp_path, "e.csv", "age,action\n[18..30],wait\n(30..40],remind\n>= 41,1\nmissing,wait\n*,remind\n")
    ages = np.array([[1, 0, 0, a] for a in (18, 30, 31, 40, 41, np.nan)], np.float32)
    with pytest.raises(ConfigError, match=r"row 4: there is no action '1'.*wait, remind"):
        as_policy(edges, data).action_probability(ages)  # type: ignore[union-attr]
    edges = write(tmp_path, "e.csv", "age,action\n[18..30],wait\n(30..40],remind\n>= 41,remind\nmissing,wait\n")
    found_: Any = as_policy(edges, data)
    assert found_.action_probability(ages)[:, 1].tolist() == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "age\n> 40\n", "needs the column 'action', or columns"),
        ("a.csv", "age,action,p(wait)\n> 40,wait,1\n", "not both"),
        ("a.csv", "age,action\n", "it needs a row of names and one or more rules"),
        ("a.csv", "age,age,action\n1,1,wait\n", "'age' is empty or given twice"),
        ("a.csv", "age,channel,action\n> 40,app, web,wait\n", "row 2 has 4 cells; it must have 3: quote"),
        ("a.csv", "age,action\n> x,wait\n", r"row 2: the condition on 'age' is '> x'.*must be one of '> 40'"),
        ("a.csv", "age,action\n[40..10],wait\n", "ends are in the wrong order"),
        ("a.csv", "age,p(wait),p(remind)\n,0.5,0.4\n", "row 2: the probabilities sum to 0.9; the sum must be 1"),
        ("a.csv", "age,p(wait),p(remind)\n,x,0.4\n", "the probability of 'wait' is 'x'; it must be from 0 to 1"),
        ("a.toml", "rule = 3", "no list of rules"),
        ("a.toml", '[[rule]]\nif = "x"\naction = "wait"', "rule 1 has 'if'; a rule has when, action"),
        ("a.toml", '[[rule]]\nwhen = { age = "> 3" }', "needs action = …, or probabilities"),
        ("a.toml", "[[rule]", "not valid TOML"),
        ("a.json", "[{", "a.json"),
        ("a.txt", "x", "a decision table is a .csv, .toml or"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises((ConfigError, FileError), match=message):
        write(tmp_path, name, text)
    with pytest.raises(FileError, match="none.csv cannot be read"):
        DecisionTable.load(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("agee,action\n> 4,wait\n", ConfigError, r"row 2: there is no column 'agee'; did you mean 'age'"),
        ("channel,action\nap,wait\n", ConfigError, r"'channel' has no category 'ap'; did you mean 'app'"),
        ("channel,action\n> 3,wait\n", ConfigError, r"compares numbers, but the column has categories"),
        ("age,action\nold,wait\n", ConfigError, r"the condition on 'age' is 'old', but the column has numbers"),
        ("age,action\n> 40,discount\n", ConfigError, r"there is no action 'discount'.*wait, remind"),
        ("age,action\n> 1000,wait\n", DataError, r"no rule of .* applies to observation 0 \(age = \d+\).*last rule"),
    ],
)
def test_tables_that_do_not_fit_the_log(tmp_path: Path, text: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate(write(tmp_path, "a.csv", text), log())


class Model:
    """What scikit-learn's classifiers have: reminds where age is above 40, with the probability 0.8."""

    def __init__(self, classes: Any, names: Any = None, count: int | None = None) -> None:
        self.classes_, self.seen = np.array(classes), None
        if names is not None:
            self.feature_names_in_ = np.array(names, object)
        if count is not None:
            self.n_features_in_ = count

    def predict_proba(self, X: Any) -> Any:
        self.seen = X
        age = np.asarray(X["age"] if hasattr(X, "columns") else X[:, -1], float)
        remind = np.where(age > 40, 0.8, 0.3)
        by_class = {"remind": remind, "wait": 1 - remind, 1: remind, 0: 1 - remind}
        return np.stack([by_class[each] for each in self.classes_.tolist()], -1)

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(-1)]


@pytest.mark.parametrize("classes", [["remind", "wait"], ["wait", "remind"], [1, 0], [0, 1]])
def test_classes_are_read_by_their_labels(classes: Any) -> None:
    data = log()
    x = np.concatenate([episode.observations for episode in data.episodes])
    drawn: Any = as_policy(ClassifierPolicy(Model(classes)), data)
    np.testing.assert_allclose(drawn.action_probability(x)[:, 1], np.where(x[:, 3] > 40, 0.8, 0.3))
    greedy: Any = as_policy(Model(classes), data)
    np.testing.assert_array_equal(greedy.action_probability(x)[:, 1], x[:, 3] > 40)
    assert evaluate(ClassifierPolicy(Model(classes)), data).decides is not None
    assert evaluate(Model(classes), data).differs == pytest.approx(
        evaluate(ClassifierPolicy(Model(classes), greedy=True), data).differs
    )


def test_columns_of_a_classifier_are_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log(60)
    x = np.concatenate([episode.observations for episode in data.episodes])
    monkeypatch.setitem(sys.modules, "pandas", None)
    model = Model(["wait", "remind"], ["channel = web", "age"])
    as_policy(ClassifierPolicy(model), data).action_probability(x)  # type: ignore[union-attr]

    class Frame(dict[str, Any]):
        columns = property(dict.keys)

    pandas: Any = types.ModuleType("pandas")
    pandas.DataFrame, pandas.__spec__ = Frame, types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    model = Model(["wait", "remind"], ["age", "channel"])
    as_policy(ClassifierPolicy(model), data).action_probability(x)  # type: ignore[union-attr]
    given: Any = model.seen
    assert list(given) == ["age", "channel"]
    assert given["channel"].tolist() == [["app", "web", "shop"][k] for k in x[:, :3].argmax(1)]
    with pytest.raises(ConfigError, match=r"feature_names_in_ of Model: there is no column 'region'"):
        evaluate(Model(["wait", "remind"], ["region"]), data)


def test_classifiers_that_do_not_fit() -> None:
    data = log(60)
    with pytest.raises(
        ActionError, match=r"classes_ of Model: 'discount' is no action; the actions of the data are wait"
    ):
        evaluate(Model(["wait", "discount"]), data)
    with pytest.raises(ShapeError, match="Model was fitted on 7 columns"):
        evaluate(Model(["wait", "remind"], count=7), data)
    with pytest.raises(ConfigError, match=r"it must be fitted, and have classes_"):
        ClassifierPolicy(object())  # type: ignore[arg-type]
    only: Any = as_policy(ClassifierPolicy(Model([1, 0])), data)
    only.policy.classifier.predict_proba = lambda X: np.ones((len(X), 3)) / 3
    with pytest.raises(ShapeError, match=r"a column for each of classes_"):
        evaluate(only, data)


def test_functions() -> None:
    data = log(80)

    def by_name(x: Any) -> Any:
        return np.where(x[:, 3] > 40, "remind", "wait")

    def by_number(x: Any) -> Any:
        return (x[:, 3] > 40).astype(int)

    def by_probability(x: Any) -> Any:
        return np.stack([x[:, 3] <= 40, x[:, 3] > 40], -1).astype(float)

    values = {evaluate(each, data).rows["doubly_robust"].value for each in (by_name, by_number, by_probability)}
    assert len(values) == 1
    assert evaluate(by_name, data, behaviour=lambda x: np.full((len(x), 2), 0.5)).behaviour == "given"
    with pytest.raises(ActionError, match=r"the result of <lambda>\(x\): 'discount' is no action"):
        evaluate(lambda x: np.full(len(x), "discount"), data)
    with pytest.raises(ShapeError, match=r"an action for each observation, or \(\d+, 2\), the probabilities"):
        evaluate(lambda x: np.zeros((len(x), 5)), data)
    with pytest.raises(DataError, match="sums to 1.2"):
        evaluate(lambda x: np.full((len(x), 2), 0.6), data)


def test_fitted_q_evaluation_takes_them(tmp_path: Path) -> None:
    data = log(60)
    policy = as_policy(write(tmp_path, "a.csv", "age,action\n> 40,remind\n,wait\n"), data)
    fqe = DiscreteFQE(policy, DiscreteFQEConfig())
    fqe.build_with_dataset(data)
    assert fqe.predict(data.episodes[0].observations[:1]).shape == (1,)
