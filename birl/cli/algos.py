"""``birl algos``: the list of algorithms."""

from __future__ import annotations

import textwrap
from typing import Any

from birl.cli.common import print_table
from birl.cli.loading import algorithm_classes

_LEARNS = {"fit": "offline", "fit_online": "online"}
_INDENTED: Any = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False}


def algos() -> None:
    """List the algorithms with their actions, sources of data and descriptions."""
    rows, sentences = [("ALGORITHM", "ACTIONS", "LEARNS")], [""]
    for name, algorithm in algorithm_classes().items():
        sentence = " ".join((algorithm.config_class.__doc__ or "").split("\n\n")[0].split())
        learns = ", ".join(_LEARNS[loop] for loop in sorted(algorithm.learns_from.loops)) or "does not learn"
        rows.append((name, algorithm.actions.label, learns))
        sentences.append(textwrap.fill(sentence.rstrip(".").replace("`", ""), 79, **_INDENTED))
    print_table(rows, below=sentences)
