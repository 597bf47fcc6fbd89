"""What `grpo-tui probe` prints."""

from grpo_engine.api.probe import PromptsProbed
from grpo_tui.app.cli.verbs.probe import report


def test_the_report_shows_rates_shares_and_the_advice() -> None:
    probed = PromptsProbed(
        temperature=0.7,
        keys=["a", "b", "c"],
        rewards=[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]],
        right=[(1, 4), (2, 4), (0, 4)],
        tokens=30,
        seconds=6.0,
    )
    facts, text = report(probed, [2, 4], 8)
    assert "temperature 0.7: 3 prompts, 4 answers each" in text
    assert "right: 25% of the answers; 1 of the prompts never, 0 always" in text
    # pairs: 1/2, 2/3 and 0; fours: 1, 1 and 0
    assert [one["share"] for one in facts["group_sizes"]] == [7 / 18, 2 / 3]
    assert "No group size tried gives 80% of the prompts a signal" in text
    assert facts["recommended"] is None
    assert facts["pass_rates"] == {"a": 0.25, "b": 0.5, "c": 0.0}
    better, text = report(probed, [2, 4], 8)[0], report(probed, [4], 8)[1]
    assert better["tokens"] == 30
    assert "67%" in text
