"""A grid through Snakemake, with its local executor; skipped where there is no Snakemake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cflkit.reproduce.records import PROJECT

LIMIT = 600


@pytest.mark.nightly
def test_a_run_that_is_killed_is_tried_again_and_goes_on_from_its_checkpoint(repository, tmp_path):
    snakemake = Path(sys.executable).with_name("snakemake")  # make has no environment on its path
    if not snakemake.exists():
        pytest.skip("needs Snakemake: pip install snakemake")
    project, results, cache = (tmp_path / name for name in ("project", "results", "cache"))
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(project)], check=True)
    for record in project.glob("data/results/tutorial-*"):  # else there is nothing to run
        shutil.rmtree(record)
    command = [snakemake, "-s", "notebooks/params/Snakefile", "--cores", "2", "--config"]
    command += ["table=tutorial/table", "where=seed=0", f"python={sys.executable}"]
    places = {"PYTHONPATH": project, "CFLKIT_RESULTS": results, "CFLKIT_CACHE": cache}
    own = os.environ | {name: str(place) for name, place in places.items()}
    with subprocess.Popen(
        command, cwd=project, env=own, stderr=subprocess.PIPE, text=True
    ) as running:
        end = time.monotonic() + LIMIT
        while not list(cache.glob("checkpoints/*.pt")):
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        below = psutil.Process(running.pid).children(recursive=True)
        [run] = [p for p in below if p.cmdline()[:3] == [sys.executable, "-m", "cflkit"]]
        run.send_signal(signal.SIGKILL)
        told = running.communicate(timeout=LIMIT)[1]
    assert running.returncode == 0, told
    assert "Trying to restart job" in told
    [record] = results.glob("tutorial-*/record.json")
    assert json.loads(record.read_text())["provenance"]["resumed"] == 1
    assert (project / "data" / "runs" / "ledger.csv").exists()
