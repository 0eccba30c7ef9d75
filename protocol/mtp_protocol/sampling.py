"""How a token is chosen from the model's distribution: the user's settings, validated once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from mtp_protocol.bounds import Most
from mtp_protocol.ranges import within

MAX_BIASES = 1024
# Of each number: the least and the most. Whole numbers are those with whole bounds.
RANGES: Mapping[str, tuple[int, int] | tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "seed": (0, (1 << 63) - 1),
    "logprobs": (0, 20),
}


@dataclass(frozen=True)
class Sampling:
    """Settings of one request. Raises ValueError, naming the field, for a value outside its range.

    `temperature` 0 is greedy. `top_p` 1, `top_k` 0, `min_p` 0 and the neutral penalties are off. `seed` None draws a
    fresh seed. `logprobs` is how many alternatives to report per token (0: none; the chosen token's is always there
    when it is above 0). `logit_bias` maps a token id to what is added to its logit.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Annotated[Mapping[int, float], Most(MAX_BIASES)] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            if name != "seed" or self.seed is not None:
                within(name, getattr(self, name), low, high)
        if self.top_p == 0.0:
            raise ValueError("top_p must be above 0")
        if len(self.logit_bias) > MAX_BIASES:
            raise ValueError(f"logit_bias has more than {MAX_BIASES} entries")
        for token, bias in self.logit_bias.items():
            within("logit_bias token", token, 0, 1 << 31)
            within("logit_bias", bias, -1e4, 1e4)

    @property
    def greedy(self) -> bool:
        """True when the largest (penalised) logit is taken."""
        return self.temperature == 0.0
