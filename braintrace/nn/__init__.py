"""Layers: brainstate modules whose weights the compiler traces.

None of them knows a learning rule.
"""

import warnings as _warnings
from importlib import import_module as _import_module

from .cells import (
    CFNCell,
    FusedGRUCell,
    FusedLSTMCell,
    GRUCell,
    LSTMCell,
    MGUCell,
    MiniGRU,
    MiniLSTM,
    MinimalRNNCell,
    URLSTMCell,
    ValinaRNNCell,
)
from .conv import Conv1d, Conv2d, Conv3d
from .embedding import Embedding
from .linear import GroupedLinear, Linear, LoRA, ScaledWSLinear, SignedWLinear, SparseLinear
from .lru import LRUCell
from .norm import BatchNorm0d, BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm, RMSNorm
from .readout import LeakyRateReadout, LeakySpikeReadout
from .stack import Stack, stack

__all__ = [
    'BatchNorm0d',
    'BatchNorm1d',
    'BatchNorm2d',
    'BatchNorm3d',
    'CFNCell',
    'Conv1d',
    'Conv2d',
    'Conv3d',
    'Embedding',
    'FusedGRUCell',
    'FusedLSTMCell',
    'GRUCell',
    'GroupNorm',
    'GroupedLinear',
    'LRUCell',
    'LSTMCell',
    'LayerNorm',
    'LeakyRateReadout',
    'LeakySpikeReadout',
    'Linear',
    'LoRA',
    'MGUCell',
    'MiniGRU',
    'MiniLSTM',
    'MinimalRNNCell',
    'RMSNorm',
    'ScaledWSLinear',
    'SignedWLinear',
    'SparseLinear',
    'Stack',
    'URLSTMCell',
    'ValinaRNNCell',
    'stack',
]

_ACTIVATIONS = """
    CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish
    PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign
    SpikeBitwise Tanh Tanhshrink
"""
_POOLS = """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d
"""
_OTHERS = 'Dropout Dropout1d Dropout2d Dropout3d Flatten Identity Unflatten'
_NEURONS = 'ALIF Alpha DualExpon Expon IF LIF STD STP'

# Names of 0.2 that belong to other packages: they are forwarded.
_WHERE = {
    **dict.fromkeys(_NEURONS.split(), 'brainpy.state'),
    **dict.fromkeys([*_ACTIVATIONS.split(), *_POOLS.split(), *_OTHERS.split()], 'brainstate.nn'),
}


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module = _WHERE[name]
    _warnings.warn(
        f'`braintrace.nn.{name}` only forwards to another package. Use {module}.{name} instead.',
        DeprecationWarning,
        stacklevel=2,
    )
    try:
        return getattr(_import_module(module), name)
    except ModuleNotFoundError as e:
        raise ImportError(
            f'`braintrace.nn.{name}` needs brainpy: `pip install braintrace[snn]`.'
        ) from e


def __dir__():
    return sorted([*__all__, *_WHERE])
