"""The public names and where they are written; `__init__.py` loads them when they are first used.

Changed together with the table there: `tests/test_typing.py` prints what this file should be.
"""

from . import nn as nn
from . import ops as ops
from . import rules as rules
from .shells.vjp_algorithm import ETraceVjpAlgorithm as ETraceVjpAlgorithm
from .shells.state_rules import (
    BPTT as BPTT,
    KFRTRL as KFRTRL,
    LowRankRTRL as LowRankRTRL,
    RTRL as RTRL,
    RandomProjectionVjpAlgorithm as RandomProjectionVjpAlgorithm,
    SnAp as SnAp,
    UORO as UORO,
)
from .shells.unit_rules import (
    D_RTRL as D_RTRL,
    EProp as EProp,
    ES_D_RTRL as ES_D_RTRL,
    HybridDimVjpAlgorithm as HybridDimVjpAlgorithm,
    IODimVjpAlgorithm as IODimVjpAlgorithm,
    OSTLFeedforward as OSTLFeedforward,
    OSTLRecurrent as OSTLRecurrent,
    OTTT as OTTT,
    ParamDimVjpAlgorithm as ParamDimVjpAlgorithm,
    RFLO as RFLO,
    ThreeFactor as ThreeFactor,
    pp_prop as pp_prop,
)
from .shells.dni import DNI as DNI
from .tools.comparison import (
    Comparison as Comparison,
    compare as compare,
)
from .tools.record import record as record
from .show.recording import (
    Animation as Animation,
    Recording as Recording,
)
from .show.page import Page as Page
from .compat.compiler import (
    add_hidden_perturbation_from_minfo as add_hidden_perturbation_from_minfo,
    add_hidden_perturbation_in_module as add_hidden_perturbation_in_module,
    compile_etrace_graph as compile_etrace_graph,
    extract_module_info as extract_module_info,
    find_hidden_groups_from_minfo as find_hidden_groups_from_minfo,
    find_hidden_groups_from_module as find_hidden_groups_from_module,
    find_hidden_param_op_relations_from_minfo as find_hidden_param_op_relations_from_minfo,
    find_hidden_param_op_relations_from_module as find_hidden_param_op_relations_from_module,
)
from .show.picture import (
    Picture as Picture,
    picture_of_traces as picture_of_traces,
)
from .shells.drivers import SequenceDriverMixin as SequenceDriverMixin
from .shells.entry import compile as compile
from .compat.executors import (
    ETraceGraphExecutor as ETraceGraphExecutor,
    ETraceVjpGraphExecutor as ETraceVjpGraphExecutor,
)
from .errors import (
    CompilationError as CompilationError,
    NotSupportedError as NotSupportedError,
)
from .compat.module_info import ModuleInfo as ModuleInfo
from .graph.flatten import ControlFlowPolicy as ControlFlowPolicy
from .graph.diagnostics import (
    CompilationRecord as CompilationRecord,
    DiagnosticKind as DiagnosticKind,
    DiagnosticLevel as DiagnosticLevel,
)
from .compat.records import ETraceGraph as ETraceGraph
from .compat.hidden_group import HiddenGroup as HiddenGroup
from .compat.perturbation import HiddenPerturbation as HiddenPerturbation
from .compat.relation import HiddenParamOpRelation as HiddenParamOpRelation
from .shells.brainstate import ETraceAlgorithm as ETraceAlgorithm
from .shells.memory import EligibilityTrace as EligibilityTrace
from .shells.mapped import ETraceVmap as ETraceVmap
from .ops.functions import (
    conv as conv,
    einsum as einsum,
    element_wise as element_wise,
    embedding as embedding,
    grouped_matmul as grouped_matmul,
    lora_matmul as lora_matmul,
    matmul as matmul,
    sparse_matmul as sparse_matmul,
)
from .ops.marker import (
    marked as marked,
    untraced as untraced,
)
from .ops.register import (
    ETPPrimitive as ETPPrimitive,
    register_primitive as register_primitive,
)
from .show.code.python import jaxpr_to_python as jaxpr_to_python
from .show.report import CompilationReport as CompilationReport
from .compat.filters import (
    FixedRandomFeedback as FixedRandomFeedback,
    GradExpon as GradExpon,
    KappaFilter as KappaFilter,
)
from .rules.config import ETraceConfig as ETraceConfig
from .rules.registry import register_rule as register_rule
from .shells.synthetic import (
    SyntheticGradient as SyntheticGradient,
    train_synthetic_gradient as train_synthetic_gradient,
)
from .learn.checkpoints import Checkpoints as Checkpoints
from .learn.saving import Snapshot as Snapshot
from .learn.data import (
    MultiStepData as MultiStepData,
    SingleStepData as SingleStepData,
)
from .shells.function import PureLearner as PureLearner
from .shells.nnx import NNXLearner as NNXLearner
from .shells.version_0_1 import DiagTruncatedAlgorithm as DiagTruncatedAlgorithm
from .compat.version_0_1 import (
    ConvOp as ConvOp,
    ETraceGroupState as ETraceGroupState,
    ETraceOp as ETraceOp,
    ETraceParam as ETraceParam,
    ETraceState as ETraceState,
    ETraceTreeState as ETraceTreeState,
    ElemWiseOp as ElemWiseOp,
    ElemWiseParam as ElemWiseParam,
    FakeETraceParam as FakeETraceParam,
    FakeElemWiseParam as FakeElemWiseParam,
    LoraOp as LoraOp,
    MatMulOp as MatMulOp,
    NonTempParam as NonTempParam,
    SpMatMulOp as SpMatMulOp,
    general_y2w as general_y2w,
    stop_param_gradients as stop_param_gradients,
)

__version__: str
__version_info__: tuple[int, int, int]
