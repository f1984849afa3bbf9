"""The shell that the tests of commands use."""

import pytest
from cli_kit import Shell


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)
