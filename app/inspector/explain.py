"""A token's numbers in words: why it is pushed or clipped, its share of the loss written out."""

import math
from pathlib import Path

from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals
from grpo_tui.app.inspector.losses import TokenLoss, loss_mask
from grpo_tui.app.inspector.stored import RolloutTokens, RunInfo
from grpo_tui.app.text.numbers import MINUS, short, signed

# Ratios this near to 1 count as 1: float32 log-probabilities are no more precise.
ROUNDING = 1e-5
UNBOUNDED = 1e6
LEFT_OUT = "left out: forced by the think budget, or its answer was cut or its environment failed"


def probability(logprob: float, digits: int = 3) -> str:
    """exp of a log-probability, with more digits if it is near 1: `.034`, `.9987`."""
    p = math.exp(min(0.0, logprob))
    return f"{p:.4f}"[1:] if 0.99995 > p >= 0.0995 else short(p, digits)


def loss_texts(answer: RolloutTokens, token: int, run: RunInfo) -> dict[str, tuple[str, str]]:
    """What the loss did with a token of an answer: labels and texts, which may be empty."""
    loss, row, recipe = answer.losses[token], answer.row, run.recipe
    assert row is not None
    ratios = [short(math.exp(new[token] - row.old[token]), 3) for new in row.passes]
    share = arithmetic(
        loss, recipe, row.updates[-1], length=sum(loss_mask(row)), max_length=run.max_length
    )
    first_pass, scored = len(row.passes) == 1, answer.rollout.reward is not None
    return {
        "passes": ("", "" if first_pass else f"new ÷ old in each pass: {', '.join(ratios)}"),
        "why": ("why", explanation(loss, recipe, first_pass=first_pass, scored=scored)),
        "gradient": ("gradient", gradient_sum(loss)),
        "share": ("share", f"of the objective: {share}"),
    }


def explanation(token: TokenLoss, recipe: Recipe, *, first_pass: bool, scored: bool = True) -> str:
    """Explain in one sentence which way the loss moves the token, and why."""
    if not token.in_loss:
        return LEFT_OUT
    if abs(token.pull) > abs(token.push) > 0 > token.push * token.pull:
        return (
            f"{_judgement(token)}, but KL pulls it {_way(token.pull)} more than the advantage "
            f"pushes it {_way(token.push)}"
        )
    blocked = blocked_by(token, recipe, scored)
    text = blocked or _pushed(token, recipe, first_pass)
    if blocked and token.push:  # The ratio of a completion reads all of its tokens.
        text += f"; the ratio of its answer pushes it {_way(token.push)}"
    return text


def _judgement(token: TokenLoss) -> str:
    """What the rollout's rewards and the teacher say of the token."""
    judgement = "better answer" if token.reward_part > 0 else "worse answer"
    if not token.teacher_part:
        return judgement
    likelihood = f"a token {'likelier' if token.teacher_part > 0 else 'less likely'} to the teacher"
    return f"{judgement}, {likelihood}" if token.reward_part else likelihood


def _way(gradient: float) -> str:
    return "up" if gradient > 0 else "down"


def gradient_sum(token: TokenLoss) -> str:
    """The gradient as `+.0076 by the advantage − .0091 by KL = −.0015`; empty if it is 0."""
    if abs(token.pull) <= ROUNDING * abs(token.push):
        return f"{precise(token.push)} by the advantage" if token.push else ""
    sign = "+" if token.pull > 0 else MINUS
    return (
        f"{precise(token.push)} by the advantage {sign} {precise(token.pull)[1:]} by KL"
        f" = {precise(token.gradient)}"
    )


def blocked_by(token: TokenLoss, recipe: Recipe, scored: bool) -> str:
    """Why the token's own share of the loss does not push it; empty if it does."""
    if token.advantage == 0 and not recipe.reads_rewards:
        return "no push: the teacher finds it as likely"
    if token.advantage == 0 and isinstance(recipe.signal, Custom):
        return f"no push: {Path(recipe.signal).name} gave it the advantage 0"
    if token.advantage == 0:
        reason = "scored the mean of its group" if scored else "got no score"
        return f"no push: its answer {reason}"
    if not token.on_policy:
        return "left out: the trainer's probability is too far from the sampler's"
    if not token.updated:
        return f"no push: not in the top {recipe.entropy_top_quantile:.0%} of tokens by entropy"
    if token.side == "free" or recipe.trust_rule.caps:
        return ""
    bounds = {
        "high": f", already beyond {short(token.high)}",
        "low": f", already below {short(token.low)}",
        "ceiling": f", ratio beyond the ceiling {short(recipe.delta or 0)}",
    }
    return f"{_judgement(token)}{bounds[token.side]}: clipped, no push"


def _pushed(token: TokenLoss, recipe: Recipe, first_pass: bool) -> str:
    """How the token's own share of the loss pushes it."""
    judgement, way = _judgement(token), _way(token.push)
    if not token.push:
        return f"{judgement}: no push, because its ratio is so far from 1"
    if recipe.demonstrates:
        return "the data's answer: pushed up, more where it is less likely"
    text = f"{judgement}: pushed {way}"
    if recipe.ratio == "none":
        return f"{text}, with no ratio and no bound"
    if token.advantage * token.push < 0:
        return f"{text} by the ratio of its answer"
    if recipe.trust_rule.fades:
        return f"{text} by {Path(recipe.trust).name}, gradient {precise(token.push)}"
    if token.side == "high":
        return f"{judgement}, already beyond {short(token.high)}: still pushed, with capped weight"
    if abs(token.ratio - 1) < ROUNDING and first_pass:
        return f"{text}; ratio is 1 by construction"
    limit = token.high if way == "up" else token.low
    return text + f" until its ratio is {short(limit)}" * (1 / UNBOUNDED < limit < UNBOUNDED)


def arithmetic(
    token: TokenLoss, recipe: Recipe, totals: UpdateTotals, *, length: int, max_length: int
) -> str:
    """The token's share of the loss written out: `1.20 × 1.21 ÷ 24 tokens ÷ 8 answers = +.0076`.

    It is a share of the objective, the negative of the loss. `length` counts the rollout's tokens
    in the loss.
    """
    if not token.in_loss:
        return "0: not in the loss"
    text = _objective(token, recipe)
    penalties = [
        (recipe.beta, token.anchor, ""),
        (recipe.value_coefficient, token.value_loss, " critic"),
    ]
    subtracted = "".join(
        f" − {short(weight, 4)} × {precise(value).lstrip('+')}{name}"
        for weight, value, name in penalties
        if weight and value
    )
    text = f"({text}{subtracted})" if subtracted else text
    text = " ".join([text, *_divisors(token, recipe, totals, length, max_length)])
    if token.bonus:
        updated = totals.tokens if totals.updated_tokens is None else totals.updated_tokens
        bonus = f"{short(totals.entropy_bonus, 4)} × {short(token.entropy, 4)} entropy"
        text += f" + {bonus} ÷ {updated} tokens"
    return f"{text} = {precise(token.contribution)}"


def _objective(token: TokenLoss, recipe: Recipe) -> str:
    if not token.updated:
        return "0"
    text = precise(token.objective)
    if isinstance(recipe.trust, Custom):
        text += f" by {Path(recipe.trust).name}"
    if recipe.trust_rule.is_linear and recipe.ratio != "none" and token.advantage:
        used = token.objective / token.advantage
        advantage = _parts(token) or signed(token.advantage, 3)
        text = f"{short(used, 3)} × {advantage}"
    if recipe.importance_cap and not recipe.trust_rule.weighs_completions:
        text += f" × {short(token.importance, 3)} for the sampler"
    return text


def _parts(token: TokenLoss) -> str:
    """The advantage by rewards and by the teacher; empty if either gives none."""
    if not (token.teacher_part and token.reward_part):
        return ""
    sign, teacher = "+" if token.teacher_part > 0 else MINUS, short(abs(token.teacher_part), 3)
    return f"({signed(token.reward_part, 3)} by rewards {sign} {teacher} by the teacher)"


def _divisors(
    token: TokenLoss, recipe: Recipe, totals: UpdateTotals, length: int, max_length: int
) -> list[str]:
    if isinstance(recipe.weight, Custom):
        return [f"× {short(token.weight, 4)} by {Path(recipe.weight).name}"]
    rows = f"÷ {totals.rows} answers"
    update = "minibatch" if recipe.minibatches > 1 else "step"
    micro_batch = f"÷ {totals.batch_tokens} tokens of its micro-batch"
    return {
        "per_sequence": [f"÷ {length} tokens", rows],
        "per_completion": [rows],
        "per_token": [f"÷ {totals.tokens} tokens of the {update}"],
        "per_batch_token": [micro_batch, f"÷ {totals.micro_batches} micro-batches"],
        "constant": [f"÷ {max_length} tokens at most", rows],
        "sum": [],
    }[recipe.weight]


def precise(value: float) -> str:
    """Format with sign and three digits at least, so that a sum fits: `+.00756`, `−6.60e−5`."""
    size, sign = abs(value), "+" if value > 0 else MINUS
    if 0.00099995 <= size < 0.99995:
        return sign + f"{size:.{max(4, 2 - math.floor(math.log10(size)))}f}"[1:]
    if 0 < size < 0.00099995:
        mantissa, _, exponent = f"{size:.2e}".partition("e")
        return f"{sign}{mantissa}e{MINUS}{-int(exponent)}"
    return signed(value, 3)
