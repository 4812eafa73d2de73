"""Where the sets of a comparison come from, and what is said of a name that leads nowhere."""

import json
import shutil
from pathlib import Path

import pytest

from pytest_accel.stats.results import Ending
from pytest_accel.storage.baselines import BaselineError
from pytest_accel.storage.comparison import find_source, read_sources
from pytest_accel.storage.files import StorageError
from tests.support.stored import KEY, OTHER, baseline, result, results_file

PUBLISHED = Path(__file__).parents[3] / "baselines" / "published"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with baselines of two platforms, which is where we are."""
    monkeypatch.chdir(tmp_path)
    baseline(tmp_path / "baselines")
    baseline(tmp_path / "baselines", OTHER, platform="a100x4", suite="gpt")
    shutil.copytree(PUBLISHED, tmp_path / "baselines" / "published")
    return tmp_path


def labels(names, folder="baselines"):
    return [(side.label, side.platform) for side in read_sources(names, Path(folder))]


@pytest.mark.usefixtures("project")
class TestPlatformsAndFolders:
    def test_a_platform(self):
        (side,) = find_source("h200", Path("baselines"))
        assert (side.platform, list(side.results)) == ("h200", [KEY])
        assert len(side.results[KEY].runs) == 5

    def test_a_folder_of_one_platform_whatever_it_is_called(self):
        shutil.copytree("baselines/h200", "older")
        assert labels(["older"]) == [("h200", "h200")]
        assert labels(["h200", "older"]) == [("h200", "h200"), ("older", "h200")]

    def test_a_root_has_all_its_platforms(self):
        assert labels(["./baselines"]) == [("a100x4", "a100x4"), ("h200", "h200")]

    def test_the_same_twice_is_refused(self):
        with pytest.raises(ValueError, match="'h200' is named twice"):
            read_sources(["h200", "h200"], Path("baselines"))

    def test_a_bad_file_is_the_stores_own_error(self):
        Path("baselines/h200/cnn.json").write_text("{")
        with pytest.raises(BaselineError, match=r"cnn.json: line 1"):
            find_source("h200", Path("baselines"))


@pytest.mark.usefixtures("project")
class TestNames:
    def test_nothing_of_that_name_says_what_there_is(self):
        with pytest.raises(ValueError, match="is nothing to compare") as caught:
            find_source("h20", Path("baselines"))
        assert "Did you mean 'h200'?" in str(caught.value)
        assert "Platforms in baselines: a100x4, h200." in str(caught.value)

    def test_a_platform_goes_before_a_folder_of_its_name_which_a_dot_names(self):
        Path("h200").mkdir()
        baseline(Path("h200"), OTHER, platform="h200")
        assert list(find_source("h200", Path("baselines"))[0].results) == [KEY]
        assert list(find_source("./h200", Path("baselines"))[0].results) == [OTHER]


class TestResults:
    def test_what_was_measured(self, project):
        path = results_file(project / "r.json", result(), result(OTHER, measured=(), status=Ending.SKIPPED))
        (side,) = find_source(str(path), Path("baselines"))
        assert [key for key, each in side.results.items() if each.runs] == [KEY]
        assert side.results[OTHER].status is Ending.SKIPPED, "a comparison must not pass over it"
        assert side.about.startswith("1 benchmark, results of session fresh")

    def test_some_other_json(self, project):
        (project / "x.json").write_text(json.dumps({"a": 1}))
        with pytest.raises(StorageError, match="no file of results"):
            find_source("./x.json", Path("baselines"))
