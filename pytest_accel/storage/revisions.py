"""Files as they stand in a git revision, read without a checkout: what a baseline was before it moved."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath

from pytest_accel.storage.reading import MAX_BYTES

TIMEOUT_S = 20.0  # reading objects takes milliseconds; a repository on storage that hangs must not hang us
_REGULAR = ("100644", "100755")  # no links, no submodules: they lead elsewhere


class RevisionError(ValueError):
    """Git, the revision or the path in it is not there; the message says which, and what to write."""


def read_tree(revision: str, path: str, folder: Path) -> dict[PurePosixPath, bytes]:
    """The JSON files at `path` in a revision, by their path below it; of a single file, that one by its name.

    `path` is as git reads it after the colon: from the top of the repository, or from `folder` if it begins
    with `./`.
    """
    if not revision or revision.startswith("-"):
        raise RevisionError(f"{revision!r} cannot be a revision. Write one such as HEAD~1, main or v1.2.")
    spoken = f"{revision}:{path}"
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise RevisionError(
            f"{spoken}: git knows no revision {revision!r} in {folder}. "
            "`git log --oneline` shows those it has; a shallow clone has few (git fetch --unshallow)."
        )
    found = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{_text(commit)}:{path}")
    if found is None:
        raise RevisionError(
            f"{spoken}: the revision has no {path!r}. `git ls-tree -r --name-only {revision}` lists it."
        )
    top = _text(found)
    if _text(_needed(folder, "cat-file", "-t", top)) == "blob":
        return {PurePosixPath(PurePosixPath(path).name): _blob(folder, top, spoken)}
    return {
        name: _blob(folder, key, f"{spoken.rstrip('/')}/{name}")
        for name, key in _listed(_needed(folder, "ls-tree", "-r", "-z", "--full-tree", top))
        if name.suffix == ".json"
    }


def _listed(listing: bytes) -> list[tuple[PurePosixPath, str]]:
    found = []
    for line in filter(None, listing.split(b"\0")):
        facts, _, name = line.partition(b"\t")
        mode, kind, key = facts.decode("ascii").split()
        if kind == "blob" and mode in _REGULAR:
            found.append((PurePosixPath(os.fsdecode(name)), key))
    return found


def _blob(folder: Path, key: str, spoken: str) -> bytes:
    size = int(_needed(folder, "cat-file", "-s", key))
    if size > MAX_BYTES:
        raise RevisionError(
            f"{spoken}: {size} bytes; a file of baselines has at most {MAX_BYTES}. Name another path."
        )
    return _needed(folder, "cat-file", "blob", key)


def _needed(folder: Path, *arguments: str) -> bytes:
    found = _git(folder, *arguments)
    if found is None:
        raise RevisionError(
            f"git {' '.join(arguments)} failed in {folder}. Is the repository whole (git fsck)?"
        )
    return found


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it says no. Only object names and what follows --end-of-options vary."""
    # No prompt, no lock, and no fetching of what a partial clone left out.
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603 - no shell; see above for what varies
            ["git", *arguments],  # noqa: S607 - the user's own git, as everywhere
            cwd=folder,
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        if not folder.is_dir():
            raise RevisionError(f"{folder} is no folder. Run this where the repository is.") from None
        raise RevisionError(
            "There is no git on this machine, which baselines of a revision are read with. "
            "Install it, or name a folder of baselines."
        ) from None
    except subprocess.TimeoutExpired:
        raise RevisionError(
            f"git {arguments[0]} gave no answer within {TIMEOUT_S:g} s in {folder}. Is its storage there? Try again."
        ) from None
    except ValueError as error:  # a NUL in what the user wrote
        raise RevisionError(f"{' '.join(arguments)!r} is nothing that git can be asked: {error}.") from None
    if done.returncode == 0:
        return done.stdout
    complaint = _text(done.stderr)
    if "not a git repository" in complaint:
        raise RevisionError(
            f"{folder} is in no git repository. Run this inside one, or name a folder of baselines."
        )
    if "dubious ownership" in complaint or "safe.directory" in complaint:
        raise RevisionError(
            f"git refuses to read {folder}: {complaint.splitlines()[0]}. Add it to safe.directory."
        )
    return None
