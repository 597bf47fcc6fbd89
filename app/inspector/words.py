"""Explain a token's numbers in words: why it is clipped, and its term as arithmetic."""

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.values import TokenTerm
from grpo_tui.app.text.numbers import MINUS, short, signed

# Ratios this near to 1 count as 1: float32 log-probabilities are no more precise.
ONE = 1e-5
FAR = 1e6


def why(term: TokenTerm, recipe: Recipe, *, first_pass: bool) -> str:
    """Explain in one sentence which way the loss moves the token, and why."""
    if not term.in_loss:
        return (
            "left out: forced by the think budget, or its answer was cut or its environment failed"
        )
    if abs(term.pull) > abs(term.push) > 0 > term.push * term.pull:
        who, pulls = _who(term), _way(term.pull)
        return (f"{who}, but KL pulls it {pulls} more than the advantage pushes it "
                f"{_way(term.push)}")  # fmt: skip
    held = stopped(term, recipe)
    said = held or _pushed(term, recipe, first_pass)
    if held and term.push:  # a ratio of whole answers reads every token of them
        said += f"; the ratio of its answer pushes it {_way(term.push)}"
    return said + _pulled(term)


def _who(term: TokenTerm) -> str:
    return "better answer" if term.advantage > 0 else "worse answer"


def _way(slope: float) -> str:
    return "up" if slope > 0 else "down"


def slope_parts(term: TokenTerm) -> str:
    """The slope as a sum, `+.0076 by the advantage − .0091 by KL = −.0015`; empty without KL."""
    if not _is_pulled(term):
        return ""
    sign = "+" if term.pull > 0 else MINUS
    return (f"{_fixed(term.push)} by the advantage {sign} {_fixed(term.pull)[1:]} by KL"
            f" = {_fixed(term.slope)}")  # fmt: skip


def _is_pulled(term: TokenTerm) -> bool:
    """Whether the KL term pulls, beyond float32's rounding."""
    return abs(term.pull) > ONE * abs(term.push)


def _pulled(term: TokenTerm) -> str:
    """What the KL term does beside a push that it does not outweigh."""
    if not _is_pulled(term):
        return ""
    if not term.push:
        return f"; KL alone pulls it {_way(term.pull)}"
    same = term.push * term.pull > 0
    return f"; KL pulls it {_way(term.pull)}{' too' if same else ', but less'}"


def stopped(term: TokenTerm, recipe: Recipe) -> str:
    """Why the token's own term does not push it; empty if it does."""
    if term.advantage == 0:
        return "no push: its answer scored like the others of its group"
    if not term.on_policy:
        return f"left out: {_too_far(term, recipe)}"
    if not term.updated:
        return f"no push: not in the top {recipe.entropy_top_quantile:.0%} of tokens by entropy"
    if term.side == "free" or recipe.trust == "cispo":
        return ""
    beyond = {
        "high": f", already beyond {short(term.high)}",
        "low": f", already below {short(term.low)}",
        "ceiling": f", ratio beyond the ceiling {short(recipe.delta or 0)}",
    }
    return f"{_who(term)}{beyond[term.side]}: clipped, no push"


def _pushed(term: TokenTerm, recipe: Recipe, first_pass: bool) -> str:
    """How the token's term pushes it."""
    who, way = _who(term), _way(term.push)
    if not term.push:
        return f"{who}: no push, because its ratio is so far from 1"
    if recipe.ratio == "none":
        return f"{who}: pushed {way}, with no ratio and no bound"
    if term.advantage * term.push < 0:
        return f"{who}: pushed {way} by the ratio of its answer"
    if recipe.trust in ("sapo", "vespo"):
        of = "the ratio of its answer" if recipe.trust == "vespo" else "its ratio"
        return f"{who}: pushed {way} by a smooth function of {of}"
    if term.side == "high":
        return f"{who}, already beyond {short(term.high)}: still pushed, with capped weight"
    if abs(term.ratio - 1) < ONE and first_pass:
        return f"{who}: pushed {way}; ratio is 1 by construction"
    return _free(term, who, term.advantage > 0)


def _too_far(term: TokenTerm, recipe: Recipe) -> str:
    """Say which of the two masks on the distance to the sampler applied."""
    if term.importance == 0:
        low, high = short(recipe.importance_floor), short(recipe.importance_cap)
        whose = "its answer" if recipe.importance_mode.startswith("sequence") else "it"
        return f"trainer and sampler differ about {whose} by a ratio outside {low} to {high}"
    limit = f"{recipe.off_policy_mask:g}"
    return f"a worse answer, more than {limit} nats per token away from the sampler"


def _free(term: TokenTerm, who: str, better: bool) -> str:
    moved = short(term.ratio, 3) != "1"  # as far as the panel shows
    if moved and better and term.ratio < 1:
        return f"{who} that became less likely: pushed up at full strength"
    if moved and not better and term.ratio > 1:
        bound = ", no bound on this side" if term.high < FAR else ""
        return f"{who} that became likelier: pushed down at full strength{bound}"
    limit = term.high if better else term.low
    way = "up" if better else "down"
    room = f", {way} to ratio {short(limit)}" if 1 / FAR < limit < FAR else ""
    return f"{who}: pushed {way}{room}"


def written_out(
    term: TokenTerm, recipe: Recipe, totals: UpdateTotals, *, length: int, max_length: int
) -> str:
    """Write out the token's term of the objective, `1.20 × 1.21 ÷ 24 tokens ÷ 8 answers`.

    `length` counts the answer's tokens in the loss.
    """
    if not term.in_loss:
        return "0: not in the loss"
    push, parts = _objective(term, recipe), []
    if recipe.beta and term.anchor:
        parts.append(f" − {_plain(recipe.beta)} × {_fixed(term.anchor).lstrip('+')}")
    if term.value_loss:
        parts.append(
            f" − {_plain(recipe.value_coefficient)} × {_fixed(term.value_loss).lstrip('+')} critic"
        )
    whole = f"({push}{''.join(parts)})" if parts else push
    text = " ".join([whole, *_divisors(recipe, totals, length, max_length)])
    if term.bonus:
        pushed = totals.tokens if totals.updated_tokens is None else totals.updated_tokens
        bonus = f"{_plain(totals.entropy_bonus)} × {_plain(term.entropy or 0)} entropy"
        text += f" + {bonus} ÷ {pushed} tokens"
    return f"{text} = {_fixed(term.contribution)}"


def _objective(term: TokenTerm, recipe: Recipe) -> str:
    if not term.updated:
        return "0"
    if not recipe.importance_cap or recipe.trust == "vespo":  # VESPO's push contains the weight
        return _push(term, recipe)
    return f"{_push(term, recipe)} × {short(term.importance, 3)} for the sampler"


def _push(term: TokenTerm, recipe: Recipe) -> str:
    if recipe.trust in ("none", "clip", "target") and recipe.ratio != "none" and term.advantage:
        used = term.objective / term.advantage
        return f"{short(used, 3)} × {signed(term.advantage, 3)}"
    return _fixed(term.objective)


def _divisors(recipe: Recipe, totals: UpdateTotals, length: int, max_length: int) -> list[str]:
    rows = f"÷ {totals.rows} answers"
    update = "minibatch" if recipe.minibatches > 1 else "step"
    match recipe.weight:
        case "per_sequence":
            return [f"÷ {length} tokens", rows]
        case "per_completion":
            return [rows]
        case "per_token":
            return [f"÷ {totals.tokens} tokens of the {update}"]
        case "per_batch_token":
            own = f"÷ {totals.batch_tokens} tokens of its micro-batch"
            return [own, f"÷ {totals.micro_batches} micro-batches"]
        case "constant":
            return [f"÷ {max_length} tokens at most", rows]
        case _:
            return []


def _plain(value: float) -> str:
    """Four significant digits without the leading zero, `.04`."""
    text = f"{value:.4g}"
    return text[1:] if text.startswith("0.") else text


def _fixed(value: float) -> str:
    """Format with sign and four decimals, `+.0076`; smaller numbers as a power of ten."""
    if not 0.00005 <= abs(value) < 0.99995:
        return signed(value)
    return ("+" if value > 0 else MINUS) + f"{abs(value):.4f}"[1:]
