"""`python -m pytest_accel`: the program `pytest-accel`."""

import sys

from pytest_accel.cli import main

sys.exit(main())
