"""What the compiler tells about its decisions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .lines import frames_inside


class DiagnosticLevel(str, Enum):
    """How much a diagnostic matters; warnings and errors also go through `warnings.warn`."""

    INFO = 'info'
    WARNING = 'warning'
    ERROR = 'error'


class DiagnosticKind(str, Enum):
    """What a diagnostic is about."""

    RELATION_INCLUDED = 'relation_included'
    RELATION_EXCLUDED_NO_PARAMSTATE = 'relation_excluded_no_paramstate'
    RELATION_EXCLUDED_NON_TEMPORAL = 'relation_excluded_non_temporal'
    RELATION_EXCLUDED_SHAPE_MISMATCH = 'relation_excluded_shape_mismatch'
    RELATION_EXCLUDED_WEIGHT_TO_WEIGHT = 'relation_excluded_weight_to_weight'
    RELATION_EXCLUDED_SLICED_WEIGHT = 'relation_excluded_sliced_weight'
    RELATION_EXCLUDED_MIXED_TAIL = 'relation_excluded_mixed_tail'
    RELATION_EXCLUDED_NO_RULE = 'relation_excluded_no_rule'
    RELATION_EXCLUDED_TOO_LARGE = 'relation_excluded_too_large'
    RELATION_EXCLUDED_BY_USER = 'relation_excluded_by_user'
    RELATION_PARTIAL_PATH = 'relation_partial_path'
    TRAINABLE_INVAR_NOT_PARAMSTATE = 'trainable_invar_not_paramstate'
    COND_IF_CONVERTED = 'cond_if_converted'
    COND_CONVERSION_SKIPPED = 'cond_conversion_skipped'
    SCAN_UNROLLED = 'scan_unrolled'
    SCAN_UNROLL_SKIPPED = 'scan_unroll_skipped'
    SCAN_DESCENT_APPLIED = 'scan_descent_applied'
    SCAN_DESCENT_SKIPPED = 'scan_descent_skipped'
    SCAN_DESCENT_NO_RELATIONS = 'scan_descent_no_relations'
    WEIGHT_IN_WHILE = 'weight_in_while'
    WEIGHT_IN_CONTROL_FLOW = 'weight_in_control_flow'
    CONTROL_FLOW_OPAQUE_FWD = 'control_flow_opaque_fwd'
    CONTROL_FLOW_RECURRENT_MIXING = 'control_flow_recurrent_mixing'
    PRIMITIVE_INSIDE_NESTED_JIT = 'primitive_inside_nested_jit'
    PRIMITIVE_INSIDE_CONTROL_FLOW = 'primitive_inside_control_flow'
    MULTI_OUTPUT_PRIMITIVE_DETECTED = 'multi_output_primitive_detected'
    PYTREE_WEIGHT_LEAF_AMBIGUOUS = 'pytree_weight_leaf_ambiguous'
    SNAP_PATTERN_CONSERVATIVE = 'snap_pattern_conservative'
    SNAP_PATTERN_DEGENERATE = 'snap_pattern_degenerate'
    TRANSITION_TAIL_BOUNDED = 'transition_tail_bounded'
    TRANSITION_MIXED = 'transition_mixed'
    HIDDEN_GROUP_MERGED = 'hidden_group_merged'
    OTHER_STATE_RECURRENT = 'other_state_recurrent'
    STATE_MISMATCH = 'state_mismatch'


@dataclass(frozen=True)
class CompilationRecord:
    """One diagnostic."""

    kind: DiagnosticKind
    level: DiagnosticLevel
    message: str
    primitive: str | None = None
    weight_path: tuple | None = None
    hidden_paths: tuple = ()
    context: Any = None


class Diagnostics(list):
    """The records of one compilation, in the order of the decisions."""

    def info(self, kind: DiagnosticKind, message: str, **where) -> None:
        self.append(CompilationRecord(kind, DiagnosticLevel.INFO, message, **where))

    def warning(self, kind: DiagnosticKind, message: str, **where) -> None:
        self.append(CompilationRecord(kind, DiagnosticLevel.WARNING, message, **where))


def emit(records: Iterable[CompilationRecord]) -> None:
    """Send what matters through `warnings.warn`: one warning for a compilation, at the line of the
    user that led to it."""
    told = [r.message for r in records if r.level is not DiagnosticLevel.INFO]
    if not told:
        return
    message = told[0]
    if len(told) > 1:
        message += f' ({len(told) - 1} more like this: `learner.report.show(2)` tells all.)'
    warnings.warn(message, stacklevel=2 + frames_inside())
