"""A host's files as a folder of texts: recorded trees are replayed, and spoilt one file at a time."""

import pytest

from pytest_accel.platforms.host import HostFiles


@pytest.fixture
def tree(tmp_path):
    """HostFiles below a root from a dict of paths and texts; a folder is a path that ends with a slash."""

    def build(files: dict[str, str]) -> HostFiles:
        for name, text in files.items():
            path = tmp_path / "host" / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        return HostFiles(root=tmp_path / "host")

    return build


@pytest.fixture
def by_subject():
    """Findings by subject, of which there must be one each."""

    def index(findings):
        found = {finding.subject: finding for finding in findings}
        assert len(found) == len(findings), [finding.subject for finding in findings]
        return found

    return index
