"""The weights that workers share are those of the model's files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tiny import write_model

ROOT = Path(__file__).resolve().parents[3]
# in a process of its own: forking needs one that has evaluated nothing
COMPARED = """
import sys
import mlx.core as mx
from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.adapters import lie_transposed
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.source import load_parts
from grpo_engine.policy.switches import FastPaths
from grpo_engine.policy.trees import flatten
from grpo_engine.training import worker

config = ModelConfig(path=sys.argv[1])
assert worker.shared_weights(config, 10_000_000) == {}, "a small model is read by each worker"
shared = worker.shared_weights(config, 1)
model = load_parts(config)[0]
read = flatten(model.parameters())
transposed = {name + ".weight" for name in lie_transposed(model, config, FastPaths())}
assert len(transposed) == 2 * 7 + 1, transposed
assert shared.keys() == read.keys()
for name, array in read.items():
    given = shared[name].T if name in transposed else shared[name]
    assert (given.dtype, given.shape) == (array.dtype, array.shape), name
    assert mx.array_equal(given, array), name
other = {name: array + 1 for name, array in shared.items()}
policies = [load_policy(config, seed=0, weights=weights) for weights in (None, shared, other)]
for name, array in flatten(policies[0].model.parameters()).items():
    found = [flatten(policy.model.parameters())[name] for policy in policies[1:]]
    assert mx.array_equal(found[0], array), name
    assert "lora" in name or mx.array_equal(found[1], array + 1), name
print(len(shared), "arrays")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_shared_weights_equal_those_in_the_files(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMPARED, str(model)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "arrays" in done.stdout
