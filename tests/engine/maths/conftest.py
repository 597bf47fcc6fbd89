"""All maths is tested on the CPU, so that a GPU does not change the numbers."""

import mlx.core as mx
from hypothesis import settings

mx.set_default_device(mx.cpu)

settings.register_profile("maths", settings.get_profile("tests"), max_examples=25)
settings.load_profile("maths")
