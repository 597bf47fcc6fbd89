"""`grpo-tui doctor`: facts, remedies and an exit status that says whether a run can start."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import psutil
import pytest

from grpo_engine.cpu import blas
from grpo_engine.platform import device, kernels, memory, private, speed
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.main import main
from grpo_tui.app.health import mac, machine, mlx, store
from grpo_tui.experiments.db.connection import open_writer
from grpo_tui.experiments.db.migrations import migrate
from grpo_tui.experiments.db.tables import CURRENT


@pytest.mark.slow
def test_doctor_prints_json_with_the_rate_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json", "--db", str(tmp_path / "runs.db")]) == exit_codes.OK
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    checks = {(check["area"], check["name"]): check for check in report["facts"]}
    assert {area for area, _ in checks} >= {"Machine", "MLX", "Terminal", "Store", "Optional"}
    assert float(checks["MLX", "1024x1024x1024"]["found"].partition(" GFLOP/s")[0]) > 0
    assert float(checks["MLX", "8x576x1536"]["found"].partition(" ms")[0]) > 0
    assert checks["Store", "folder"]["found"].startswith(f"{tmp_path}, ")


def test_a_damaged_database_stops_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlx, "checks", list)
    damaged = tmp_path / "runs.db"
    damaged.write_bytes(b"no database at all" * 100)
    assert main(["doctor", "--db", str(damaged)]) == exit_codes.FAILED
    out = capsys.readouterr().out
    assert "A run cannot start here: database." in out
    assert f"Move {damaged} away" in out


def made_store(path: Path, user_version: int) -> Path:
    connection = open_writer(path, create=True)
    migrate(connection, path)
    connection.execute(f"PRAGMA user_version = {user_version}")
    connection.close()
    return path


def test_a_database_of_a_newer_program_stops_a_run(tmp_path: Path) -> None:
    result = store.database(made_store(tmp_path / "runs.db", CURRENT + 1))
    assert result.level == "stops a run"
    assert "upgrade grpo-tui" in result.remedy


def test_a_store_over_the_network_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.file_system(tmp_path / "runs.db") == []
    monkeypatch.setattr(store, "network_file_system", lambda _: "nfs4")
    (result,) = store.file_system(tmp_path / "runs.db")
    assert result.level == "warning"


def test_a_folder_that_is_a_file_stops_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = store.folder(tmp_path / "file" / "runs.db")
    assert result.level == "stops a run"
    assert "--db" in result.remedy


def test_little_memory_is_a_warning_and_hardly_any_stops_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = []
    for free in (8 << 30, 1 << 30, 100 << 20):
        result = memory.Memory(total=16 << 30, available=free, process=1, limit=None)
        monkeypatch.setattr(memory, "memory", lambda result=result: result)
        levels.append(machine.memory_check().level)
    assert levels == ["fine", "warning", "stops a run"]


def test_mlx_that_does_not_load_stops_a_run_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlx.core", None)
    monkeypatch.setattr(device, "nvidia_driver", lambda: None)
    monkeypatch.setattr("sys.platform", "linux")
    result = mlx.checks()
    assert [check.level for check in result] == ["stops a run"]
    assert "'grpo-tui[cpu]'" in result[0].remedy


@pytest.mark.parametrize(("builds", "extra"), [(["cpu"], "cuda13"), (["cpu", "cuda12"], "cpu")])
def test_a_build_that_does_not_fit_or_another_beside_it_is_a_warning(
    builds: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "backends", lambda: dict.fromkeys(builds, "1"))
    monkeypatch.setattr(device, "suitable_extra", lambda: extra)
    result = mlx.build()
    assert result.level == "warning"
    assert f"'grpo-tui[{extra}]'" in result.remedy


@pytest.mark.parametrize(("on_gpu", "kind"), [(False, "float32"), (True, "as stored")])
def test_the_number_format_of_weights_is_told(
    on_gpu: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "uses_gpu", lambda: on_gpu)
    result = mlx.number_format()
    assert result.result.startswith(f"auto is {kind}: ")


def test_slow_products_are_a_warning_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = speed.Speed(speed.SQUARE, 400.0, 5.4)
    monkeypatch.setattr(speed, "measure", lambda _shape: slow)
    monkeypatch.setattr(mlx, "on_processor", lambda: True)
    monkeypatch.setattr(blas, "ensure", lambda: blas.Blas(reason="none"))
    result = mlx.square()
    assert result.level == "warning"
    assert result.result.startswith("5 GFLOP/s")
    assert "BLAS" in result.remedy


@pytest.mark.skipif(sys.platform != "linux", reason="Metal's kernels are compiled in memory")
def test_the_folder_of_mlxs_kernels_is_ours_or_doctor_says_whose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = mlx.kernel_folder()
    assert result.level == "fine"
    assert str(kernels.folder()) in result.result
    monkeypatch.setattr(kernels, "prepare", lambda: None)
    monkeypatch.setattr(kernels, "loaded_elsewhere", list)
    monkeypatch.setattr(kernels, "folder", lambda: tmp_path)  # another user has the usual name
    (result,) = mlx.kernel_folder()
    assert result.level == "warning"
    assert str(private.temporary_path()) in result.remedy
    monkeypatch.setattr(kernels, "loaded_elsewhere", lambda: ["/tmp/mlx/1/cpu/libx.so"])
    (result,) = mlx.kernel_folder()
    assert (result.level, result.result) == ("stops a run", "loaded from /tmp/mlx/1/cpu")


@pytest.mark.slow
def test_code_of_ours_that_fails_its_check_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = blas.Blas(library="x", threads=1, compiled_problem="computes wrong")
    monkeypatch.setattr(blas, "ensure", lambda: rejected)
    result = mlx.products()[0]
    assert result.level == "warning"
    assert result.remedy == "Our own compiled code is not used: it computes wrong."


SAYS = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M4 Pro",
    ("sysctl", "-n", "iogpu.wired_limit_mb"): "12000",
    ("pmset", "-g"): "System-wide power settings:\n hibernatemode  3\n displaysleep   10 (imposed)",
}


@pytest.fixture(name="system")
def fixture_system(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], str]:
    """What the programs of macOS print."""
    system = dict(SAYS)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(mac, "output_of", lambda *command: system.get(command, ""))
    return system


def test_a_mac_is_named_by_its_chip_power_display_and_what_its_gpu_may_use(
    system: dict[tuple[str, ...], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mx, "device_info", lambda: {"max_recommended_working_set_size": 11_453_251_584}
    )
    battery = SimpleNamespace(percent=80.4, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert machine.processor_name() == "Apple M4 Pro"
    assert [(check.name, check.result) for check in (*mac.gpu_memory(), *mac.checks())] == [
        ("GPU memory", "11.5 GB may be used, iogpu.wired_limit_mb is set to 12000"),
        ("power", "battery, 80% charged"),
        ("display", "sleeps after 10 min"),
    ]
    battery.percent = 19.6
    system["pmset", "-g"] = " displaysleep         0"
    power, display = mac.checks()
    assert power.remedy == "Connect the charger before a long run."
    assert (display.result, "pmset displaysleepnow" in display.remedy) == ("never sleeps", True)


def test_a_mac_whose_programs_say_nothing_is_described_all_the_same(
    system: dict[tuple[str, ...], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system.clear()
    monkeypatch.setattr(mx, "device_info", dict)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert [check.result for check in (*mac.gpu_memory(), *mac.checks())] == [
        "MLX does not say how much may be used",
        "mains",
        "unknown when it sleeps",
    ]


@pytest.mark.skipif(sys.platform == "darwin", reason="is about other systems")
def test_elsewhere_nothing_is_said_of_macs() -> None:
    assert [*mac.gpu_memory(), *mac.checks()] == []


def test_a_program_that_fails_or_is_missing_says_nothing() -> None:
    assert mac.output_of("echo", " 12 ") == "12"
    assert mac.output_of("false") == mac.output_of("no-such-program-of-macos") == ""
