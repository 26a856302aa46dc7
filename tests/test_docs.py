"""The documentation: its code runs, its site builds without a warning, its tables tell the truth."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import birl
from birl.cli import _COMMANDS, main
from tests.tiers import slow_but

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = sorted(path.name for path in DOCS.glob("*.md") if "```python" in path.read_text(encoding="utf-8"))
GUIDES.remove("quickstart.md")  # test_readme.py runs it
LONG = {"deploying.md", "online.md", "ope.md"}  # 15 seconds and more each


def test_there_are_guides() -> None:
    assert {"data.md", "deploying.md"} <= set(GUIDES)


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", slow_but(set(GUIDES) - LONG, GUIDES))
def test_code_of_a_guide_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    script = tmp_path / f"{Path(name).stem}_page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(script))


@pytest.mark.slow
def test_commands_of_the_online_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "online.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.M) for line in block.splitlines()]
    assert len(lines) == 7 and all(line.startswith("birl ") for line in lines)
    for number, line in enumerate(lines, 1):  # the last of an option counts: shorter, and each longer than those before
        short = ["--n-steps", 100 + 10 * number, "--n-steps-per-epoch", 100, "--n-trials", 1, "--set", "batch_size=16"]
        short = short if " train " in line else []
        assert main([*shlex.split(line)[1:], *map(str, short)]) == 0, capsys.readouterr().err


def test_the_quickstart_names_all_commands() -> None:
    table = (DOCS / "quickstart.md").read_text(encoding="utf-8").partition("| command | what it does |")[2]
    named = re.findall(r"`birl ([\w-]+)`", table.partition("\n\n")[0])
    assert sorted(named) == sorted(_COMMANDS)


def test_guides_are_in_the_navigation_and_open_with_their_aim() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    pages = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert {name for name in pages if f": {name}\n" not in nav} == set()
    guides = pages.keys() - {"index.md", "glossary.md", "limitations.md", "public-api.md", "combinations.md"}
    opening = "After reading this page, you "
    assert {name for name in guides if not pages[name].split("\n")[2].startswith(opening)} == set()


def test_shell_blocks_can_be_pasted() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^```(?:sh|console|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 9 and not [block for block in blocks if re.search(r"^\s*[$>] ", block, re.MULTILINE)]


def test_commands_of_the_encoder_guide_run_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = (DOCS / "encoders.md").read_text(encoding="utf-8")
    file, *_ = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.M)
    Path("my_encoders.py").write_text(file, encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.M)
    short = ["--n-steps", "80", "--n-steps-per-epoch", "80", "--n-trials", "1"]
    for line in commands.splitlines():
        words = shlex.split(line)[1:]
        words = words[:2] + short + words[2:] if words[0] == "train" else words
        assert main(words) == 0, capsys.readouterr().err
    config = birl.load_learnable("runs/gated/model_80.d3").config
    assert type(config.encoder_factory).__module__ == "my_encoders" and config.encoder_factory.features == 64


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists() and (tmp_path / "algorithms" / "SAC" / "index.html").exists()
    assert 'src="../curves/TD3.svg"' in (tmp_path / "algorithms" / "TD3" / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "algorithms" / "curves" / "TD3.svg").exists()
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert all(way in front for way in ("I have logs", "I have an environment", "I come from another library"))
    for page in ("changelog", "contributing", "architecture"):
        assert (tmp_path / page / "index.html").exists()
    replay = (tmp_path / "replay" / "index.html").read_text(encoding="utf-8")
    assert 'href="../reference/birl.dataset/#birl.dataset.RecentSampler"' in replay
    _check_reference(tmp_path / "reference")


def _check_reference(folder: Path) -> None:
    """Every public name has an entry with a description; internal modules have none, and no page is committed."""
    assert not (DOCS / "reference").exists()
    modules = {f"birl.{name}": getattr(birl, name) for name in birl.__all__}
    public = {name: sorted(module.__all__) for name, module in modules.items() if inspect.ismodule(module)}
    public["birl"] = sorted(birl.__all__)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == public.keys()
    missing = []
    for module, members in public.items():
        page = (folder / module / "index.html").read_text(encoding="utf-8")
        missing += [f"{module}.{name}" for name in members if f'<h2 id="{module}.{name}">' not in page]
    assert missing == [] and sum(map(len, public.values())) > 350
    algos = (folder / "birl.algos" / "index.html").read_text(encoding="utf-8")
    assert "Temperature at the start." in algos and "../../algorithms/SAC/" in algos
    assert "length of an epoch, after which evaluators run" in (folder / "birl.run" / "index.html").read_text("utf-8")
    algorithm = (folder / "birl.algorithm" / "index.html").read_text(encoding="utf-8")
    assert 'id="birl.algorithm.Algorithm.fit_online"' in algorithm  # of a base without an entry


LINKED = """\
# `birl.run.Hook`

`birl.run.Hook(every)`, `RecentSampler(eta=1)`, [`Hook`](own.md), `Dict`, `birl.no.X` and [b](../benchmarks/README.md).

```python
`RecentSampler`
```

`SAC`"""


def test_names_in_guides_become_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    hooks = importlib.import_module("scripts.docs_hooks")
    page = SimpleNamespace(file=SimpleNamespace(src_path="guide.md"), meta={})
    head, names, code, last = hooks.on_page_markdown(LINKED, page=page, config={"repo_url": "https://x"}).split("\n\n")
    assert head == "# `birl.run.Hook`" and code == "```python\n`RecentSampler`\n```"
    assert "[`birl.run.Hook(every)`](reference/birl.run.md#birl.run.Hook)" in names
    assert "[`RecentSampler(eta=1)`](reference/birl.dataset.md#birl.dataset.RecentSampler)" in names
    assert "[`Hook`](own.md), `Dict`, `birl.no.X` and [b](https://x/blob/main/benchmarks/README.md)." in names
    assert last == "[`SAC`](algorithms/SAC.md)"


def _resolved(path: str) -> Any:
    """The object that a dotted path names, as attribute access finds it."""
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(parts[:index]))
    return found


NAMES = re.findall(r"^\| `d3rlpy\.?([^`]*)` \| `([^`]+)` \|$", (DOCS / "moving.md").read_text(encoding="utf-8"), re.M)


def test_the_table_of_names_is_there() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 160


@pytest.mark.parametrize(("old", "new"), NAMES)
def test_every_name_of_d3rlpy_is_here(old: str, new: str) -> None:
    assert _resolved(f"birl.{old}") == _resolved(new)


DECISIONS = sorted((DOCS / "adr").glob("0*.md"))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_the_index_of_decisions_tells_what_they_say(path: Path) -> None:
    number, title = path.stem[:4], path.read_text(encoding="utf-8").split("\n")[0].partition(": ")[2]
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| \[{number}\]\({path.name}\) \| (.*) \|$", index, re.M)
    assert title.startswith(row.split(" (")[0])
    later = re.search(r"superseded by \[(\d+)\]", path.read_text(encoding="utf-8"))
    assert ("superseded by" in row) == (later is not None)
    assert later is None or f"superseded by {later[1]}" in row


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_files_that_decisions_name_exist(path: Path) -> None:
    named = re.findall(r"`([\w-]+/[\w/-]*\.py)`", path.read_text(encoding="utf-8"))
    assert not [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "birl"))]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_that_are_named_exist(name: str) -> None:
    named = re.findall(r"`([\w.*-]+/[\w./*-]*)`", (ROOT / name).read_text(encoding="utf-8"))
    assert len(named) > 10
    missing = [path for path in named if not any(any(root.glob(path.rstrip("/"))) for root in (ROOT, ROOT / "birl"))]
    assert not missing
