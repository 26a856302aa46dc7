"""A virtual environment for each peer, made when it is first needed and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["PEERS", "peer_python"]

_TORCH = "torch==2.13.0"
PEERS: dict[str, list[list[str]]] = {
    # Each list is installed by a command of its own: torch first, so that nothing else chooses its version.
    "d3rlpy": [[_TORCH], ["d3rlpy==2.8.1", "gymnasium[classic-control,mujoco]"]],
    "sb3": [
        [_TORCH],
        ["stable-baselines3==2.9.2", "gymnasium[classic-control,mujoco]", "ale-py", "opencv-python-headless"],
    ],
    "sb3-contrib": [
        [_TORCH],
        ["sb3-contrib==2.9.2", "stable-baselines3==2.9.2", "gymnasium[box2d,classic-control,mujoco]", "minatar"],
    ],
    "jax": [["jax", "optax", "numpy"]],
}
"""What each peer needs. They pin different versions of the same packages, so each gets an environment."""


def peer_python(name: str, folder: Path) -> str:
    """The interpreter of a peer's environment, made if it is not complete.

    Args:
        name: key of `PEERS`.
        folder: where environments are kept, one folder each.

    Raises:
        subprocess.CalledProcessError: if it cannot be made.
    """
    home = folder / name
    python, stamp, wanted = home / "bin" / "python", home / "complete", repr(PEERS[name])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        for packages in PEERS[name]:
            command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(command, check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return str(python.absolute())
