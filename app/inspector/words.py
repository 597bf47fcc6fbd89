"""Explain a token's numbers in words: why it is clipped, and its term as arithmetic."""

from app.inspector.values import TokenTerm
from app.text.numbers import MINUS, short, signed
from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals

# Ratios this near to 1 count as 1: float32 log-probabilities are no more precise.
ONE = 1e-5
FAR = 1e6


def why(term: TokenTerm, recipe: Recipe, *, first_pass: bool) -> str:
    """Explain in one sentence what happens to the token and why."""
    if not term.in_loss:
        return (
            "left out: forced by the think budget, or its answer was cut or its environment failed"
        )
    if term.advantage == 0:
        return "no push: its answer scored like the others of its group"
    if not term.kept:
        return f"left out: {_too_far(term, recipe)}"
    if not term.updated and recipe.drop_at_bound and term.side != "free":
        return f"left out of the loss at its bound, ratio {short(term.ratio)}"
    if not term.updated:
        return f"no push: not in the top {recipe.entropy_top_quantile:.0%} of tokens by entropy"
    better = term.advantage > 0
    who = "better answer" if better else "worse answer"
    if recipe.ratio == "none":
        return f"{who}: pushed {'up' if better else 'down'}, with no ratio and no bound"
    if recipe.trust in ("sapo", "vespo"):
        of = "the ratio of its answer" if recipe.trust == "vespo" else "its ratio"
        return f"{who}: pushed {'up' if better else 'down'} by a smooth function of {of}"
    if term.side == "high":
        return f"{who}, already beyond {short(term.high)}: {_stop(recipe)}"
    if term.side == "low":
        return f"{who}, already below {short(term.low)}: {_stop(recipe)}"
    if term.side == "ceiling":
        return f"{who}, ratio beyond the ceiling {short(recipe.delta or 0)}: {_stop(recipe)}"
    if abs(term.ratio - 1) < ONE and first_pass:
        return f"{who}: pushed {'up' if better else 'down'}; ratio is 1 by construction"
    return _free(term, who, better)


def _too_far(term: TokenTerm, recipe: Recipe) -> str:
    """Say which of the two masks on the distance to the sampler applied."""
    if term.importance == 0:
        low, high = short(recipe.importance_floor), short(recipe.importance_cap)
        whose = "its answer" if recipe.importance_mode.startswith("sequence") else "it"
        return f"trainer and sampler differ about {whose} by a ratio outside {low} to {high}"
    limit = f"{recipe.off_policy_mask:g}"
    return f"a worse answer, more than {limit} nats per token away from the sampler"


def _stop(recipe: Recipe) -> str:
    if recipe.trust == "cispo":
        return "still pushed, with capped weight"
    return "clipped, no push"


def _free(term: TokenTerm, who: str, better: bool) -> str:
    if better and term.ratio < 1 - ONE:
        return f"{who} that became less likely: pushed up at full strength"
    if not better and term.ratio > 1 + ONE:
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
    dropped = recipe.drop_at_bound and term.side != "free"
    if recipe.beta and term.anchor and not dropped:
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
