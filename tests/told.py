"""What the compiler tells about ordinary models, as filters for `pytest.mark.filterwarnings`: any
other warning of ours fails the test."""

GATE = 'ignore:.*only the direct, position-wise part'  # a GRU's gate also acts through a matrix
IN_WINDOW = 'ignore:.*in-window gradient'  # a weight without a trace, as a GRU's reset gate
