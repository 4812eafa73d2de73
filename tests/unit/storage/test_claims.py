"""The published files as they are: every figure is well formed, every claim computed again."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

from pytest_accel.platforms.catalogue import load_catalogue
from pytest_accel.stats.quantities import si
from pytest_accel.storage.references import linked_figures, read_published
from tests.support.claims import Claim, claim_follows, claims_of, computed_claim

ROOT = Path(__file__).parents[3]
SOURCES = {source.source.key: source for source in read_published(ROOT / "baselines" / "published")}
FIGURES = {figure.id: figure for source in SOURCES.values() for figure in source.figures}
VALUES = {name: figure.value for name, figure in FIGURES.items()}
CLAIMS = [claim for source in SOURCES.values() for claim in claims_of(source)]
PAGE = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")

# Flags of a figure and their meaning, as docs/references.md prints them.
FLAGS = {
    "contradictory": "Other figures of the study, or the code that it describes, disagree with it. It is shown, and "
    "nothing is gated on it.",
    "implausible": "The hardware or the workload can hardly have given it. It is shown, and nothing is gated on it.",
    "per-device": "It is of one of the platform's devices, and what we measure is of all of them: it stands beside nothing.",
    "relative-only": "Only its ratio to the same study's figure on another platform can be compared: it is a ratio "
    "itself, or the study does not say how much work it stands for.",
    "approximate": "The study gives it as about so much.",
    "read-as-sequences": "The study counts tokens or items; the number is one of sequences, and so is the unit here.",
    "read-as-tf32": "The study says FP32 and names no setting of convolutions, which torch computes in TF32 unless "
    "set otherwise: we read it so, and an id that names the precision says tf32.",
}


class TestClaims:
    def test_a_claim_follows_or_not_as_its_file_says(self):
        for claim in CLAIMS:
            assert claim_follows(claim, VALUES) is claim.follows, (claim.id, computed_claim(claim, VALUES))

    def test_claims_are_of_figures_of_their_own_study(self):
        assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
        for claim in CLAIMS:
            for name in (name for group in claim.of for name in group):
                assert name in FIGURES, claim.id
                assert name.split("/")[0] == claim.id.split("/")[0]


UNITS = (
    *("images/s", "tokens/s", "sequences/s", "images/Wh", "tokens/Wh", "sequences/Wh", "Wh/epoch", "Wh"),
    *("s", "min", "h", "%", "fraction", "x", "W", "GB", "GB/s", "Gbit/s", "count", "million"),
)


class TestTables:
    def test_every_platform_is_one_of_the_catalogue_and_has_the_devices_of_its_row(self):
        catalogue = load_catalogue()
        for name, figure in FIGURES.items():
            platform = catalogue.parse(figure.platform)
            assert str(platform) == figure.platform
            assert figure.configuration.get("devices", platform.devices) == platform.devices, name

    def test_every_figure_and_source_is_well_formed(self):
        assert list(SOURCES) == sorted(
            path.stem for path in (ROOT / "baselines" / "published").glob("*.json")
        )
        assert len(FIGURES) == sum(len(source.figures) for source in SOURCES.values()), "an id appears twice"
        for key, source in SOURCES.items():
            assert source.source.title
            assert source.source.authors
            assert source.source.venue
            for figure in source.figures:
                assert re.fullmatch(rf"{key}(/[a-z0-9][a-z0-9_.-]*)+/{figure.platform}", figure.id)
                assert all((figure.table, figure.row, figure.workload)), figure.id
                assert figure.unit in UNITS, figure.id
                assert set(figure.flags) <= set(FLAGS), figure.id
                assert len(set(figure.flags)) == len(figure.flags), figure.id
                assert figure.note or not figure.is_doubtful, f"{figure.id}: say why it is in doubt"

    def test_a_ratio_is_never_taken_for_a_measurement(self):
        ratios = [
            figure
            for figure in FIGURES.values()
            if figure.unit == "x" or "relative_to" in figure.configuration
        ]
        assert ratios
        assert not any(figure.is_absolute for figure in ratios)


def suite(name: str):
    return SimpleNamespace(**runpy.run_path(str(ROOT / "bench_suites" / f"{name}.py")))


def links_of_suites():
    """Every link that docs/references.md gives a suite, with its parameters put in."""
    for model in suite("test_classification").MODELS:
        for data in ("cifar100", "food101"):
            yield f"nrp/train/{model}/{data}"
    yield from (f"nrp/infer/{model}" for model in ("resnet50", "swin_t"))
    yield from (f"pearc22/cnn/{model}" for model in suite("test_cnn").MODELS)
    yield from (f"pearc22/autoencoder/{batch_size}" for batch_size in (10, 128, 256, 512))
    yield from (f"caraml/resnet50/{batch_size}" for batch_size in suite("test_resnet50_energy").BATCHES)
    yield from (f"caraml/gpt/{size}" for size in ("117m", "800m"))
    yield from (f"olivia/single/{variant}" for variant in suite("test_wide_resnet").SINGLE)
    yield from (f"olivia/binding/{binding}" for binding in ("bound", "unbound"))
    yield from (f"olivia/jobs/{jobs}" for jobs in ("one", "independent"))
    yield from ("olivia/ddp", "olivia/ddp/accuracy", "olivia/workers/bf16/16", "olivia/cpus/72")


def test_the_rows_of_the_suites_lead_to_figures():
    assert not [link for link in links_of_suites() if not linked_figures(FIGURES.values(), link)]


# --- the page -----------------------------------------------------------------------------------------


def _stated(claim: Claim) -> str:
    about = "about " if claim.decimals < 0 else ""
    relation = "" if claim.relation == "equals" else f"{claim.relation} "
    return f"{relation}{about}{claim.stated:,.{max(claim.decimals, 0)}f} {claim.unit}"


def _found(claim: Claim) -> str:
    found = computed_claim(claim, VALUES)
    low, high = si(round(min(found), 6)), si(round(max(found), 6))
    return low if low == high else f"{low} to {high}"


def claim_row(claim: Claim) -> str:
    name = claim.id.replace("/claims", "")
    verdict = "yes" if claim.follows else "**no**"
    return f"| `{name}` | {_stated(claim)} | `{claim.formula}` | {_found(claim)} | {verdict} | {claim.note} |"


def claims_table() -> str:
    head = ["| claim | stated | formula | computed | follows | |", "|---|---|---|---|---|---|"]
    return "\n".join(head + [claim_row(claim) for claim in CLAIMS])


def test_the_page_says_what_the_files_and_the_code_do():
    false = sum(not claim.follows for claim in CLAIMS)
    assert claims_table() in PAGE
    assert f"{len(FIGURES)} figures and {len(CLAIMS)} claims, {false} of which do not follow" in PAGE
    for flag, meaning in FLAGS.items():
        assert f"| `{flag}` | {meaning} |" in PAGE
