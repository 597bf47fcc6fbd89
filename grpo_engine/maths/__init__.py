"""The maths of the GRPO family: arrays and a recipe in, arrays out; no model, no tokenizer.

`advantages` turns rewards into advantages, `policy_loss` computes the loss. Both take a recipe,
which makes six choices. Each choice has its module:

    1 signal   signal.py, critic.py; entry point advantage.py
    2 ratio    ratio.py
    3 trust    trust.py
    4 anchor   anchor.py
    5 weight   weight.py
    6 reuse    reuse.py
    all        arrays.py, custom.py, loss.py, metrics.py

Every array carries its axes as a suffix: `P` prompts, `G` completions of a prompt, `B = P·G`
completions, `T` completion tokens, `F` reward functions, `S` scored steps, `N` what was flattened.
`_BT` broadcasts to [B,T]: it may be [B,1] where a completion has one value, and [] where all have
the same. A lower-case letter is an axis that may be missing: `_Bt` is [B] or [B,T]. Public names
have no suffix: keywords of `advantages`, `policy_loss` and `totals_of`, fields of `Advantages` and
`Terms`.
"""
