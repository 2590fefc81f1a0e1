"""``exp(x - y)`` of whole matrices, where most of a softmax's time goes that is not products."""

import math

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)


def exp_of_difference_(x_etcN: Tensor, by_etc1: Tensor) -> Tensor:
    """Replace x by ``exp(x - by)``, as a power of two, and return it.

    torch's ``exp2`` takes a third of the time of its ``exp`` on a CPU (2.4 million floats on two
    cores: 0.37 against 1.0 ms; 0.77 against 12 ms where all results are too small for a float).
    """
    return torch.add(by_etc1 * -LOG2_E, x_etcN, alpha=LOG2_E, out=x_etcN).exp2_()
