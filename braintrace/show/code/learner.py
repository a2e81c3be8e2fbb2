"""The learning rule of a model as a page of Python."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax import Var, is_float
from ...errors import NotSupportedError
from ...learn.core import Core
from ...learn.stateful import CompiledModel, Learning
from ...plan.keys import TraceKey
from .algebra import Algebra
from .control import Reader
from .letters import Letters, letter_of, letters_of
from .lines import WIDTH, indented, wrap
from .names import as_identifier, identifiers, names_in_source
from .python import check_backend, module
from .sections import Leaf, Page, Section
from .signatures import Signature, of_model
from .step import MOST_STATES, Given, Made, names_of_lines, of_outputs_alone, step_of
from .trees import Tree
from .views import View, is_given, spread, whole
from .words import Text, Words
from .write import Scope, count_uses

STEPS = 'steps'  # where the number of steps done is kept among the traces


def code_of(core: Core, signature: Signature, backend: str = 'jax', modulator: Any = None) -> str:
    """One source file for a model and a rule; `modulator` is an example of the one that a rule
    takes from outside, None for rules that take none."""
    words, core = Words(check_backend(backend)), of_outputs_alone(core)
    if any(isinstance(c, jax.core.Tracer) for c in core.program.step.captured):
        raise NotSupportedError(
            '`code`: the model closes over a value of a surrounding `jit` or `grad`. Call `code` '
            'outside of it.'
        )
    if signature.rule == 'dni':
        raise NotSupportedError(
            '`code`: the rule dni guesses credit with a function of yours that is no part of the '
            'model. Use d_rtrl, or run the learner itself.'
        )
    return Writer(core, signature, words, modulator).write()


def code_of_model(
    learning: Learning, compiled: CompiledModel, example: tuple | None, backend: str, modulator: Any
) -> str:
    """The same for a model that holds its states, from inputs like `example`."""
    rule, moving = learning.how.rule, learning.framework.surroundings().moving
    signature = of_model(
        learning.model, rule.name, compiled.traced, example or (), moving, check_backend(backend)
    )
    return code_of(compiled.core, signature, backend, modulator if rule.modulated else None)


class Writer:
    """Writes one page."""

    def __init__(self, core: Core, signature: Signature, words: Words, modulator: Any):
        self.core, self.signature, self.words = core, signature, words
        self.reader, self.page = Reader(Algebra()), Page(words)
        self._modulator = modulator
        step = core.program.step
        self._ids = identifiers([*step.params, *step.hidden, *step.other])
        if len(signature.order) == 1 and signature.state.leaves == (signature.state.root,):
            self._ids[-1] = signature.state_name
        self._ids[len(step.params) :] = self._called_in_source(self._ids[len(step.params) :])
        self._letter_of = dict(zip(step.params, self._ids, strict=False))
        self._graded = [k for k, v in enumerate(step.outs) if is_float(v)]

    def _called_in_source(self, ids: list[str]) -> list[str]:
        """The names of states; those that have only a number are called as in the model's lines,
        if these tell them apart."""
        step = self.core.program.step
        lines = names_in_source(step.jaxpr)
        outs = [*step.hidden_outs, *step.other_outs]
        in_source = [
            lines[v].name if name[1:].isdigit() and isinstance(v, Var) and v in lines else None
            for name, v in zip(ids, outs, strict=True)
        ]
        better = [new or old for new, old in zip(in_source, ids, strict=True)]
        taken = [*better, *self._ids[: len(step.params)]]
        return better if len(set(taken)) == len(taken) else ids

    def write(self) -> str:
        """The page."""
        given = self._given()
        made = step_of(self.core, self.reader, given, self._ids)
        letters = letters_of(self.core)
        self._call_by_name(given, made)
        read = count_uses([*made.grads, *made.traces.values(), *made.outs])
        counts_steps = given.steps.node in read
        sections = self._sections(made, letters, counts_steps)
        functions = self.page.write(sections, self._head(), self._credit_lines())
        return module(self.page.file, [self._init(counts_steps), *functions], self._docstring())

    # ---- what is given ----

    def _given(self) -> Given[View]:
        step, sig = self.core.program.step, self.signature
        n = len(step.params)
        params = self._leaves(sig.params, self._ids[:n], step.param_vars)
        reached = [sig.state.leaves[k] for k in sig.order]
        states = [*step.hidden_vars, *step.other_vars]
        state = self._leaves(sig.state, self._ids[n:], states, reached)
        traces = {key: self._trace(key, a) for key, a in self.core.shapes.items()}
        like = jax.ShapeDtypeStruct((), jnp.result_type(int))
        steps = self._leaf(STEPS, 'traces', f'traces[{STEPS!r}]', like)
        inputs: list[View] = []
        rest = iter(step.input_vars)
        for tree in (*sig.extra, *sig.inputs):
            names = [as_identifier(a) for a in tree.leaves]
            inputs += self._leaves(tree, names, [next(rest) for _ in tree.leaves])
        credit = []
        for k in self._graded:
            reached_out = 'd' + sig.out.leaves[k]
            aval = step.outs[k].aval
            credit.append(self._leaf(as_identifier(reached_out), 'dout', reached_out, aval))
        modulator = None
        if self._modulator is not None:
            m = jnp.asarray(self._modulator, jnp.result_type(float))
            modulator = self._leaf('modulator', 'modulator', 'modulator', m)
        hidden, other = state[: len(step.hidden)], state[len(step.hidden) :]
        return Given(params, hidden, other, traces, steps, inputs, credit, modulator)

    def _leaf(self, name: str, root: str, reached: str, like: Any) -> View:
        return self.page.leaf(self.reader.terms, name, root, reached, like.shape, like.dtype)

    def _leaves(
        self, tree: Tree, names: Sequence[str], variables: Sequence[Any], reached: Any = None
    ) -> list[View]:
        reached = tree.leaves if reached is None else reached
        triples = zip(names, reached, variables, strict=True)
        return [self._leaf(name, tree.root, text, v.aval) for name, text, v in triples]

    def _trace(self, key: TraceKey, like: Any) -> View:
        """A trace; that of a unit with few states is taken apart into one for each of them."""
        terms, reached = self.reader.terms, f'traces[{str(key)!r}]'
        wanted = self._trace_name(key)
        if key.group is None or not like.shape or like.shape[0] > MOST_STATES:
            return self._leaf(wanted, 'traces', reached, like)
        states, inner = like.shape[0], jax.ShapeDtypeStruct(like.shape[1:], like.dtype)
        if states == 1:
            one = self._leaf(wanted, 'traces', f'{reached}[0]', inner)
            return spread(one, 0, 1)
        names = tuple(self.page.names.new(f'{wanted}_{k}') for k in self._states(key, states))
        parts = [terms.name(name, inner.shape, inner.dtype) for name in names]
        for v, name in zip(parts, names, strict=True):
            self.page.enter(v.node, Leaf(name, 'traces', reached, names))
        return terms.stack(parts, 0)

    def _trace_name(self, key: TraceKey) -> str:
        letter = letter_of(self.core, key.kind) or as_identifier(key.kind)
        weight = '_'.join(self._letter_of.get(leaf, leaf.name) for leaf in key.weight)
        return f'{letter}_{as_identifier(weight)}' if weight else letter

    def _states(self, key: TraceKey, count: int) -> list[str]:
        """What the states of a unit are called."""
        layout, step = self.core.program.layout, self.core.program.step
        for g, units in layout.units.items():
            if layout.graph.groups[g].paths[0] == key.group and units.states == count:
                return [self._ids[len(step.params) + i] for i in units.leaves]
        return [str(k) for k in range(count)]

    # ---- names and sections ----

    def _call_by_name(self, given: Given[View], made: Made) -> None:
        """What values are called: by the user's lines first, then by the letters of the rule."""
        hints = self.page.hints
        n = len(self.core.program.step.params)
        new = [*made.hidden, *made.other]
        for v, name in zip(new, self._ids[n:], strict=True):
            if not is_given(v.node):
                hints.setdefault(v.node, f'new_{name}')
        for node, name in made.factors.items():
            hints.setdefault(node, name)
        own, other = names_of_lines(self.core, self.reader, given)
        for node, name in own.items():
            hints.setdefault(node, name)
        for node, name in made.hints.items():
            hints.setdefault(node, name)
        self.page.spare[made.steps.node] = 'new_steps'
        for key, v in made.traces.items():
            self.page.spare.setdefault(v.node, f'new_{self._trace_name(key)}')
        for node, name in other.items():
            self.page.spare.setdefault(node, name)

    def _sections(self, made: Made, letters: Letters, counts_steps: bool) -> list[Section]:
        sig = self.signature
        live = count_uses([*made.grads, *made.traces.values()])
        factors = [whole(node) for node in made.factors if node in live]
        gradient = Section(
            'gradient',
            letters.gradient if made.traces else letters.without,
            made.grads,
            lambda texts: [sig.params.build(texts)],
            ['grads'],
            _needed(sig.params),
        )
        return [
            self._step_section(made),
            Section('slopes', letters.factors, factors, lambda texts: [], []),
            *([self._update_section(made, letters, counts_steps)] if made.traces else []),
            gradient,
        ]

    def _step_section(self, made: Made) -> Section:
        sig = self.signature
        inverse = {place: k for k, place in enumerate(sig.order)}
        new = [*made.hidden, *made.other]
        state = [new[inverse[k]] for k in range(len(new))]

        def stepped(texts: list[str]) -> list[str]:
            m = len(state)
            return [sig.state.build(texts[:m]), sig.out.build(texts[m:], fields=False)]

        values, about = [*state, *made.outs], 'The step of the model.'
        return Section('step', about, values, stepped, ['new_state', 'out'], _needed(sig.state))

    def _update_section(self, made: Made, letters: Letters, counts_steps: bool) -> Section:
        names, values = [str(key) for key in made.traces], list(made.traces.values())
        if counts_steps:
            names, values = [*names, STEPS], [*values, made.steps]
        constants = [f'{name} = {self.words.number(n).text}' for name, n in made.constants]
        about = letters.update + (f' Here {", ".join(constants)}.' if constants else '')
        return Section('update', about, values, lambda texts: [_dict(names, texts)], ['new_traces'])

    # ---- the rest of the page ----

    def _head(self) -> str:
        sig = self.signature
        inputs = ''.join(f'{tree.root}, ' for tree in sig.inputs)
        more = ['loss', *[tree.root for tree in sig.extra]]
        more += ['modulator'] if self._modulator is not None else []
        return f'def learn(params, state, traces, {inputs}*, {", ".join(more)}):'

    def _credit_lines(self) -> list[str]:
        if self.words.is_numpy:
            return ['_, dout = loss(out)']
        every = len(self._graded) == len(self.core.program.step.outs)
        return [f'dout = jax.grad(loss{"" if every else ", allow_int=True"})(out)']

    def _init(self, counts_steps: bool) -> list[str]:
        terms, keys = self.reader.terms, list(self.core.shapes)
        avals = [v.aval for v in self.core.program.step.param_vars]
        params = [terms.name(f'params_{k}', a.shape, a.dtype) for k, a in enumerate(avals)]

        def first(params: list[Any]) -> list[Any]:
            traces = self.core.init(params)
            return [traces[key] for key in keys]

        outs = self.reader.apply(first, params)
        used = count_uses(outs)
        if not any(v.node in used for v in params):
            values = self.core.init(None)
            outs = [terms.array(np.asarray(values[key])) for key in keys]
        reached = zip(params, self.signature.params.leaves, strict=True)
        given = {v.node: Text(text) for v, text in reached}
        scope = Scope(self.page.file, count_uses(outs), {}, self.page.names.copy(), given)
        names, texts = [str(key) for key in keys], [scope.exact(v) for v in outs]
        if counts_steps:
            names, texts = [*names, STEPS], [*texts, '0']
        body = [*scope.lines, *wrap('return ', _dict(names, texts))]
        return ['# Zero traces.', 'def init(params, state):', *indented(body)]

    def _docstring(self) -> str:
        sig, step = self.signature, self.core.program.step
        n, state_keys = len(step.params), sig.state.keys
        of_state = self._ids[n:] if state_keys is None else [state_keys[k] for k in sig.order]
        told = {
            'params': (sig.params.keys or self._ids[:n], step.param_vars),
            'state': (of_state, [*step.hidden_vars, *step.other_vars]),
        }
        lines = [
            f'"""{sig.rule} for {sig.title}, one step at a time, as braintrace runs it.',
            '',
        ]
        if self.words.is_numpy:
            how = 'loss(out) gives the loss and its gradient by out.'
        else:
            how = 'loss(out) gives one number.'
        more = '' if self._modulator is None else ', modulator'
        lines += [
            f'learn(params, state, traces, *inputs, loss{more}) makes a step and returns',
            f'(state, traces, out, grads); {how}',
            '',
        ]
        for root, (names, variables) in told.items():
            shapes = [f'{name} {v.aval.shape}' for name, v in zip(names, variables, strict=True)]
            told_of = ', '.join(shape.replace(' ', '\xa0') for shape in shapes)
            lines += [a.replace('\xa0', ' ') for a in textwrap.wrap(f'{root}: {told_of}', WIDTH)]
        return '\n'.join([*lines, '"""'])


def _needed(tree: Tree) -> frozenset[str]:
    """The argument that is needed to build a tree like this one, if it is."""
    return frozenset([tree.root] if tree.needs_root else [])


def _dict(names: Sequence[str], texts: Sequence[str]) -> str:
    pairs = zip(names, texts, strict=True)
    return '{' + ', '.join(f'{name!r}: {text}' for name, text in pairs) + '}'
