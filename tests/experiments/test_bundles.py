"""A bundle may come from anyone: what no bundle has is refused, and nothing else is unpacked."""

import stat
import struct
import zipfile
from pathlib import Path

import pytest

from grpo_tui.experiments import bundles
from grpo_tui.experiments.bundles import STORE, import_bundle, is_bundle
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import record_run, sql


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """The file of a store with one run."""
    path = tmp_path / "made" / "s.db"
    record_run(path, name="theirs")
    sql(path, "PRAGMA journal_mode=DELETE")
    return path.read_bytes()


def made(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in members:
            bundle.writestr(name, data)
    return path


def taken_in(path: Path, folder: Path) -> list[str]:
    with ExperimentStore(folder / "here.db") as store:
        return [name for _, name in import_bundle(store, path)]


def test_a_store_in_a_bundle_is_taken_in(tmp_path: Path, content: bytes) -> None:
    path = made(tmp_path / "b.zip", (STORE, content), ("otter/settings.yaml", b"x"))
    assert is_bundle(path)
    assert taken_in(path, tmp_path) == ["theirs"]


def entry(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (entry("../evil"), "leads out of it"),
        (entry("store/../../evil"), "leads out of it"),
        (entry("/etc/cron.d/evil"), "leads out of it"),
        (entry("C:\\evil"), "leads out of it"),
        (entry("store\\..\\evil"), "leads out of it"),
        (entry("store/runs/x", stat.S_IFLNK | 0o777), "no plain file"),
        (entry("store/pipe", stat.S_IFIFO | 0o600), "no plain file"),
        (entry("folder/"), "no plain file"),
        (entry(STORE.upper()), "comes twice"),
    ],
)
def test_a_bundle_with_what_none_has_is_refused_whole(
    tmp_path: Path, content: bytes, member: zipfile.ZipInfo, reason: str
) -> None:
    path = made(tmp_path / "b.zip", (STORE, content), (member, b"evil"))
    before = {file for file in tmp_path.rglob("*") if "here.db" not in file.name}
    with pytest.raises(ImportRefusedError, match=reason):
        taken_in(path, tmp_path)
    assert {file for file in tmp_path.rglob("*") if "here.db" not in file.name} == before
    with StoreReader(tmp_path / "here.db") as reader:
        assert reader.runs() == ()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path, content: bytes) -> None:
    path = made(tmp_path / "b.zip", (STORE, content), (STORE, content))
    with pytest.raises(ImportRefusedError, match="comes twice"):
        taken_in(path, tmp_path)


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "PLAIN", 1 << 20)
    path = made(tmp_path / "b.zip", (STORE, content), ("zeros", bytes(20 << 20)))
    with pytest.raises(ImportRefusedError, match=r"MB would become 2\d MB"):
        taken_in(path, tmp_path)


def test_a_size_that_is_a_lie_is_refused(tmp_path: Path, content: bytes) -> None:
    path = made(tmp_path / "b.zip", (STORE, content))
    raw = bytearray(path.read_bytes())
    central = raw.rindex(b"PK\1\2")
    struct.pack_into("<I", raw, central + 24, 4096)  # of the file as it would be unpacked
    path.write_bytes(raw)
    with pytest.raises(ImportRefusedError):
        taken_in(path, tmp_path)


def test_too_many_files_are_refused(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "MAX_FILES", 10)
    path = made(tmp_path / "b.zip", (STORE, content), *((f"f{i}", b"") for i in range(10)))
    with pytest.raises(ImportRefusedError, match="has 11 files"):
        taken_in(path, tmp_path)


def test_a_list_of_files_that_is_most_of_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as bundle:
        for number in range(200):
            bundle.writestr(f"{number:05}" * 6000, b"")  # 30 kB each: 6 MB of names
    with pytest.raises(ImportRefusedError, match="list of files is too long"):
        taken_in(path, tmp_path)


@pytest.mark.parametrize("cut", [4, 100, 3000])
def test_a_damaged_bundle_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, cut: int
) -> None:
    path = made(tmp_path / "b.zip", (STORE, content))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ImportRefusedError, match="cannot be read as a bundle"):
        taken_in(path, tmp_path)


def test_every_flipped_byte_leads_to_the_run_or_to_a_sentence(
    tmp_path: Path, content: bytes
) -> None:
    path = made(tmp_path / "b.zip", (STORE, content))
    whole = path.read_bytes()
    with ExperimentStore(tmp_path / "here.db") as store:
        assert import_bundle(store, path)
        for at in {*range(0, 60, 11), *range(len(whole) - 90, len(whole), 5), len(whole) // 2}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                assert import_bundle(store, path) == []  # the run is here already
            except ImportRefusedError:
                continue


def test_a_damaged_store_in_a_bundle_names_the_bundle(tmp_path: Path, content: bytes) -> None:
    path = made(tmp_path / "b.zip", (STORE, content[:100] + bytes(len(content) - 100)))
    with pytest.raises(ImportRefusedError, match=r"b\.zip cannot be imported"):
        taken_in(path, tmp_path)


def test_a_zip_file_of_something_else_says_what_makes_a_bundle(tmp_path: Path) -> None:
    path = made(tmp_path / "b.zip", ("photo.jpg", b"x"))
    with pytest.raises(ImportRefusedError, match=r"export RUN --to bundle\.zip"):
        taken_in(path, tmp_path)


def test_a_bundle_that_does_not_fit_names_the_folder(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "b.zip", (STORE, content))
    usage = bundles.shutil._ntuple_diskusage(10, 10, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(ImportRefusedError, match="set TMPDIR"):
        taken_in(path, tmp_path)
