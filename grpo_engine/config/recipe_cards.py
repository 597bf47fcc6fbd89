"""Strengths and weaknesses of each recipe, to help people choose one."""

from dataclasses import dataclass

from grpo_engine import names


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCard:
    """A recipe's title, source and character."""

    title: str
    paper: str
    summary: str
    good: str
    bad: str


CARDS: dict[str, RecipeCard] = {
    "reinforce": RecipeCard(
        title="REINFORCE",
        paper="Williams 1992, doi:10.1007/BF00992696",
        summary="Raise the log-probability of every answer by its reward.",
        good="The basic idea in one line; a baseline for the others.",
        bad="Very noisy: with rewards of 0 and 1 it only pushes up, so likely answers win "
        "because they are sampled more often.",
    ),
    "reinforce-baseline": RecipeCard(
        title="REINFORCE with a baseline",
        paper="Williams 1992, doi:10.1007/BF00992696",
        summary="Compare each reward with the mean of the batch, then push up or down.",
        good="Much less noise at no cost; long answers keep their full weight.",
        bad="Answers to easy prompts look good and to hard ones bad, whatever they are.",
    ),
    "off-policy": RecipeCard(
        title="Off-policy policy gradient",
        paper="Degris and others 2012, arXiv:1205.4839",
        summary="Use rollouts several times, re-weighted by the ratio of new to old probability.",
        good="Shows what a ratio does when nothing bounds it; reuses costly rollouts.",
        bad="The ratio of a rare token can be huge and wreck the policy within a few passes.",
    ),
    "grpo": RecipeCard(
        title="GRPO",
        paper="DeepSeekMath, arXiv:2402.03300",
        summary="Compare siblings of one prompt in units of their spread, clip the ratio, stay "
        "near the reference.",
        good="No critic; sound defaults; hard and easy prompts count alike.",
        bad="Wrong long answers are punished less per token than short ones, and prompts with "
        "a small spread are amplified.",
    ),
    "grpo-iterative": RecipeCard(
        title="Iterative GRPO",
        paper="DeepSeekMath, arXiv:2402.03300, algorithm 1",
        summary="GRPO whose reference becomes the policy every N steps.",
        good="A long run can leave the starting model behind and still stay near its reference.",
        bad="KL no longer says how far the model is from where it began.",
    ),
    "grpo-process": RecipeCard(
        title="GRPO with process supervision",
        paper="DeepSeekMath, arXiv:2402.03300, section 4.1.3",
        summary="Score the steps of an answer; a token's advantage is the sum of those that end at "
        "or after it.",
        good="Shows where an answer went wrong; learns from fewer rollouts.",
        bad="Needs scores of steps; more steps can mean more reward, whatever their content.",
    ),
    "grpo-sequence": RecipeCard(
        title="GRPO with ratios of whole answers",
        paper="The MLX article on GRPO from scratch; ratio as in arXiv:1707.06347 for one action",
        summary="One probability ratio and one KL for the whole answer; rollouts come from a "
        "policy copied every few steps.",
        good="Small enough to follow by hand. The article's worked example takes std sample "
        "(objective .116), the recipe, like its program, std population (.134).",
        bad="For short answers only: the ratio of a long answer exceeds any bound at once.",
    ),
    "dr-grpo": RecipeCard(
        title="Dr. GRPO",
        paper="Understanding R1-Zero-like training, arXiv:2503.20783",
        summary="GRPO without the two divisors that bias it: the group's spread and the answer's "
        "length.",
        good="Wrong answers are not driven to be longer; the gradient is unbiased.",
        bad="Prompts with small rewards move little; the step size depends on the maximum length.",
    ),
    "dapo": RecipeCard(
        title="DAPO",
        paper="arXiv:2503.14476",
        summary="A higher upper bound, equal weight for every token of the update, groups without "
        "signal replaced, a soft penalty for length.",
        good="Keeps exploring; no rollout is wasted; strong on long reasoning.",
        bad="Refilling costs sampling time when most prompts are too easy or too hard.",
    ),
    "gspo": RecipeCard(
        title="GSPO",
        paper="arXiv:2507.18071",
        summary="One ratio per answer, the geometric mean of its tokens' ratios, in a very "
        "narrow clip.",
        good="Steady on long answers and on mixture-of-experts models.",
        bad="A whole answer is clipped at once; nothing to clip without several minibatches.",
    ),
    "luspo": RecipeCard(
        title="LUSPO",
        paper="arXiv:2602.05261",
        summary="GSPO whose answers count by their length, so that the gradient does not favour "
        "short ones.",
        good="Long reasoning is not shortened by the average over its tokens.",
        bad="One long answer can outweigh all the others of a step.",
    ),
    "cispo": RecipeCard(
        title="CISPO",
        paper="MiniMax-M1, arXiv:2506.13585",
        summary="Bound the weight of a token and never its gradient.",
        good="Rare but decisive tokens keep their gradient where clipping would drop them.",
        bad="Nothing limits an update: many passes over the same rollouts can overshoot.",
    ),
    "sapo": RecipeCard(
        title="SAPO",
        paper="arXiv:2511.20347",
        summary="A smooth gate in place of the clip: the push fades as the ratio leaves 1.",
        good="The gradient does not vanish abruptly at a bound; pushes down are a little more "
        "careful.",
        bad="Two temperatures to choose; the value of the loss says little.",
    ),
    "vespo": RecipeCard(
        title="VESPO",
        paper="arXiv:2602.10693",
        summary="Weigh the gradient of an answer by a smooth function of its probability ratio, "
        "without any bound.",
        good="Old rollouts can be used: answers that have become far likelier or less likely fade "
        "out, whatever their length.",
        bad="Four numbers to choose; on fresh rollouts it is a plain policy gradient.",
    ),
    "bnpo": RecipeCard(
        title="GRPO per batch of tokens (TRL's BNPO)",
        paper="TRL's loss_type=bnpo, https://huggingface.co/docs/trl/grpo_trainer",
        summary="Average over the tokens of each micro-batch, then over micro-batches.",
        good="Comparable with runs of TRL that use it.",
        bad="The result depends on how the update is split; per_token does not.",
    ),
    "rloo": RecipeCard(
        title="RLOO",
        paper="Back to basics, arXiv:2402.14740",
        summary="Compare each answer with the mean of its siblings, KL subtracted from the reward.",
        good="An unbiased baseline without a critic; the KL penalty applies to the answer that "
        "caused it.",
        bad="Noisy for small groups; the ratios of long answers exceed the clip bounds.",
    ),
    "how-much": RecipeCard(
        title="How much, not how fast",
        paper='The article "How much, not how fast"',
        summary="Give every distinct token after a shared prefix a target probability, and push "
        "until it is there.",
        good="Rare and likely tokens are moved by comparable amounts; siblings are never pushed "
        "against each other on a shared prefix.",
        bad="Only the sign of a reward counts; several passes for each batch.",
    ),
    "ppo": RecipeCard(
        title="PPO with a critic",
        paper="arXiv:1707.06347 and, for language models, arXiv:2203.02155",
        summary="A critic predicts the return at every token; the advantage is the return above "
        "that.",
        good="Credit token by token; needs no groups.",
        bad="A critic to train and tune as well; poor until the critic is good.",
    ),
}


def card_of(name: str) -> RecipeCard:
    """The card of a recipe; one that a package brings has only its name and the package's."""
    if name in CARDS:
        return CARDS[name]
    point = names.installed("recipes").get(name)
    package = names.package_of(point) if point else "another program"
    return RecipeCard(
        title=name, paper=f"the package {package}", summary=f"From the package {package}.",
        good="See the package.", bad="See the package.",
    )  # fmt: skip
