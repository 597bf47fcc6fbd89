"""A single process agrees with itself, and a broken lifeline is detected."""

import json
import socket
from pathlib import Path

import mlx.core as mx
import pytest

from grpo_engine.control import Control
from grpo_engine.distributed.ranks import Lifeline, Ranks, addresses
from grpo_engine.platform.threads import launched_rank


def test_one_process_keeps_what_it_has() -> None:
    alone = Ranks.join()
    weights = {"a": {"b": mx.ones((2, 3))}}
    assert (alone.rank, alone.size, alone.leads) == (0, 1, True)
    assert alone.sum(weights) is weights
    assert alone.gather({"x": 1}) == [{"x": 1}]
    assert alone.broadcast(5) == 5
    assert alone.assigned("abc") == [(0, "a"), (1, "b"), (2, "c")]
    assert alone.gather_indexed([(1, "b"), (0, "a")]) == ["a", "b"]


@pytest.mark.parametrize(
    ("env", "rank"),
    [({}, None), ({"MLX_RANK": "0"}, 0), ({"MLX_RANK": "3"}, 3), ({"PMI_RANK": "1"}, 1)],
)
def test_the_launcher_says_which_rank_this_is(env: dict[str, str], rank: int | None) -> None:
    assert launched_rank(env) == rank


def test_ranks_look_for_rank_0_where_the_launcher_put_it(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([["10.0.0.1:5000", "10.0.0.1:5001"], ["10.0.0.2:5002"]]))
    assert addresses({"MLX_HOSTFILE": str(hosts), "MLX_RANK": "0"}) == ["10.0.0.1"]
    assert addresses({"MLX_JACCL_COORDINATOR": "10.0.0.7:600"}) == ["10.0.0.7"]
    assert addresses({"NCCL_HOST_IP": "10.0.0.8"}) == ["10.0.0.8"]


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (b"", "rank 1 of the run has ended: it was killed"),
        (b'{"failed": "MemoryError: full"}\n', "rank 1 of the run has ended: MemoryError: full"),
        (b"bye\n", ""),
    ],
)
def test_a_connection_that_ends_tells_why(said: bytes, lost: str) -> None:
    control = Control()
    own, other = socket.socketpair()
    other.sendall(said)
    other.close()
    with own:
        Lifeline(Ranks(), control)._wait(own, "rank 1")
    assert control.rank_failure.startswith(lost)
    assert bool(control.rank_failure) == bool(lost)
