"""`--api-key` on the command line, where nothing shows it."""

import pytest
from typer.testing import CliRunner

from rtk_cli.main import app


@pytest.mark.parametrize(
    ("args", "value"),
    [
        (["--api-key", "s3cret"], "**********"),
        (["--api-key", "s3cret", "--api-key", "s3cret-2"], '["**********", "**********"]'),
        (["--api-key", '{"acme": "s3cret"}'], '{"acme": "**********"}'),
        ([], "null"),
    ],
)
def test_it_may_be_given_several_times(args: list[str], value: str) -> None:
    result = CliRunner().invoke(app, ["config", "show", *args])
    assert f"serve.api_keys = {value}" in result.output.splitlines()
    assert "s3cret" not in result.output


def test_a_mapping_is_given_alone() -> None:
    result = CliRunner().invoke(app, ["config", "show", "--api-key", '{"a":"s3cret"}', "--api-key", '{"b":"s3cret2"}'])
    assert result.exit_code == 1
    assert "s3cret" not in result.output + str(result.exception)
