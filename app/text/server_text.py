"""What a step costs on a server, in words for `plan` and New run."""

from grpo_engine.setup.server_cost import ServerCost
from grpo_tui.app.text.numbers import tokens
from grpo_tui.app.text.words import count_of


def server_calls(cost: ServerCost) -> str:
    """The requests of a step."""
    return (
        f"at most {cost.calls:,} a step: {cost.samples:,} for answers, {cost.scores:,} to score "
        f"them, {count_of(cost.updates, 'gradient')} with as many steps of the optimiser"
    )


def server_tokens(cost: ServerCost) -> str:
    """The tokens of these requests."""
    return (
        f"at most {tokens(cost.read)} read and {tokens(cost.sampled)} sampled, "
        f"{tokens(cost.scored)} scored, {tokens(cost.trained)} trained a step"
    )
