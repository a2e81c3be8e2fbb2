"""Operations that are calls of one function of JAX: convolution, windows, sorting, random
numbers. What each is as a term, then as text."""

from __future__ import annotations

from typing import Any

from ...errors import NotSupportedError
from .algebra import Algebra
from .compose import Operands, composed
from .lines import tuple_of
from .primitives import rule, several, single
from .views import Node, View
from .words import Text, Words, call

WINDOWS = ('reduce_window_sum', 'reduce_window_max', 'reduce_window_min')


@rule('conv_general_dilated')
def _conv_term(t: Algebra, eqn: Any, x: View, w: View) -> View:
    names = (
        'window_strides padding lhs_dilation rhs_dilation dimension_numbers feature_group_count '
        'batch_group_count'
    ).split()
    return single(t, 'conv', [x, w], tuple(eqn.params[name] for name in names), eqn)


@rule(*WINDOWS)
def _reduce_window_term(t: Algebra, eqn: Any, a: View) -> View:
    names = 'window_dimensions window_strides padding base_dilation window_dilation'.split()
    info = tuple(tuple(eqn.params[name]) for name in names)
    return single(t, eqn.primitive.name, [a], info, eqn)


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


@rule('random_bits', 'random_split')
def _random_of_shape_term(t: Algebra, eqn: Any, key: View) -> View:
    return single(t, eqn.primitive.name, [key], tuple(eqn.params['shape']), eqn)


@rule('random_wrap', 'random_seed')
def _random_wrap_term(t: Algebra, eqn: Any, a: View) -> View:
    return single(t, eqn.primitive.name, [a], eqn.params['impl'].name, eqn)


@rule('random_unwrap', 'random_fold_in')
def _random_other_term(t: Algebra, eqn: Any, *views: View) -> View:
    return single(t, eqn.primitive.name, views, None, eqn)


# ---- as text ----


@composed('conv')
def _conv(words: Words, node: Node, o: Operands) -> Text:
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
    return words.call_jax('conv_general_dilated', 'lax.conv_general_dilated', *given)


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


@composed(*WINDOWS)
def _reduce_window(words: Words, node: Node, o: Operands) -> Text:
    size, strides, padding, base, dilation = node.info
    kind = node.op.removeprefix('reduce_window_')
    start = {'sum': '0', 'max': '-jnp.inf', 'min': 'jnp.inf'}[kind]
    f = {'sum': 'jax.lax.add', 'max': 'jax.lax.max', 'min': 'jax.lax.min'}[kind]
    typed = f'jnp.{node.dtype.name}({start})'
    given = [o.exact(node.args[0]).text, typed, f, str(size), str(strides), str(padding)]
    if any(n != 1 for n in (*base, *dilation)):
        given += [str(base), str(dilation)]
    return words.call_jax('reduce_window', 'lax.reduce_window', *given)


@composed('sort')
def _sort(words: Words, node: Node, o: Operands) -> Text:
    (axis, stable, keys), _ = node.info
    texts = [o.exact(v).text for v in node.args]
    if len(texts) == 1:
        return Text(f'({call(f"{words.np}.sort", texts[0], str(axis)).text},)')
    how = f'dimension={axis}', f'is_stable={stable}', f'num_keys={keys}'
    return words.call_jax('sort', 'lax.sort', tuple_of(texts), *how)


@composed('top_k')
def _top_k(words: Words, node: Node, o: Operands) -> Text:
    (k,), _ = node.info
    return words.call_jax('top_k', 'lax.top_k', o.exact(node.args[0]).text, str(k))


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
    texts = o.exact(node.args[0]).text, str(node.info), words.dtype(node.dtype)
    return words.call_jax(node.op, 'random.bits', *texts)


@composed('random_split')
def _random_split(words: Words, node: Node, o: Operands) -> Text:
    return words.call_jax(node.op, 'random.split', o.exact(node.args[0]).text, str(node.info))


@composed('random_wrap', 'random_seed')
def _random_key(words: Words, node: Node, o: Operands) -> Text:
    function = {'random_wrap': 'random.wrap_key_data', 'random_seed': 'random.key'}[node.op]
    return words.call_jax(node.op, function, o.exact(node.args[0]).text, f'impl={node.info!r}')


@composed('random_unwrap', 'random_fold_in')
def _random_other(words: Words, node: Node, o: Operands) -> Text:
    function = {'random_unwrap': 'random.key_data', 'random_fold_in': 'random.fold_in'}[node.op]
    return words.call_jax(node.op, function, *[o.exact(v).text for v in node.args])
