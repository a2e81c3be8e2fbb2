"""Learn a stream that never repeats, online, with four rules: the Add task.

The code is in `braintrace/tools/`, `add_task.py` and `demo.py`; `braintrace demo` runs the same.
"""

from braintrace.tools.demo import demo

if __name__ == '__main__':
    demo()
