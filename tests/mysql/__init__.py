"""Tests of the mysql source."""

import pytest

pytest.register_assert_rewrite("tests.mysql.following")  # its failures say what differs
