"""What this machine can do at most, and so the least time that a program takes.

A program multiplies matrices no faster than one large product runs, moves what it must read and
write no faster than a copy, and is called no faster than an empty compiled function.
"""

import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

SIDE, COPIED = 1536, 1 << 26  # of a square matrix; bytes of an array that no cache holds
TURNS = 8


class Machine(NamedTuple):
    """Seconds of a Gflop, of a GB that is read or written, and of an empty call."""

    gflop: float
    gigabyte: float
    call: float


class Work(NamedTuple):
    """What a program has to do: products and additions in matrix products, and bytes that are read
    or written at least."""

    flops: float
    bytes: float

    def least(self, machine):
        """Its milliseconds on a machine at best, and what bounds them."""
        bounds = {
            'arithmetic': self.flops / 1e9 * machine.gflop,
            'memory': self.bytes / 1e9 * machine.gigabyte,
            'the call': machine.call,
        }
        name = max(bounds, key=bounds.__getitem__)
        return bounds[name] * 1e3, name


def measure():
    """This machine."""
    many, (product, gflop) = jnp.ones(COPIED // 4), large_product()
    copy = _seconds(jax.jit(_turned_over), many) / TURNS
    call = _seconds(jax.jit(jnp.negative), jnp.float32(1))
    return Machine(_seconds(product) / gflop, copy / (2 * COPIED / 1e9), call)


def large_product():
    """A product of large matrices as a function of nothing, and its Gflop."""
    square, product = jnp.ones((SIDE, SIDE)), jax.jit(jnp.matmul)
    return lambda: product(square, square), 2 * SIDE**3 / 1e9


def _turned_over(a):
    """Read and written some times, in place: new memory would cost more."""
    return jax.lax.fori_loop(0, TURNS, lambda _, a: -a, a)


def _seconds(f, *args):
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(f(*args))
        times.append(time.perf_counter() - start)
    return min(times[1:])


def work_of(jaxpr, kept=0):
    """The work of a closed jaxpr: the products that its results need, and its arguments and
    results once. `kept` are bytes that it reads and writes besides, such as traces that each block
    renews."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.jaxpr.invars]
    jaxpr = jax.make_jaxpr(jaxpr_as_fun(jaxpr))(*shapes)  # with names for all arguments
    alive, _ = dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))
    ends = [*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars]
    moved = sum(v.aval.size * v.aval.dtype.itemsize for v in ends if hasattr(v.aval, 'dtype'))
    moved += sum(np.size(c) * np.asarray(c).itemsize for c in jaxpr.consts)
    return Work(products(alive), moved + kept)


def products(jaxpr):
    """Multiplications and additions in the matrix products of a jaxpr; a branch counts as the
    largest, a loop of unknown length as one turn."""
    return sum(map(_products_of, jaxpr.eqns))


def _products_of(eqn):
    if eqn.primitive.name == 'dot_general':
        (contracted, _), _ = eqn.params['dimension_numbers']
        summed = np.prod([eqn.invars[0].aval.shape[a] for a in contracted])
        return 2 * int(summed) * eqn.outvars[0].aval.size
    if eqn.primitive.name.startswith('einsum'):  # one of ours
        of_operands = eqn.params['labels'].split('->')[0].replace(',', '')
        lengths = [n for a in eqn.invars for n in a.aval.shape]
        return 2 * int(np.prod([*dict(zip(of_operands, lengths, strict=True)).values()]))
    if hasattr(eqn.primitive, 'f'):  # one of ours that is made of others
        made_of = jax.make_jaxpr(partial(eqn.primitive.f, **eqn.params))
        return products(made_of(*[a.aval for a in eqn.invars]).jaxpr)
    if eqn.primitive.name == 'cond':
        return max(products(branch.jaxpr) for branch in eqn.params['branches'])
    inside = [getattr(j, 'jaxpr', j) for j in eqn.params.values()]
    turns = eqn.params['length'] if eqn.primitive.name == 'scan' else 1
    return turns * sum(products(j) for j in inside if hasattr(j, 'eqns'))
