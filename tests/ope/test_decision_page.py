"""Pages of verdicts and rankings: refusals appear once, and doubts are not marked as good."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

from birl.ope import decision_page, evaluate, rank, verdict
from birl.ope.decision_page import CONTRADICTED, contradicts, second_opinions, write_ranking, write_report
from birl.ope.html_page import format_value, plain_text
from birl.ope.validity_limits import Finding
from tests.ope.test_decisions import FixedPolicy, improved, logs


def tree_of(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text(encoding="utf-8"))


def rows_of(tree: ElementTree.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_refusals_appear_once_and_are_named_in_the_row_of_each_estimator(tmp_path: Path) -> None:
    found = evaluate(FixedPolicy(improved(2.0)), logs(150), gamma=0.95)  # far from the logs: weights are refused
    refused = [one for one in found.findings if one.refused and one.family == "weights"]
    write_report(tmp_path, {"far": found}, {"far": verdict(found)})
    tree = tree_of(tmp_path / "report.html")
    notes = ["".join(node.itertext()) for node in tree.iter("p") if "note" in node.get("class", "")]
    assert all(sum(one.message in note for note in notes) == 1 for one in refused) and refused
    assert not any("kernel" in note for note in notes)
    table = {row[0]: row[-1] for row in rows_of(tree)}
    assert table["per_decision"] == table["weighted_per_decision"] == ", ".join(one.fact for one in refused)
    assert table["doubly_robust (decides)"] == ""
    labels = [node.text for node in tree.iter("text")]
    assert "doubly_robust" in labels and not any("per_decision" in str(label) for label in labels)  # axes are for them
    nothing = replace(found, rows={key: replace(row, refused="ess") for key, row in found.rows.items()})
    write_report(tmp_path, {"far": nothing}, {"far": verdict(nothing)})
    tree = tree_of(tmp_path / "report.html")  # refused estimates are in the JSON file only
    assert not any("doubly_robust" in str(node.text) for node in tree.iter("text"))
    assert all(set(row[1:-1]) == {"–"} for row in rows_of(tree) if row[0] in nothing.rows)
    data = json.loads((tmp_path / "report.json").read_text())["policies"][0]["estimates"]
    assert all(row["value"] is not None and row["refused"] for row in data.values())
    (row,) = [cells for cells in rows_of(tree) if cells[0] == "pareto_k"]
    assert row[1] == "the tail of the weights has the Pareto shape …" and row[3:] == ["above 0.5", "above 0.7"]


def test_doubts_are_marked_as_such_and_a_rank_alone_is_no_range(tmp_path: Path) -> None:
    found = evaluate(FixedPolicy(improved(1.0)), logs(400), gamma=0.95)
    doubt = Finding("robust", False, "kappa", 2.0, "something is doubtful")
    object.__setattr__(found, "findings", (doubt,))
    decision = verdict(found)
    assert decision.verdict == "ship"
    write_report(tmp_path, {"one": found}, {"one": decision})
    tree = tree_of(tmp_path / "report.html")
    marks = {"".join(node.itertext())[1:]: node.get("class") for node in tree.iter("p") if node.get("class")}
    assert marks["doubtful: something is doubtful"] == "note doubtful" and marks[decision.reasons[0]] == "note good"
    ranked = rank({"a": FixedPolicy(improved(2.0)), "b": FixedPolicy(improved(-2.0))}, logs(400), gamma=0.95)
    write_ranking(tmp_path, ranked)
    head, *rows = rows_of(tree_of(tmp_path / "ranking.html"))
    assert [row[:2] for row in rows[:2]] == [["a", "1"], ["b", "2"]] and head[6:] == ["LINEAR", "DR", "differs"]


def test_a_ranking_shows_estimates_of_a_model_that_weights_contradict(tmp_path: Path) -> None:
    """The gain by the model is shown with a mark for refused, and a note names the contradiction."""
    ranked = rank({"a": FixedPolicy(improved(2.0)), "b": FixedPolicy(improved(-2.0))}, logs(400), gamma=0.95)
    one = ranked.evaluations["a"]
    assert not contradicts(one) and second_opinions(one)[1] == format_value(float(one.rows["doubly_robust"].gain.value))
    rows = {**one.rows, "direct_method": replace(one.rows["direct_method"], refused="weights contradict the model")}
    wrong = replace(one, rows=rows, facts={**one.facts, "model_differs": 1.0})
    write_ranking(tmp_path, replace(ranked, evaluations={**ranked.evaluations, "a": wrong}))
    tree = tree_of(tmp_path / "ranking.html")
    (row,) = [cells for cells in rows_of(tree) if cells[0] == "a"]
    assert row[6] == f"{format_value(float(one.rows['direct_method'].gain.value))}!" and row[8] == format_value(
        one.differs
    )
    assert f"?a: {CONTRADICTED}" in ["".join(node.itertext()) for node in tree.iter("p")]
    data = json.loads((tmp_path / "ranking.json").read_text())
    assert data["differences"]["a"]["b"] == ranked.differences["b"]["a"] > 0.1
    assert data["policies"][0]["differs_from_logs"] == one.differs
    row_of_b = next(cells for cells in rows_of(tree) if cells[0] == "2. b")[1:]
    assert row_of_b == [f"{data['differences']['a']['b']:.2f}", "0.00"]


def test_long_and_hostile_names_hide_nothing(tmp_path: Path) -> None:
    """The name of the other policy, which may be cut, comes last; wide tables keep names narrow."""
    long, hostile = "runs/" + "very_long_" * 60, "<script>\u202e</title></svg>"
    dataset = logs(60, what="nothing")
    found = evaluate(
        FixedPolicy(improved(1.0)), dataset, gamma=0.95, against=FixedPolicy(improved(0.5)), against_name=long
    )
    decision = verdict(found, 0.25)
    assert decision.verdict == "cannot_tell"
    write_report(tmp_path, {hostile: replace(found, name=hostile)}, {hostile: decision})
    tree = tree_of(tmp_path / "report.html")
    asked = ["".join(node.itertext()) for node in tree.iter("p")]
    words = "60 episodes, 300 steps. The required gain is 0.25, with a confidence of 0.95. The baseline is runs/very_"
    assert any(text.startswith(words) for text in asked) and "?<script>\ufffd</title></svg>: cannot tell" in asked
    assert not list(tree.iter("script"))
    assert "many" in [table.get("class") for table in tree.iter("table")]


def test_explanations_are_not_cut() -> None:
    texts = [value for value in vars(decision_page).values() if isinstance(value, str) and " " in value]
    assert len(texts) > 3 and texts == [plain_text(text) for text in texts]
