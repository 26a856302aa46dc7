"""Model files that cannot run code, atomic writes, locks and strict JSON."""

from birl.files.archive import load_archive, load_config, save_archive
from birl.files.atomic import atomic_write, remove_temporary_files
from birl.files.reading import open_binary
from birl.files.strict_json import parse_json

__all__ = [
    "atomic_write",
    "load_archive",
    "load_config",
    "open_binary",
    "parse_json",
    "remove_temporary_files",
    "save_archive",
]
