"""The comparison of rules."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import people_models
import pytest

import braintrace
from braintrace.rules.registry import BY_NAME


def test_compare_a_function(tmp_path, monkeypatch):
    known = {name: BY_NAME[name] for name in ('bptt', 'rtrl', 'd_rtrl', 'pp_prop')}
    monkeypatch.setattr('braintrace.tools.comparison.BY_NAME', known)
    done = []
    found = braintrace.compare(
        *people_models.plain(), length=12, windows=(1, 4), repeats=1, on_row=done.append
    )
    assert [r.rule for r in done] == list(known), 'each row comes when it is done'
    assert [r.error[1] for r in found.rows] == sorted(r.error[1] for r in done), 'ranked'
    assert found.rows[0].rule == 'rtrl' and found['rtrl'].exact == 'yes'
    assert (
        'of' in found['d_rtrl'].exact and f'exact {found["d_rtrl"].exact}' in found['d_rtrl'].line()
    )
    for w in (1, 4):
        assert abs(found['rtrl'].cosine[w] - 1) < 1e-6 and found['rtrl'].error[w] < 1e-5
        assert (
            found['rtrl'].error[w] < found['d_rtrl'].error[w]
            and found['rtrl'].error[w] < found['bptt'].error[w]
        )
    assert found['bptt'].error[4] < found['bptt'].error[1] and found['bptt'].trace_bytes == 0
    assert found['pp_prop'].seconds[1] > 0 and not found['pp_prop'].note
    assert all(r.rule in found.table() for r in found.rows)
    found.plot(tmp_path / 'rules.png')
    assert (tmp_path / 'rules.png').stat().st_size > 1000


def test_compare_a_module():
    net, inputs = people_models.gru()
    brainstate.nn.init_all_states(net, batch_size=2)
    net.rnn.h.value = start = jnp.full((2, 4), 0.3)
    rules = {
        'half': ('pp_prop', {'decay_or_rank': 0.5}),
        'd_rtrl': ('d_rtrl', {}),
        'rtrl': ('rtrl', {}),
        'wrong': ('d_rtrl', {'no_such': 1}),
    }
    found = braintrace.compare(net, *inputs, rules=rules, length=9, windows=(1,), repeats=1)
    assert abs(found['rtrl'].cosine[1] - 1) < 1e-6 and found['half'].cosine[1] < 0.9999
    assert 'no_such' in found['wrong'].note and 'no_such' in found.table()
    assert net.rnn.h.value is start, 'the model is left as it was'
    small = braintrace.compare(net, *inputs, rules=['rtrl'], length=5, windows=(1,), limit=100)
    assert 'traces would take' in small['rtrl'].note
    for limit in '10 MBit', -1, None:
        with pytest.raises(ValueError, match='`limit` must be a number of bytes'):
            braintrace.compare(net, *inputs, rules=['rtrl'], limit=limit)


def test_compare_with_data():
    step, params, state, x = people_models.plain()
    xs, ys = np.random.RandomState(0).randn(7, 2, 3), np.zeros((7, 2), int)

    def nll(out, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], 1).mean()

    def of(*names):
        return braintrace.compare(
            step,
            params,
            state,
            x,
            rules=['bptt'],
            loss=nll,
            sequences=(xs, ys),
            windows=(1,),
            repeats=1,
            only=lambda path: path[0] in names,
        )['bptt'].error[1]

    assert of('look') < 1e-6 < of('W', 'R'), 'a read-out is exact with any rule'
    with pytest.raises(ValueError, match='no parameter'):
        of('none')
    with pytest.raises(ValueError, match='gradient is zero'):
        braintrace.compare(step, params, state, x, loss=lambda out: 0 * out.sum(), rules=['bptt'])
    with pytest.raises(ValueError, match='at least 1 sequences'):
        braintrace.compare(step, params, state, x, sequences=())
    with pytest.raises(ValueError, match='windows'):
        braintrace.compare(step, params, state, x, windows=(0,))
