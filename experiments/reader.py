"""StoreReader: every query on the store, as one class."""

from grpo_tui.experiments.read.facts import FactQuestions
from grpo_tui.experiments.read.post_mortem import PostMortemQuestions
from grpo_tui.experiments.read.runs import RunQuestions
from grpo_tui.experiments.read.search import SearchQuestions
from grpo_tui.experiments.read.waiting import WaitingQuestions


class StoreReader(
    RunQuestions, FactQuestions, SearchQuestions, PostMortemQuestions, WaitingQuestions
):
    """Reads the store at `path`, one thread at a time; never migrates and never writes.

    Runs are identified by `RunSummary.key`, groups by `GroupView.key`.
    """
