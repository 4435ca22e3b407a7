"""Two profiles in a file as AWS's libraries read it: of a role that Amazon MSK would let in, and of another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.kerberos import changed_environment

ACCESS_KEY, REGION = "AKIALOADER", "eu-west-1"
LOADER, STRANGER = "loader", "stranger"


@contextlib.contextmanager
def aws_profiles(directory: Path) -> Iterator[None]:
    """This process, and what it starts now, finds the profiles."""
    file = directory / "aws-credentials"
    profiles = {LOADER: ACCESS_KEY, STRANGER: "AKIASTRANGER"}
    file.write_text(
        "".join(
            f"[{name}]\naws_access_key_id={key}\naws_secret_access_key=a-s3cret\n" for name, key in profiles.items()
        )
    )
    with changed_environment({"AWS_SHARED_CREDENTIALS_FILE": str(file)}):
        yield
