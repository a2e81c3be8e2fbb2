"""Keys of traces."""

from braintrace.plan.keys import TraceKey, distinct
from braintrace.step import Leaf


def test_keys_that_read_alike_are_numbered_whatever_numbers_they_had():
    weight, other = (Leaf(('cell', 'W'), ('weight',)),), (Leaf(('out',)),)
    keys = distinct([TraceKey(weight, ('h',)), TraceKey(other), TraceKey(weight, ('h',))])
    assert [str(key) for key in keys] == ['cell.W.weight->h', 'out', 'cell.W.weight->h#1']
    again = distinct([keys[0], keys[0], keys[2]])
    assert [str(key) for key in again] == [f'cell.W.weight->h{n}' for n in ('', '#1', '#2')]


def test_a_key_tells_what_it_is_of():
    key = TraceKey((Leaf(('cell', 'W'), ('weight',)),), ('cell', 'h'))
    assert key.is_of(('cell', 'W')) and not key.is_of(('cell', 'W', 'weight'))
    assert str(key.of('kappa')) == 'kappa:cell.W.weight->cell.h' and key < key.of('kappa')
    assert str(TraceKey(kind='bound')) == 'bound' and str(TraceKey(group=())) == 'state'
