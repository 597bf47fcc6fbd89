"""StoreReader: plain sqlite3 for the command line, the first paint and hot reads."""

from experiments.post_mortem import PostMortemQuestions
from experiments.read_facts import FactQuestions
from experiments.read_runs import RunQuestions
from experiments.read_waiting import WaitingQuestions
from experiments.search import SearchQuestions


class StoreReader(
    RunQuestions, FactQuestions, SearchQuestions, PostMortemQuestions, WaitingQuestions
):
    """Reads the store at `path`, one thread at a time; never migrates and never writes.

    Runs are named by `RunSummary.key`, groups by `GroupView.key`.
    """
