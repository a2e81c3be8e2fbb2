"""A step of a stream as a file of `jax.export`, for processes that have jax alone.

The program is `values, out = call(values, *inputs)`. `values` is a flat dict of plain arrays, named
as in a snapshot: all that goes on from call to call.
"""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export

from ..graph.analysis import Analysis
from ..graph.samples import sample_axes
from ..rules.rule import Rule
from .data import MultiStepData, is_wrapped
from .options import first_of
from .saving import arrays_of, memory_of, memory_parts, traced_with

PLATFORMS = ('cpu', 'cuda', 'tpu')


def write(path: Any, f: Callable, values: Mapping[str, Any], inputs: tuple) -> None:
    """Write `f(values, *inputs) -> (values, out)`, for values and inputs like these (arrays, or
    shapes that may be symbolic), for all platforms."""
    if importlib.util.find_spec('flatbuffers') is None:
        raise ImportError(
            "`export`: jax needs flatbuffers for this: pip install 'braintrace[export]'",
            name='flatbuffers',
        )
    exported = export.export(jax.jit(f), platforms=PLATFORMS)(_shapes(values), *_shapes(inputs))
    pathlib.Path(path).write_bytes(exported.serialize())


def _shapes(tree: Any) -> Any:
    def one(a: Any) -> jax.ShapeDtypeStruct:
        if isinstance(a, jax.ShapeDtypeStruct):
            return a
        return jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))

    return jax.tree.map(one, tree)


# ---- plain functions ----


class Plain(NamedTuple):
    """What a learner of a plain function carries on: parameters, carry, and what the user's update
    keeps."""

    params: Any
    carry: Any
    more: Any = None

    def trees(self) -> dict[str, Any]:
        """All of it by name."""
        carry = self.carry._asdict()
        parts = memory_parts({k: v for k, v in carry.items() if k != 'state'})
        return {'param': self.params, 'state': carry['state'], **parts, 'more': self.more}

    def of(self, trees: Mapping[str, Any]) -> Plain:
        """The same from trees by name."""
        carry = type(self.carry)(state=trees['state'], **memory_of(trees))
        return Plain(trees['param'], carry, trees['more'])


Step = Callable[..., tuple[Plain, Any]]  # (plain, *inputs) -> (plain, out)
Finish = Callable[[Plain, Any], tuple[Plain, Any]]


def export_plain(
    path: Any, plain: Plain, step: Step, finish: Finish, inputs: tuple
) -> dict[str, Any]:
    """Write `finish(*step(plain, *inputs))`; the present values."""
    present = plain.trees()

    def call(values, *inputs):
        new, out = finish(*step(plain.of(traced_with(present, values)), *inputs))
        return arrays_of(new.trees()), out

    values = arrays_of(present)
    write(path, call, values, inputs)
    return values


def export_for_any_batch(
    path: Any, plain: Plain, step: Step, finish: Finish, inputs: tuple, axis: int
) -> dict[str, Any]:
    """As `export_plain`, mapped over any number of samples; the present values have the samples
    first, all but the parameters and `more`.

    Args:
        path: of the file.
        plain: as it is, its carry that of each sample (samples, ...), the state without its batch
            axis.
        step: of one sample, for states and inputs with a batch axis of size one.
        finish: takes means over samples.
        inputs: with the samples at `axis`, as they are in outputs.
        axis: 0, or 1 for a block of steps.
    """
    present, values = plain.trees(), arrays_of(plain.trees())
    shared = arrays_of({'param': plain.params, 'more': plain.more})

    def one(params, carry, *inputs):
        state = jax.tree.map(lambda a: a[None], carry.state)
        inputs = jax.tree.map(lambda a: jnp.expand_dims(a, axis), inputs)
        new, out = step(Plain(params, carry._replace(state=state)), *inputs)
        return new.carry._replace(state=jax.tree.map(lambda a: a[0], new.carry.state)), out

    def call(values, *inputs):
        params, carry, more = plain.of(traced_with(present, values))
        over = (None, 0, *[axis] * len(inputs))
        carry, outs = jax.vmap(one, over)(params, carry, *inputs)
        new, out = finish(Plain(params, carry, more), outs)
        return arrays_of(new.trees()), out

    write_for_any_batch(path, call, values, shared, inputs, axis)
    return values


# ---- any number of samples ----


def write_for_any_batch(
    path: Any, f: Callable, values: Mapping[str, Any], shared: Container, inputs: tuple, axis: int
) -> None:
    """As `write`, for any number of samples: the first axis of all values but the `shared`, and
    `axis` of the inputs."""
    [b] = export.symbolic_shape('b')

    def any_number(a: Any, axis: int) -> jax.ShapeDtypeStruct:
        shape = jnp.shape(a)
        return jax.ShapeDtypeStruct((*shape[:axis], b, *shape[axis + 1 :]), jnp.result_type(a))

    shapes = {n: a if n in shared else any_number(a, 0) for n, a in values.items()}
    write(path, f, shapes, jax.tree.map(lambda a: any_number(a, axis), inputs))


def check_for_any_batch(analysis: Analysis, states: Any, steps: Any) -> None:
    """Refuse a model whose samples cannot be told apart, and a learner that has made steps."""
    leaves = jax.tree.leaves(states)
    batches = {jnp.shape(a)[:1] for a in leaves}
    drawn = any(jnp.issubdtype(jnp.result_type(a), jnp.unsignedinteger) for a in leaves)
    if sample_axes(analysis) is None or len(batches) != 1 or drawn:
        raise ValueError(
            '`any_batch` needs a model whose states all have the batch as their first axis, '
            'without random bits among them, and in which no sample touches another. Export it '
            'for one batch size, without `any_batch`.'
        )
    if int(steps):
        raise ValueError(
            '`any_batch` begins anew: give the carry of `init`, and for a module call '
            '`learner.reset_state()` before.'
        )


def unwrapped(inputs: tuple) -> tuple[tuple, bool]:
    """The inputs without `MultiStepData`, and whether they were of several steps."""
    blocks = {isinstance(x, MultiStepData) for x in inputs}
    if len(blocks) > 1:
        raise TypeError('`example_inputs`: wrap all of them in MultiStepData, or none.')
    return tuple(x.data if is_wrapped(x) else x for x in inputs), blocks == {True}


def with_time(inputs: tuple, several: bool) -> tuple:
    """The inputs as a block: those of one step get an axis of time."""
    return inputs if several else jax.tree.map(lambda a: jnp.asarray(a)[None], inputs)


def without_time(outs: Any, several: bool) -> Any:
    """What a block gave; of one step it is without the axis of time."""
    return outs if several else first_of(outs)


def check_modulator(rule: Rule, modulator: Any, loss_fn: Any, any_batch: bool) -> None:
    """Refuse a modulator that the rule does not take, or that no gradient asks for, and a gradient
    without the one that it needs."""
    if loss_fn is None and modulator is not None:
        raise TypeError('`modulator` is for gradients: give `loss_fn` too.')
    if any_batch and modulator is not None:
        raise ValueError(
            '`modulator` cannot be exported for any number of samples: export it for one batch '
            'size, without `any_batch`.'
        )
    if loss_fn is not None:
        rule.check_modulator(modulator)


def step_of(learner: Any, loss_fn: Callable | None, several: bool, modulated: bool = False) -> Step:
    """A step of a learner of a plain function, or a block of several; `out` is what the model
    gives, or with a loss `(grads, loss)`. The last input may be a modulator."""
    count = len(learner.example[2])

    def step(plain: Plain, *inputs: Any) -> tuple[Plain, Any]:
        inputs = with_time(inputs, several)
        params, carry, more = plain
        xs = inputs[0] if count == 1 else inputs[:count]
        if loss_fn is None:
            out, carry = learner.evolve(params, carry, xs)
            return Plain(params, carry, more), without_time(out, several)
        end = len(inputs) - modulated
        given = {'modulator': inputs[end]} if modulated else {}
        (grads, loss), carry = learner.grad(loss_fn, params, carry, xs, *inputs[count:end], **given)
        return Plain(params, carry, more), (grads, without_time(loss, several))

    return step


def finish_of(loss_fn: Callable | None, update: Callable | None, with_more: bool) -> Finish:
    """What is done with the `out` of a step: nothing, or the update of the parameters."""
    if update is not None and loss_fn is None:
        raise TypeError('`update` needs gradients: give `loss_fn` too.')

    def finish(plain: Plain, out: Any) -> tuple[Plain, Any]:
        if loss_fn is None:
            return plain, out
        grads, loss = out
        params, carry, more = plain
        if update is None:
            return plain, (arrays_of({'param': grads}), loss)
        if with_more:
            params, more = update(params, grads, more)
        else:
            params = update(params, grads)
        return Plain(params, carry, more), loss

    return finish


def finish_of_samples(loss_fn: Callable | None, finish: Finish, axis: int) -> Finish:
    """As `finish`, of what was made for each sample (samples, ...): means of gradients and losses,
    or outputs with the samples at `axis` in the place of a batch axis of size one."""

    def one_axis(a: Any) -> Any:
        return jnp.moveaxis(jnp.squeeze(a, axis + 1), 0, axis)

    def finish_all(plain: Plain, outs: Any) -> tuple[Plain, Any]:
        if loss_fn is None:
            return finish(plain, jax.tree.map(one_axis, outs))
        return finish(plain, jax.tree.map(lambda a: a.mean(0), outs))

    return finish_all
