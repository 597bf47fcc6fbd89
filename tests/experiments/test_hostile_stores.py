"""Importing stores that are damaged or made to harm: refused in words, whole or not at all."""

import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.importing import import_store
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent
from tests.experiments import made
from tests.experiments.made import evaluated, integrity, record_run

Harm = Callable[[Path], None]


def sql(*statements: str) -> Harm:
    def harm(folder: Path) -> None:
        made.sql(folder / "s.db", *statements)

    return harm


def cut(share: float) -> Harm:
    def harm(folder: Path) -> None:
        data = (folder / "s.db").read_bytes()
        (folder / "s.db").write_bytes(data[: int(share * len(data))])

    return harm


def flipped(seed: int) -> Harm:
    def harm(folder: Path) -> None:
        dice = random.Random(seed)
        data = bytearray((folder / "s.db").read_bytes())
        for _ in range((1, 10, 200)[seed % 3]):
            data[dice.randrange(0, len(data))] = dice.randrange(256)
        (folder / "s.db").write_bytes(data)

    return harm


def instead(name: str, make: Callable[[Path], None]) -> Harm:
    """Replace a file of the run `theirs`, or the store."""

    def harm(folder: Path) -> None:
        file = folder / name if name == "s.db" else next((folder / "runs").iterdir()) / name
        file.unlink(missing_ok=True)
        make(file)

    return harm


def zeros(file: Path) -> None:
    file.symlink_to("/dev/zero")


def bomb(folder: Path) -> None:
    """A token blob of 600 kB that would fill 600 MB."""
    packer = zlib.compressobj(9)
    first, again = (
        packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    data = first + again * 599
    with closing(sqlite3.connect(next((folder / "runs").glob("*/tokens.db")))) as conn:
        conn.execute("UPDATE blob SET data = ?", (data,))
        conn.commit()


DEEP = "replace(hex(zeroblob(50000)), '0', '[')"
REFUSED: dict[str, Harm] = {
    "a FIFO": instead("s.db", os.mkfifo),
    "a folder": instead("s.db", Path.mkdir),
    "a device": instead("s.db", zeros),
    "a bomb": bomb,
    "an id that leaves its folder": sql("UPDATE run SET short = '../../../../etc'"),
    "an absolute id": sql("UPDATE run SET short = '/etc'"),
    "an id of bytes": sql("UPDATE run SET short = x'00ff'"),
    "a long id": sql("UPDATE run SET short = hex(zeroblob(3000))"),
    "settings that are no JSON": sql("UPDATE run SET config = '{bad'"),
    "settings that are a list": sql("UPDATE run SET config = '[1]'"),
    "nested settings": sql(f"UPDATE run SET config = {DEEP}"),
    "endless settings": sql("""UPDATE run SET config = '{"seed": 1e999}'"""),
    "sections that are numbers": sql("""UPDATE run SET config = '{"record": 7}'"""),
    "versions that are no JSON": sql("UPDATE run SET versions = '{'"),
    "an event that is no JSON": sql("UPDATE event SET payload = '{bad'"),
    "an unknown event": sql("""UPDATE event SET payload = '{"event": "Nope", "step": 1}'"""),
    "an event without fields": sql("""UPDATE event SET payload = '{"event": "RunStarted"}'"""),
    "a nested event": sql(f"UPDATE event SET payload = {DEEP}"),
    "positions of text": sql("UPDATE event SET seq = 'x' || id"),
    "steps of text": sql("UPDATE step SET step = 'x' || id"),
    "negative steps": sql("UPDATE step SET step = -step"),
    "steps beyond all runs": sql("UPDATE step SET step = 9223372036854775807 - step"),
    "key sets that are no JSON": sql("UPDATE key_set SET keys = '['"),
    "unknown keys": sql("UPDATE key_set SET keys = '[99999]'"),
    "a uid that is a path": sql("UPDATE run SET uid = '../../evil'"),
    "another program's mark": sql("PRAGMA application_id = 1"),
    "no version": sql("PRAGMA user_version = 0"),
    "a missing table": sql("DROP TABLE event"),
    "no bytes": cut(0),
    "half of its bytes": cut(0.5),
}
HARMLESS: dict[str, Harm] = {
    "an index of theirs": sql("CREATE INDEX mine ON run (note)"),
    "a table of theirs": sql("CREATE TABLE mine (a)"),
    "a later version": sql("PRAGMA user_version = 999"),
    "tokens that are a FIFO": instead("tokens.db", os.mkfifo),
    "tokens that are a device": instead("tokens.db", zeros),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    record_run(folder / "s.db", name="theirs", last=(evaluated(3),))
    made.sql(folder / "s.db", "PRAGMA journal_mode = DELETE")
    return folder


def harmed(whole: Path, tmp_path: Path, harm: Harm) -> Path:
    folder = tmp_path / "theirs"
    shutil.copytree(whole, folder)
    harm(folder)
    return folder / "s.db"


def statuses(path: Path) -> list[tuple[str, int, str]]:
    """Status, step and error of each run in a store, which must not be damaged."""
    with StoreReader(path) as reader:
        assert integrity(reader) == "ok"
        return [(run.status, run.step, run.error) for run in reader.runs(archived=True)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", REFUSED)
def test_a_harmful_store_is_refused_and_leaves_nothing(
    whole: Path, tmp_path: Path, name: str
) -> None:
    other = harmed(whole, tmp_path, REFUSED[name])
    with (
        ExperimentStore(tmp_path / "mine.db") as store,
        pytest.raises(ImportRefusedError),
    ):
        import_store(store, other)
    assert statuses(tmp_path / "mine.db") == []
    assert [*tmp_path.glob("runs/*")] == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_cannot_harm_is_left_out(whole: Path, tmp_path: Path, name: str) -> None:
    other = harmed(whole, tmp_path, HARMLESS[name])
    with ExperimentStore(tmp_path / "mine.db") as store:
        assert len(import_store(store, other)) == 1
    assert statuses(tmp_path / "mine.db") == [("completed", 3, "")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_store_is_imported_whole_or_not_at_all(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    other = harmed(whole, tmp_path, flipped(seed))
    with ExperimentStore(tmp_path / "mine.db") as store:
        try:
            taken = import_store(store, other)
        except ImportRefusedError:
            taken = []
    assert len(statuses(tmp_path / "mine.db")) == len(taken)


def test_one_damaged_run_does_not_keep_the_others_out(whole: Path, tmp_path: Path) -> None:
    def harm(folder: Path) -> None:
        record_run(folder / "s.db", name="second")
        sql("UPDATE event SET payload = '{' WHERE run_id = 1")(folder)

    other = harmed(whole, tmp_path, harm)
    with ExperimentStore(tmp_path / "mine.db") as store:
        with pytest.raises(ImportRefusedError, match=r"1 runs of .* 1 were: theirs \(.*damaged"):
            import_store(store, other)
        assert store.key_of("second")


def test_what_a_killed_import_left_is_imported_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.db"
    child = os.fork()
    if not child:  # dies when it has written the first page
        write = RunWriter.write

        def dying(self: RunWriter, items: Sequence[RecordedEvent], limit: float) -> None:
            write(self, items, limit)
            os._exit(9)

        monkeypatch.setattr(RunWriter, "write", dying)
        import_store(ExperimentStore(path), whole / "s.db")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with StoreReader(path) as reader:
        assert [run.note for run in reader.runs()] == [
            "the import was interrupted; import the file again"
        ]
    with ExperimentStore(path) as store:
        assert len(import_store(store, whole / "s.db")) == 1
    assert statuses(path) == [("completed", 3, "")]
