"""What a user says about a run: how sequences are cut, masked and weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var
from ..step import Step
from .core import Core
from .shapes import told


def sequence_length(sequences: Sequence[Any]) -> int:
    """The common first axis of all leaves."""
    lengths = set()
    for i, tree in enumerate(sequences):
        leaves = jax.tree.leaves(tree)
        if not leaves:
            raise ValueError(f'Sequence {i} is empty: it has no array.')
        for leaf in leaves:
            if jnp.ndim(leaf) == 0:
                raise ValueError(
                    f'Sequence {i} has a scalar: every array needs time as its first axis.'
                )
            lengths.add(jnp.shape(leaf)[0])
    if not lengths:
        raise ValueError('Give at least one sequence.')
    if len(lengths) > 1:
        raise ValueError(
            f'The sequences have different lengths {sorted(lengths)}: time is the first axis of '
            'every array.'
        )
    [length] = lengths
    if not length:
        raise ValueError('The sequences have length 0.')
    return length


def first_of(sequences: Any) -> Any:
    """The data of the first step."""
    return jax.tree.map(lambda a: a[0], sequences)


def shapes_of_one_step(sequences: Any) -> Any:
    """The shapes of one step's data."""

    def one(a):
        return jax.ShapeDtypeStruct(jnp.shape(a)[1:], jnp.result_type(a))

    return jax.tree.map(one, sequences)


def split_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    """The loss and the aux that a step gives."""
    pair = isinstance(result, tuple) and len(result) == 2
    if has_aux and not pair:
        raise TypeError(
            f'With has_aux=True `step_fn` must return a pair (loss, aux), got {_told(result)}. '
            'Return both, or leave `has_aux` out.'
        )
    if not has_aux and len(jax.tree.leaves(result)) != 1:
        raise TypeError(
            f'`step_fn` must return its loss, got {_told(result)}. To return more, return '
            '(loss, aux) and pass has_aux=True.'
        )
    return result if has_aux else (result, None)


def check_loss(name: str, loss: Any) -> None:
    """Refuse what has no gradient, or is not one number for a step or for each sample."""
    if jnp.ndim(loss) > 1:
        raise ValueError(
            f'`{name}` must return a scalar loss, or one for each sample, got shape '
            f'{jnp.shape(loss)}.'
        )
    if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise TypeError(
            f'`{name}` must return a real, floating-point loss, got {jnp.result_type(loss)}: it '
            'has no gradient.'
        )


def refuse_constant(name: str, core: Core) -> None:
    """Refuse a loss that nothing the learner changes has a part in."""
    step = core.program.step
    reached: set[Any] = {*step.param_vars, *step.hidden_vars}
    for eqn in step.jaxpr.eqns:
        if any(isinstance(a, Var) and a in reached for a in eqn.invars):
            reached.update(eqn.outvars)
    loss = step.outs[0]
    if not isinstance(loss, Var) or loss not in reached:
        raise ValueError(
            f'The loss of `{name}` depends on no parameter and no hidden state, so its gradient '
            'is zero. Compute it from the output of the model.'
        )


def refuse_unused(step: Step, params: Sequence[Any]) -> None:
    """Refuse a step that uses none of its parameters, or closes over one that it was given."""
    used = {a for eqn in step.jaxpr.eqns for a in eqn.invars if isinstance(a, Var)}
    used |= {a for a in step.jaxpr.outvars if isinstance(a, Var)}
    if step.params and used.isdisjoint(step.param_vars):
        floats = [c for c in step.captured if jnp.issubdtype(jnp.result_type(c), jnp.inexact)]
        closed = f' It closes over {told(floats)}: those get no gradient.' if floats else ''
        raise ValueError(
            f'The step uses nothing of `params`, so there is nothing to learn.{closed} Pass the '
            'weights as `params`.'
        )
    for leaf, v, value in zip(step.params, step.param_vars, params, strict=True):
        if v not in used and any(value is c for c in step.captured):
            raise ValueError(
                f'The step closes over {leaf.name} instead of taking it from `params`, so that its '
                'gradient would be zero. Use the first argument of the step.'
            )


def _told(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f'a {type(result).__name__} of {len(result)}'
    if hasattr(result, 'shape'):
        return f'an array of shape {jnp.shape(result)}'
    return type(result).__name__


def per_step(modulator: Any, length: int) -> Any:
    """A modulator with the steps as first axis: a number stands for all of them."""

    def one(m):
        if isinstance(m, str | bytes | set) or callable(m):
            raise TypeError(f'`modulator` must be a number or an array, got {m!r}.')
        m = jnp.asarray(m)
        if m.ndim and m.shape[0] != length:
            raise ValueError(
                f'`modulator` has shape {m.shape}: it must be a number, or have the {length} steps '
                'as its first axis.'
            )
        return m if m.ndim else jnp.broadcast_to(m, (length,))

    if modulator is None:
        return None
    if isinstance(modulator, list | tuple):
        raise TypeError('`modulator` must be an array, or a dict of arrays by group number.')
    if isinstance(modulator, dict):
        return {g: one(m) for g, m in modulator.items()}
    return one(modulator)


def spread_mask(mask: Any, losses: tuple[int, ...], dtype: Any) -> jax.Array:
    """The mask at each loss, for losses of shape (T,) or (T, batch); ones if there is none."""
    if mask is None:
        return jnp.ones(losses, dtype)
    refuse_bad_mask(mask)
    mask = jnp.asarray(mask, dtype)
    if mask.shape not in (losses[:1], losses):
        also = '; a mask by sample needs a step that returns one loss for each sample'
        if len(losses) > 1:
            also = f' or {losses}'
        raise ValueError(f'`mask` has shape {mask.shape}, but the losses need {losses[:1]}{also}.')
    mask = mask.reshape(mask.shape + (1,) * (len(losses) - mask.ndim))
    return jnp.broadcast_to(mask, losses)


def weigh(mask: jax.Array, reduction: str) -> jax.Array:
    """The weight of each loss in the objective."""
    if reduction not in ('mean', 'sum'):
        raise ValueError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}.")
    if reduction == 'sum':
        return mask
    total = mask.sum()
    return mask / jnp.where(total == 0, 1, total)


def refuse_bad_mask(mask: Any) -> None:
    """Refuse a mask that is no weight of losses, where its values can be seen."""
    if mask is None or isinstance(mask, jax.core.Tracer):
        return
    values = np.asarray(mask)
    if values.dtype.kind not in 'biuf' or not np.all((values >= 0) & np.isfinite(values)):
        raise ValueError(
            '`mask` weighs losses: its entries must be finite numbers of at least 0 (0 leaves a '
            'loss out).'
        )


def unread(leaves: Sequence[Any], mask: Any) -> list[Any]:
    """The data of all steps, `(T, ...)` each, as a masked run reads them: a number that is not
    finite is nobody's business in a step whose mask, `(T,)` or `(T, batch)`, is zero, and becomes
    zero."""
    if mask is None:
        return list(leaves)
    out = jnp.asarray(mask) == 0

    def one(a: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(a), jnp.inexact):
            return a
        by_sample = out.ndim == 2 and jnp.shape(a)[1:2] == out.shape[1:]
        here = out if out.ndim == 1 or by_sample else out.all(1)
        here = here.reshape(here.shape + (1,) * (jnp.ndim(a) - here.ndim))
        return jnp.where(here & ~jnp.isfinite(a), 0, a)

    return [one(a) for a in leaves]


def masked_losses(losses: Any, weights: Any) -> Any:
    """Losses times their weights; one that weighs nothing is not read."""
    return jnp.where(weights == 0, 0, losses * weights)
