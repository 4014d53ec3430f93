"""Files of the project as they are staged or committed: a reader's changes break no test."""

import subprocess
from functools import cache

from cflkit.reproduce.records import PROJECT


@cache
def committed(path):
    """The text of a file; as it lies there if there is no git."""
    try:
        done = subprocess.run(
            ["git", "show", f":{path}"], cwd=PROJECT, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return (PROJECT / path).read_text(encoding="utf-8")
    return done.stdout.decode()
