"""Datasets of the operator: checked by the host, opened again by the cell that shows them, never through a symlink."""

from __future__ import annotations

import os
import stat

from kooi.contract.errors import InvalidPolicy
from kooi.contract.policy import Dataset
from kooi.linux import paths


def check(datasets: tuple[Dataset, ...], own_ids: bool) -> None:
    """Raise `InvalidPolicy` for a source that is not there, a symlink, no file or folder, or unreadable inside.

    `own_ids` says whether the code has ids of its own, so that only what everybody may read can be read.
    """
    for dataset in datasets:
        key = f"policy.datasets.{dataset.name}"
        mode = _mode(dataset.source, key)
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise InvalidPolicy(
                f"{dataset.source} is neither a file nor a folder", key=key, fix="name a file or folder"
            )
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
        if own_ids and mode & needed != needed:
            said = f"{dataset.source} cannot be read by the code, which runs with ids of its own"
            raise InvalidPolicy(said, key=key, fix=f"chmod o+r{'x' if stat.S_ISDIR(mode) else ''} {dataset.source}")


def _mode(source: str, key: str) -> int:
    try:
        fd = paths.open_absolute_no_symlinks(source)
    except InvalidPolicy as error:
        raise InvalidPolicy(error.message, key=key, fix=error.fix) from error
    try:
        return os.fstat(fd).st_mode
    finally:
        os.close(fd)
