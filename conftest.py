"""The root conftest: what the tests of the plugin and the suites share."""

pytest_plugins = ["pytester"]
