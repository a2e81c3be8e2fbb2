"""What the compiler tells about gated cells, as marks: any other warning of ours fails the test."""

import pytest


def expected(message):
    return pytest.mark.filterwarnings(f'ignore:{message}')


# A gate of brainstate's cells also acts through a matrix, and that part has no trace.
GATE = expected(
    r'(\S*W(rz|f)\.weight\.\w+( and )?)+ also reach(es)? group \d .*only the direct, position-wise'
)
# The reset gate of our GRU acts through a matrix only.
RESET = expected(
    r'(\S*Wr\.weight\.\w+( and )?)+, used by .*, reach(es)? group \d only through another weight'
)
# What may be told of any program, where none of it is the point of the test.
LOST = expected(
    '.*(in-window gradient|mixes (its units|positions)|moves values between its units|'
    'is not a hidden state|`trace` is false for every parameter)'
)
# What stands in front of the weights of a cell.
IN_FRONT = expected(
    r'((embed|norm)\.weight\S*( and )?)+, used by .*, reach(es)? .* only through another weight'
)
