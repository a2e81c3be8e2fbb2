"""Operations that are calls of one function of JAX: convolution, windows, sorting, random
numbers. What each is as a term, then as text."""

from __future__ import annotations

from typing import Any

from ...errors import NotSupportedError
from .algebra import Algebra
from .compose import Operands, composed
from .primitives import rule, several
from .terms import Node, View
from .words import Text, Words, call


@rule('conv_general_dilated')
def _conv_term(t: Algebra, eqn: Any, x: View, w: View) -> View:
    p, out = eqn.params, eqn.outvars[0].aval
    names = (
        'window_strides padding lhs_dilation rhs_dilation dimension_numbers feature_group_count '
        'batch_group_count'
    ).split()
    info = tuple(p[name] for name in names)
    return t.op('conv', [x, w], info, out.shape, out.dtype)


@rule('reduce_window_sum', 'reduce_window_max', 'reduce_window_min')
def _reduce_window_term(t: Algebra, eqn: Any, a: View) -> View:
    p, out = eqn.params, eqn.outvars[0].aval
    names = 'window_dimensions window_strides padding base_dilation window_dilation'.split()
    info = tuple(tuple(p[name]) for name in names)
    return t.op(eqn.primitive.name, [a], info, out.shape, out.dtype)


@rule('sort')
def _sort_term(t: Algebra, eqn: Any, *views: View) -> list[View]:
    p = eqn.params
    return several(t, 'sort', views, (p['dimension'], p['is_stable'], p['num_keys']), eqn)


@rule('top_k')
def _top_k_term(t: Algebra, eqn: Any, a: View) -> list[View]:
    return several(t, 'top_k', [a], (eqn.params['k'],), eqn)


@rule('eigh')
def _eigh_term(t: Algebra, eqn: Any, a: View) -> list[View]:
    if eqn.params['subset_by_index'] is not None:
        raise NotSupportedError('`code` cannot write `eigh` of a part of the eigenvalues.')
    values_first = eqn.outvars[0].aval.ndim < eqn.outvars[1].aval.ndim  # versions differ
    return several(t, 'eigh', [a], None, eqn, (0, 1) if values_first else (1, 0))


@rule('svd')
def _svd_term(t: Algebra, eqn: Any, a: View) -> list[View]:
    p = eqn.params
    if p['subset_by_index'] is not None:
        raise NotSupportedError('`code` cannot write `svd` of a part of the singular values.')
    values_first = eqn.outvars[0].aval.ndim < len(a.shape)  # versions differ
    order = (1, 0, 2) if p['compute_uv'] and values_first else None
    return several(t, 'svd', [a], (p['compute_uv'], p['full_matrices']), eqn, order)


@rule('random_bits')
def _random_bits_term(t: Algebra, eqn: Any, key: View) -> View:
    out = eqn.outvars[0].aval
    return t.op('random_bits', [key], tuple(eqn.params['shape']), out.shape, out.dtype)


@rule('random_split')
def _random_split_term(t: Algebra, eqn: Any, key: View) -> View:
    out = eqn.outvars[0].aval
    return t.op('random_split', [key], tuple(eqn.params['shape']), out.shape, out.dtype)


@rule('random_wrap', 'random_seed')
def _random_wrap_term(t: Algebra, eqn: Any, a: View) -> View:
    out = eqn.outvars[0].aval
    return t.op(eqn.primitive.name, [a], eqn.params['impl'].name, out.shape, out.dtype)


@rule('random_unwrap', 'random_fold_in')
def _random_other_term(t: Algebra, eqn: Any, *views: View) -> View:
    out = eqn.outvars[0].aval
    return t.op(eqn.primitive.name, views, None, out.shape, out.dtype)


# ---- as text ----


@composed('conv')
def _conv(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('conv_general_dilated')
    strides, padding, lhs, rhs, numbers, features, batches = node.info
    x, w = (o.exact(v).text for v in node.args)
    given = [x, w, str(tuple(strides)), str([tuple(map(int, p)) for p in padding])]
    for name, value in (('lhs_dilation', lhs), ('rhs_dilation', rhs)):
        if any(n != 1 for n in value):
            given.append(f'{name}={tuple(value)}')
    layout = _layout(numbers)
    if layout is not None:
        given.append(f'dimension_numbers={layout}')
    for name, count in (('feature_group_count', features), ('batch_group_count', batches)):
        if count != 1:
            given.append(f'{name}={count}')
    return call('jax.lax.conv_general_dilated', *given)


def _layout(numbers: Any) -> tuple[str, ...] | None:
    """The axes of a convolution by letters; None for the usual ones."""
    space = 'DHW'[-(len(numbers.lhs_spec) - 2) :] if len(numbers.lhs_spec) > 2 else ''
    words = []
    for spec, two in zip(numbers, ('NC', 'OI', 'NC'), strict=True):
        letters = [''] * len(spec)
        for c, place in zip(two + space, spec, strict=True):
            letters[place] = c
        words.append(''.join(letters))
    usual = f'NC{space}', f'OI{space}', f'NC{space}'
    return None if tuple(words) == usual else tuple(words)


@composed('sort')
def _sort(words: Words, node: Node, o: Operands) -> Text:
    (axis, stable, keys), _ = node.info
    texts = [o.exact(v).text for v in node.args]
    if len(texts) == 1:
        return Text(f'({call(f"{words.np}.sort", texts[0], str(axis)).text},)')
    words.only_jax('sort')
    how = f'dimension={axis}', f'is_stable={stable}', f'num_keys={keys}'
    return call('jax.lax.sort', f'({", ".join(texts)})', *how)


@composed('top_k')
def _top_k(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('top_k')
    (k,), _ = node.info
    return call('jax.lax.top_k', o.exact(node.args[0]).text, str(k))


@composed('eigh')
def _eigh(words: Words, node: Node, o: Operands) -> Text:
    return call(f'{words.np}.linalg.eigh', o.exact(node.args[0]).text)


@composed('svd')
def _svd(words: Words, node: Node, o: Operands) -> Text:
    (vectors, full), _ = node.info
    given = o.exact(node.args[0]).text
    if not vectors:
        return Text(f'({call(f"{words.np}.linalg.svd", given, "compute_uv=False").text},)')
    return call(f'{words.np}.linalg.svd', given, f'full_matrices={full}')


@composed('random_bits')
def _random_bits(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('random_bits')
    return call(
        'jax.random.bits', o.exact(node.args[0]).text, str(node.info), words.dtype(node.dtype)
    )


@composed('random_split')
def _random_split(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('random_split')
    return call('jax.random.split', o.exact(node.args[0]).text, str(node.info))


@composed('random_wrap')
def _random_wrap(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('random_wrap')
    return call('jax.random.wrap_key_data', o.exact(node.args[0]).text, f'impl={node.info!r}')


@composed('random_seed')
def _random_seed(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('random_seed')
    return call('jax.random.key', o.exact(node.args[0]).text, f'impl={node.info!r}')


@composed('random_unwrap')
def _random_unwrap(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('random_unwrap')
    return call('jax.random.key_data', o.exact(node.args[0]).text)


@composed('random_fold_in')
def _random_fold_in(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('random_fold_in')
    return call('jax.random.fold_in', *[o.exact(v).text for v in node.args])
