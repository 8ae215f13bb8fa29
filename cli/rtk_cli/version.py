"""`rtk version`: what exactly is running."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as metadata_version

import typer

DISTRIBUTION = "rtk-inference"
LIBRARIES = ("torch", "transformers")


def version_of(distribution: str) -> str:
    """The installed version, read from metadata: nothing is imported."""
    try:
        return metadata_version(distribution)
    except PackageNotFoundError:
        return "not installed"


def version() -> None:
    """Print the versions of rtk, Python, torch and transformers."""
    typer.echo(f"rtk {version_of(DISTRIBUTION)}")
    typer.echo(f"python {platform.python_version()}")
    for library in LIBRARIES:
        typer.echo(f"{library} {version_of(library)}")
