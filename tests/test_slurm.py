"""A grid on a SLURM cluster. One node is enough; without any, this is skipped, and says so."""

import json
import os
import re
import shutil
import subprocess
import time
from importlib.util import find_spec

import pytest
import yaml

from cflkit.reproduce.records import PROJECT

# Parts of seconds count here, unlike on a real cluster
QUICK = {"slurm-init-seconds-before-status-checks": 2, "seconds-between-status-checks": 2}
LIMIT = 600


@pytest.fixture
def partition():
    """The first partition with an idle node."""
    for program in ("sbatch", "sinfo", "scancel", "snakemake"):
        if shutil.which(program) is None:
            pytest.skip(f"needs a SLURM cluster and Snakemake: there is no {program}")
    if find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("needs Snakemake's plugin: pip install snakemake-executor-plugin-slurm")
    answer = said("sinfo", "--noheader", "--states=idle", "--format=%R")
    if not answer:
        pytest.skip("needs a SLURM cluster with an idle node")
    return answer.splitlines()[0]


def said(*command):
    """What a command prints; nothing if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def profile_of_the_page():
    """The profile that notebooks/params/README.md shows."""
    page = (PROJECT / "notebooks" / "params" / "README.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(executor: slurm\n.*?)```", page, re.DOTALL)
    return yaml.safe_load(text)


def test_the_profile_of_the_page_asks_for_one_gpu_per_run():
    profile = profile_of_the_page()
    assert profile["executor"] == "slurm" and profile["set-resources"] == {"run": {"gpu": 1}}


@pytest.mark.slow
def test_a_run_that_is_cancelled_goes_on_from_its_checkpoint(repository, partition, tmp_path):
    project = tmp_path / "project"
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(project)], check=True)
    for record in project.glob("data/results/tutorial-*"):  # else there is nothing to run
        shutil.rmtree(record)
    profile = profile_of_the_page() | QUICK
    profile["default-resources"] |= {"slurm_partition": partition, "mem_mb": 2000, "runtime": 20}
    profile["set-resources"]["run"]["gpu"] = 0
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "config.yaml").write_text(yaml.safe_dump(profile))
    results, cache = tmp_path / "results", tmp_path / "cache"
    environment = os.environ | {
        "PYTHONPATH": str(project),
        "CFLKIT_RESULTS": str(results),
        "CFLKIT_CACHE": str(cache),
    }
    command = ["snakemake", "-s", "notebooks/params/Snakefile", "--profile", tmp_path / "profile"]
    command += ["--config", "table=tutorial/table", "where=seed=0"]
    running = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE)
    begun = cache / "checkpoints"
    try:
        wait_until(lambda: list(begun.glob("*.pt")), running)
        [job] = said("squeue", "--noheader", "--states=running", "--format=%i").splitlines()
        said("scancel", job)
        told = running.communicate(timeout=LIMIT)[1].decode()
    finally:
        running.kill()
    assert running.returncode == 0, told
    assert f"SLURM-job '{job}' failed" in told and "Trying to restart" in told
    [record] = results.glob("tutorial-*/record.json")
    assert json.loads(record.read_text())["provenance"]["resumed"] == 1
    assert (project / "data" / "runs" / "ledger.csv").exists()


def wait_until(condition, running):
    """Wait until something is true, while a process is running."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert running.poll() is None, running.stderr.read().decode()
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
