"""Learners inside `jax.shard_map`, which by default checks where on a mesh values vary, and on
meshes with explicit axes, where the type of a value says how it lies.

Inside `jax.shard_map` samples are taken to be cut along the axes of the mesh on which states and
inputs vary and parameters do not. Where parameters vary too, every device has a model of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, auto_axes

from .._jax import PER_DEVICE, explicit_mesh, mesh_axes, varying_axes
from ..engine.split import TOGETHER, Split

Marks = Callable[[Any], Any]  # for what a function gives, a tree of what is the same on all devices


def split_of(params: Any, values: Any) -> Split:
    """How the samples of states and inputs are cut, beside these parameters."""
    cut = varying_axes(values) - varying_axes(params)
    if not cut:
        return TOGETHER
    axes = tuple(axis for axis in mesh_axes(values) if axis in cut)
    return Split(axes, jax.lax.axis_size(axes), jax.lax.axis_index(axes))


def _said_to_vary(a: Any, axes: frozenset) -> Any:
    missing = tuple(sorted(axes - varying_axes(a)))
    return jax.lax.pcast(a, missing, to='varying') if missing else a


def per_device(f: Callable, args: tuple, split: Split, same: Marks) -> Any:
    """`f(*args)`. Inside `jax.shard_map` that checks on which axes values vary, the results vary
    wherever some argument does, but for those that are the `same` wherever samples are cut; and `f`
    itself is not checked: it need not say for each value that it makes where that varies."""
    axes = varying_axes(args)
    if not axes:
        return f(*args)
    structure: dict[str, Any] = {}
    given, structure['in'] = jax.tree.flatten(args)
    leaves = [_said_to_vary(jnp.asarray(a), axes) for a in given]

    def flat(*leaves: Any) -> list[Any]:
        made = f(*structure['in'].unflatten(leaves))
        structure['same'] = jax.tree.leaves(same(made))
        outs, structure['out'] = jax.tree.flatten(made)
        return outs

    program = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves])
    varies = tuple(axes - set(split.axes) if mark else axes for mark in structure['same'])
    made = PER_DEVICE.bind(*leaves, program=program, varies=varies)
    return structure['out'].unflatten(made)


def on_any_mesh(
    f: Callable, args: tuple, outs_like: Any, inputs: Any, split: Split, same: Marks
) -> Any:
    """`per_device(f, args, split, same)`. On a mesh with explicit axes `f` need not say how each
    value that it makes lies: inside of it the axes are automatic.

    Args:
        f: the function.
        args: its arguments.
        outs_like: a tree like what `f` gives: arguments that the results lie like, or None for
            those that follow the samples.
        inputs: sequences, with steps and samples as first axes.
        split: how the samples are cut.
        same: what of the results is the same wherever they are.
    """
    mesh = explicit_mesh(args)
    if mesh is None:
        return per_device(f, args, split, same)
    shapes = jax.tree.map(_plain_shape, args)
    made = jax.eval_shape(f, *shapes)
    first = jax.tree.leaves(inputs)[0]
    over = [*jax.typeof(first).sharding.spec, None, None]

    def place(like: Any, out: Any) -> Any:
        if like is not None:
            return NamedSharding(mesh, jax.typeof(jnp.asarray(like)).sharding.spec)
        return jax.tree.map(by_sample, out)

    def by_sample(out: Any) -> NamedSharding:
        counts = out.ndim > 1 and jnp.ndim(first) > 1 and out.shape[1] == first.shape[1]
        return NamedSharding(mesh, PartitionSpec(None, over[1]) if counts else PartitionSpec())

    wanted = jax.tree.map(place, outs_like, made, is_leaf=lambda like: like is None)
    return auto_axes(f, axes=mesh.explicit_axes, out_sharding=wanted)(*args)


def _plain_shape(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        jnp.shape(a), a.dtype if hasattr(a, 'dtype') else jnp.result_type(a)
    )
