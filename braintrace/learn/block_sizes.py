"""How long the blocks of a run are, and what memory they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .._jax import Var
from ..engine.blocks import MOST_STEPS, pick_window
from ..plan.step_sizes import bytes_of, of_operands, of_products
from ..rules.carrier import BlockCarrier, PartCarrier

if TYPE_CHECKING:
    from .core import Core

IN_CACHE = 24 * 2**20  # bytes of a block; a larger one gets its memory anew at every call
MOST_OF_RENEWED = 6  # a block may be so many times as large as what it renews


@dataclass(frozen=True, eq=False)
class BlockSizes:
    """The sizes of the blocks of a learner."""

    core: Core

    def window_length(self, window: Any, length: int) -> int:
        """The number of steps in a block: as said, or as memory allows for 'auto'."""
        if window == 'auto':
            if self.core.carrier.whole_sequence:
                return length
            return pick_window(length, self.bytes_per_step, self._of_a_block)
        if isinstance(window, bool) or not hasattr(window, '__index__'):
            raise TypeError(f"`window` must be a number of steps or 'auto', got {window!r}.")
        if window < 1:
            raise ValueError(f'`window` must be at least 1, got {window}.')
        return min(int(window), length)

    def part_of(self, length: int) -> int:
        """The steps of a part of a sequence of this length that stands alone; all of them where it
        is not cut into parts. Each part adds to all gradients."""
        core = self.core
        if not core.single_step or not isinstance(core.carrier, PartCarrier) or core.looks_on:
            return length
        most = max(IN_CACHE, MOST_OF_RENEWED * self._gradient_bytes)
        return pick_window(length, self.bytes_per_step, most)

    @cached_property
    def _of_a_block(self) -> int:
        """The bytes that a block may have. With single-step credit its length changes no gradient:
        one that a cache holds is faster, but where traces and gradients, which each block reads and
        writes, are not small beside it."""
        if not self.core.single_step:
            return self.core.budget
        renewed = self._trace_bytes + self._gradient_bytes
        return min(self.core.budget, max(IN_CACHE, MOST_OF_RENEWED * renewed))

    @property
    def _trace_bytes(self) -> int:
        return sum(a.size * a.dtype.itemsize for a in self.core.shapes.values())

    @property
    def _gradient_bytes(self) -> int:
        return bytes_of(*self.core.program.step.param_vars)

    @cached_property
    def bytes_per_step(self) -> int:
        """What one step keeps in a block: its states, its products with weights, what multiplies
        these weights, and what the carrier keeps."""
        program, carrier = self.core.program, self.core.carrier
        step, layout = program.step, program.layout
        states = bytes_of(*step.hidden_vars, *step.other_vars)
        if self.core.single_step and isinstance(carrier, BlockCarrier):
            return states + self._product_bytes + of_operands(layout) + carrier.step_bytes
        total = 2 * states + carrier.window_step_bytes
        for r in layout.relations:
            rows = sum(layout.units[g.index].states for g in r.groups if g.index in layout.units)
            total += bytes_of(r.y_var) * (2 + 2 * rows)
            total += bytes_of(r.x_var) if r.x_var is not None else 0
        return total

    def memory(self) -> dict[str, int]:
        """What a run costs: the bytes of all traces, the steps of the longest block that
        `window='auto'` takes, and its bytes; and what a gradient takes at its peak, besides the
        model: the traces before and after a block, the block, and the gradients; and of a sequence
        of that length that stands alone."""
        steps = pick_window(MOST_STEPS, self.bytes_per_step, self._of_a_block)
        traces, gradients = self._trace_bytes, self._gradient_bytes
        block, part = steps * self.bytes_per_step, self.part_of(steps)
        alone = part * self.bytes_per_step
        if part < steps:
            alone += steps * self._course_bytes
        return {
            'trace_bytes': traces,
            'block_steps': steps,
            'block_bytes': block,
            'peak_bytes': 2 * traces + block + gradients,
            'alone_bytes': alone + gradients,
        }

    @property
    def _course_bytes(self) -> int:
        """What is kept of the course of one step."""
        program, step = self.core.program, self.core.program.step
        outs = [v for v in step.outs if isinstance(v, Var)]
        kept = *step.hidden_vars, *step.other_vars, *outs, *program.made_operands
        return bytes_of(*kept) + self._product_bytes

    @property
    def _product_bytes(self) -> int:
        """The products with weights that one step keeps: all of them, where a sample may be left
        out of a step."""
        products = self.core.program.products
        if self.core.looks_on:
            return bytes_of(*products)
        return of_products(self.core.program.layout, products)
