"""Machine-dependent values: processors, quotas, memory, priority, and MLX's back end."""

import ctypes
import math
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from grpo_engine.errors import MissingPackageError
from grpo_engine.platform import (
    cgroup,
    device,
    memory,
    priority,
    private,
    threads,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="control groups and /proc are Linux's")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_two_hardware_threads_count_as_one_core(tmp_path: Path) -> None:
    cores = {0: "0", 1: "1", 2: "0", 3: "1"}
    for processor, core in cores.items():
        folder = f"sys/devices/system/cpu/cpu{processor}/topology"
        write(tmp_path, {f"{folder}/physical_package_id": "0\n", f"{folder}/core_id": f"{core}\n"})
    assert threads.physical_cores(frozenset(cores), tmp_path) == 2
    assert threads.physical_cores(frozenset({0, 2}), tmp_path) == 1


def test_processors_count_as_cores_where_the_topology_is_hidden(tmp_path: Path) -> None:
    assert threads.physical_cores(frozenset({0, 1, 2}), tmp_path) == 3


def test_a_version_2_quota_of_one_and_a_half_processors_allows_one_core(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"})
    write(tmp_path, {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"})
    assert threads.quota(tmp_path) == math.inf
    write(tmp_path, {"sys/fs/cgroup/a/cpu.max": "150000 100000\n"})
    assert threads.quota(tmp_path) == 1.5
    assert threads.cores(tmp_path) == 1


def test_a_version_1_quota_is_found_beside_other_controllers(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert threads.quota(tmp_path) == 2.5


def test_a_group_that_a_container_does_not_see_falls_back_to_the_mount(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/gone\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert list(cgroup.limits("cpu", tmp_path)) == [tmp_path / "sys/fs/cgroup"]
    assert threads.quota(tmp_path) == 0.5


def test_ranks_at_this_ranks_address_share_the_host(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text('[["10.0.0.1:5"], ["10.0.0.2:5"], ["10.0.0.1:6"]]')
    assert threads.local_ranks({"MLX_HOSTFILE": str(hosts), "MLX_RANK": "2"}) == 2
    assert threads.local_ranks({"MLX_HOSTFILE": str(hosts), "MLX_RANK": "1"}) == 1
    assert threads.local_ranks({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) == 4
    assert threads.local_ranks({"MLX_HOSTFILE": str(tmp_path / "none"), "MLX_RANK": "0"}) == 1


@pytest.mark.parametrize("claims", [[], [(Path("/another/folder"), 0)]])
def test_engines_divide_the_cores_and_one_that_ended_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: list[tuple[Path, int]]
) -> None:
    monkeypatch.setattr(threads, "_claims", claims)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "requested", lambda: None)
    code = (
        "import sys; from grpo_engine.platform import threads; threads.claim_engine();"
        "print(flush=True); sys.stdin.read()"
    )
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert threads.local_engines() == 2
        assert threads.share() == 2
        other.kill()
    assert threads.local_engines() == 1
    assert threads.share() == 4
    folder = private.temporary_folder()
    assert folder is not None
    assert list(folder.iterdir()) == []


def test_a_folder_of_claims_that_is_not_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"grpo-tui-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    threads.claim_engine()
    assert threads.local_engines() == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_environment_may_lower_the_threads_but_not_raise_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "local_engines", lambda: 1)
    for asked, used in (("1", 1), ("64", 4), ("0", 4), ("many", 4)):
        monkeypatch.setenv("GRPO_TUI_THREADS", asked)
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert threads.share() == used


def test_a_control_groups_limit_replaces_the_machines_memory(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": "1000\n",
            "sys/fs/cgroup/a/memory.current": "400\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
    )
    found = memory.memory(tmp_path)
    assert (found.total, found.available, found.limit) == (1000, 600, 1000)


@linux
def test_without_a_compiler_chains_of_operations_run_as_they_are(tmp_path: Path) -> None:
    code = "import grpo_engine, mlx.core as mx; x = mx.array([1.0, 2.0]); mx.set_default_device("
    code += "mx.Device(mx.cpu)); print(mx.compile(lambda x: x * x + 2 * x)(x).tolist())"
    environment = {**os.environ, "PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.strip() == "[3.0, 8.0]", done.stderr  # 1 + 2 and 4 + 4
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(
    ("info", "limit"),
    [
        ({"device_name": "AMD EPYC"}, 90),  # a CPU: the machine's memory
        ({"free_memory": 30, "total_memory": 40}, 35),  # CUDA: 30 free plus 5 held by MLX
        ({"free_memory": 300, "total_memory": 400}, 305),  # even if it has more than the machine
        ({"memory_size": 100, "max_recommended_working_set_size": 75}, 75),  # Metal: its limit
        ({"memory_size": 200, "max_recommended_working_set_size": 150}, 90),  # of the free memory
    ],
)
def test_the_device_says_how_much_its_arrays_may_take(
    info: dict[str, str | int], limit: int
) -> None:
    assert memory.on_device(info, machine=90, allocated=5) == limit


def test_without_a_limit_memory_is_the_machines(tmp_path: Path) -> None:
    found = memory.memory(tmp_path)
    assert found.limit is None
    assert 0 < found.process < found.total
    assert 0 < found.available <= found.total


@linux
def test_only_the_engines_thread_and_those_it_starts_lose_priority() -> None:
    seen: dict[str, int] = {}

    def nice_value() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def engine() -> None:
        assert priority.set_priority("engine", 7)
        seen["engine"] = nice_value()
        child = threading.Thread(target=lambda: seen.update(child=nice_value()))
        child.start()
        child.join()

    before = nice_value()
    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    expected = min(19, before + 7)
    assert seen == {"engine": expected, "child": expected}
    assert nice_value() == before


@pytest.mark.parametrize(
    ("role", "qos"),
    # USER_INTERACTIVE, USER_INITIATED and UTILITY of <sys/qos.h>
    [("drawing", 0x21), ("engine", 0x19), ("utility", 0x11)],
)
def test_macos_has_a_class_of_quality_of_service_for_each_role(
    role: Literal["drawing", "engine", "utility"], qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []

    def set_qos(kind: int, relative: int) -> int:
        calls.append((kind, relative))
        return 0 if len(calls) == 1 else 1  # EPERM

    system = SimpleNamespace(pthread_set_qos_class_self_np=set_qos)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: system)
    monkeypatch.setattr(priority, "sys", SimpleNamespace(platform="darwin"))
    assert priority.set_priority(role, 10)
    assert not priority.set_priority(role)
    assert calls == [(qos, 0), (qos, 0)]


@linux
def test_mlx_without_a_back_end_names_the_extra_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "backends", dict)
    monkeypatch.setattr(device, "library", lambda: None)
    monkeypatch.setattr(device, "nvidia_driver", lambda: "580.65.06")
    with pytest.raises(MissingPackageError, match=r"pip install 'grpo-tui\[cuda13\]'"):
        device.require_backend()


def test_mlx_that_cannot_be_loaded_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(MissingPackageError, match=r"mlx\.core"):
        device.require_mlx()


@linux
def test_importing_mlx_without_a_back_end_raises_that_error() -> None:
    code = (
        "from grpo_engine.platform import device\n"
        "device.backends, device.library = dict, lambda: None\n"
        "try:\n    import mlx.core\n"
        "except Exception as error:\n    print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "MissingPackageError\n"


@linux
def test_mlx_that_was_built_here_needs_no_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "backends", dict)
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert device.library() is None
    write(tmp_path, {"lib/libmlx.so": ""})
    device.require_backend()


@pytest.mark.parametrize(
    ("driver", "extra"),
    [("580.65.06", "cuda13"), ("570.1", "cuda12"), ("470.9", "cpu"), (None, "cpu")],
)
def test_the_driver_decides_which_build_fits(
    driver: str | None, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(device, "nvidia_driver", lambda: driver)
    assert device.suitable_extra() == extra
