"""Online learning in recurrent and spiking networks: eligibility traces compiled from any model.

Names load when first used, so that `import braintrace` costs little more than `import jax`.
"""

import warnings as _warnings
from importlib import import_module as _import_module

__version__ = '1.0.0a1'
__version_info__ = (1, 0, 0)

_HOME = {
    'shells.vjp_algorithm': ['ETraceVjpAlgorithm'],
    'shells.state_rules': [
        'BPTT',
        'KFRTRL',
        'LowRankRTRL',
        'RTRL',
        'RandomProjectionVjpAlgorithm',
        'SnAp',
        'UORO',
    ],
    'shells.unit_rules': [
        'D_RTRL',
        'EProp',
        'ES_D_RTRL',
        'HybridDimVjpAlgorithm',
        'IODimVjpAlgorithm',
        'OSTLFeedforward',
        'OSTLRecurrent',
        'OTTT',
        'ParamDimVjpAlgorithm',
        'RFLO',
        'ThreeFactor',
        'pp_prop',
    ],
    'shells.dni': ['DNI'],
    'tools.comparison': ['Comparison', 'compare'],
    'tools.record': ['record'],
    'show.recording': ['Animation', 'Recording'],
    'show.page': ['Page'],
    'compat.compiler': [
        'add_hidden_perturbation_from_minfo',
        'add_hidden_perturbation_in_module',
        'compile_etrace_graph',
        'extract_module_info',
        'find_hidden_groups_from_minfo',
        'find_hidden_groups_from_module',
        'find_hidden_param_op_relations_from_minfo',
        'find_hidden_param_op_relations_from_module',
    ],
    'show.picture': ['Picture', 'picture_of_traces'],
    'shells.drivers': ['SequenceDriverMixin'],
    'shells.entry': ['compile'],
    'compat.executors': ['ETraceGraphExecutor', 'ETraceVjpGraphExecutor'],
    'errors': ['CompilationError', 'NotSupportedError'],
    'compat.module_info': ['ModuleInfo'],
    'graph.flatten': ['ControlFlowPolicy'],
    'graph.diagnostics': ['CompilationRecord', 'DiagnosticKind', 'DiagnosticLevel'],
    'compat.records': ['ETraceGraph'],
    'compat.hidden_group': ['HiddenGroup'],
    'compat.perturbation': ['HiddenPerturbation'],
    'compat.relation': ['HiddenParamOpRelation'],
    'shells.brainstate': ['ETraceAlgorithm'],
    'shells.memory': ['EligibilityTrace'],
    'shells.mapped': ['ETraceVmap'],
    'ops.functions': [
        'conv',
        'einsum',
        'element_wise',
        'embedding',
        'grouped_matmul',
        'lora_matmul',
        'matmul',
        'sparse_matmul',
    ],
    'ops.marker': ['marked', 'untraced'],
    'ops.register': ['ETPPrimitive', 'register_primitive'],
    'show.code.python': ['jaxpr_to_python'],
    'show.report': ['CompilationReport'],
    'compat.filters': ['FixedRandomFeedback', 'GradExpon', 'KappaFilter'],
    'rules.config': ['ETraceConfig'],
    'rules.registry': ['register_rule'],
    'shells.synthetic': ['SyntheticGradient', 'train_synthetic_gradient'],
    'learn.checkpoints': ['Checkpoints'],
    'learn.saving': ['Snapshot'],
    'learn.data': ['MultiStepData', 'SingleStepData'],
    'shells.function': ['PureLearner'],
    'shells.nnx': ['NNXLearner'],
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}
_OLD_HOME = {
    'shells.version_0_1': ['DiagTruncatedAlgorithm'],
    'compat.version_0_1': [
        'ConvOp',
        'ETraceGroupState',
        'ETraceOp',
        'ETraceParam',
        'ETraceState',
        'ETraceTreeState',
        'ElemWiseOp',
        'ElemWiseParam',
        'FakeETraceParam',
        'FakeElemWiseParam',
        'LoraOp',
        'MatMulOp',
        'NonTempParam',
        'SpMatMulOp',
        'general_y2w',
        'stop_param_gradients',
    ],
}  # of 0.1.1
_LEGACY = {name: module for module, names in _OLD_HOME.items() for name in names}

# Layers live in `braintrace.nn`; here their names only forward.
_LAYERS = [
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
_PARTS = ['nn', 'ops', 'rules']
_EXTRAS = ('brainstate', 'saiunit', 'brainevent', 'flax')  # what plain functions do without

__all__ = sorted(_WHERE)


def __getattr__(name: str):
    try:
        return _find(name)
    except ModuleNotFoundError as error:
        missing = (error.name or '').split('.')[0]
        if missing not in _EXTRAS:
            raise
        raise ImportError(
            f'`braintrace.{name}`: {missing} is needed for this: pip install {missing}',
            name=missing,
        ) from error


def _find(name: str):
    if name in _PARTS:
        return _import_module(f'.{name}', __name__)
    if name in _LEGACY:
        _deprecated(f'`braintrace.{name}` belongs to version 0.1.1: weights are traced without it.')
        return getattr(_import_module(f'.{_LEGACY[name]}', __name__), name)
    if name in _LAYERS:
        _deprecated(f'`braintrace.{name}` is `braintrace.nn.{name}`: use it from there.')
        return getattr(_import_module('.nn', __name__), name)
    if name not in _WHERE:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(_import_module(f'.{_WHERE[name]}', __name__), name)
    if isinstance(value, type) and value.__qualname__ in _WHERE:
        # A public class is shown and pickled by its public name, wherever it is written.
        value.__module__ = __name__
    globals()[name] = value
    return value


def _deprecated(message: str) -> None:
    _warnings.warn(message, DeprecationWarning, stacklevel=4)


def __dir__():
    return sorted({*globals(), *__all__, *_LEGACY, *_PARTS})
