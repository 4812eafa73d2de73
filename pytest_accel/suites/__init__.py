"""The suites where only the wheel is installed: `pytest --pyargs pytest_accel.suites -m gh200`.

A wheel holds here what a checkout has in `bench_suites`; `conftest.py` gives both the same names.
"""
