"""Identity of a run: a short id to type, and a readable name."""

import itertools
import random
import secrets
from collections.abc import Container
from uuid import UUID

_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"

_ADJECTIVES = (
    "amber bold brave brisk calm clear clever cosy crisp eager early fair fleet fond frank fresh "
    "gentle glad golden grand happy hardy honest humble jolly keen kind late light lively loyal "
    "lucid lucky mellow merry mild neat nimble noble patient plain polite proud pure quick quiet "
    "rapid ready royal sage serene sharp silent silver smooth snug sober solid steady still sunny "
    "swift tall tidy tender true vivid warm wise witty young zesty"
).split()
_ANIMALS = (
    "badger bear beaver bison bittern boar buck crane crow curlew deer dipper dove duck eagle eel "
    "egret elk falcon ferret finch fox frog gannet goose grebe gull hare hawk heron ibex jay kite "
    "lark linnet lizard lynx magpie marten mole moose moth newt ocelot orca osprey otter owl "
    "oyster panda perch pike plover puffin quail raven robin rook salmon seal shrew shrike siskin "
    "skua snail snipe sparrow stoat stork swan swift teal tern thrush toad trout turtle vole "
    "walrus weasel whale wolf wren"
).split()


def short_id(uid: str, existing: Container[str]) -> str:
    """Return eight characters from the random end of `uid`, or random ones if those exist."""
    value = UUID(uid).int
    short = "".join(_BASE32[value >> 5 * index & 31] for index in range(8))
    while short in existing:
        short = "".join(secrets.choice(_BASE32) for _ in range(8))
    return short


def free_name(name: str, existing: Container[str]) -> str:
    """Return the name or a generated one, with a number if it exists."""
    base = name or f"{random.choice(_ADJECTIVES)}-{random.choice(_ANIMALS)}"
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in existing)
