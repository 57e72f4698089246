"""The explorer: its data against the files they come from, and what a reader does with it in a browser."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import chromium
import made_results
import pytest

from aero.architecture import parse
from aero.config import TwoPartyParameters
from aero.report import claims, explorer, render
from aero.report.claims import Judged
from aero.report.results import Results, load
from aero.two_party.cost.cost_model import KEPT_FILES, estimate, measured_operations
from aero.two_party.cost.counts import published_sizes
from aero.two_party.cost.network import Network

in_browser = pytest.mark.skipif(chromium.executable() is None, reason="no Chromium here (Debian's package: chromium)")
DATA = re.compile(r'<script id="explorer-data" type="application/json">(.*?)</script>', re.DOTALL)


@pytest.fixture(scope="module")
def kept() -> Results:
    """The project's own results."""
    return load(made_results.PROJECT)


@pytest.fixture(scope="module")
def judged(kept: Results) -> list[Judged]:
    return claims.judge(kept)


def written(folder: Path, text: str) -> Path:
    path = folder / "page.html"
    path.write_text(render.compose_html(f"<h1>t</h1>{text}"), encoding="utf-8")
    return path


def row(results: Results, run: str) -> explorer.Row:
    return next(one for one in explorer.rows(results) if one.run == run)


def change(path: Path, **columns: str) -> None:
    """Give columns of the first line of a CSV file other values."""
    lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    lines[0] |= columns
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


def test_costs_of_a_row_are_those_of_its_file(full: Results) -> None:
    cost = row(full, "sm-ln-g").costs["as_written"]
    assert (cost.how, cost.bytes, cost.messages, cost.rounds) == ("composed", 15.3e9, 150000, 3000)
    assert cost.source == "results/two_party/rows.csv"
    # The made latencies are seconds + bytes x 4e-8 + 3000 x 80 ms: at 12.5 MB/s half of the bytes cost time.
    assert cost.wire_bytes == pytest.approx(15.3e9 / 2, rel=1e-4)
    assert explorer.latency_minutes(cost, Network(50, 160)) == pytest.approx((765 + 1224 + 480) / 60, rel=1e-4)


def test_as_published_is_what_was_measured_of_the_printed_rows(kept: Results) -> None:
    """Of GPT-2 with 12 layers and T=128 the rows of Table 4; what the print stands beside."""
    files = csv.DictReader((made_results.PROJECT / "results/two_party/fitted_rows.csv").open(encoding="utf-8"))
    bytes_of = {
        line["architecture"]: float(line["bytes"])
        for line in files
        if (line["model"], line["context"], line["program"]) == ("gpt2", "128", "as_published")
    }
    found = {"with": 0, "without": 0}
    for one in explorer.rows(kept):
        if one.setting == "gpt2/128/1":
            cost, architecture = one.costs["as_published"], kept.parameters["runs"][one.run]["architecture"]
            assert cost.bytes == bytes_of.get(architecture)
            assert (cost.how == "missing") == (architecture not in bytes_of)
            found["with" if cost.bytes else "without"] += 1
            assert cost.bytes is None or explorer.latency_minutes(cost, Network(100, 80)) > 0
    assert min(found.values()) > 5


def test_the_slower_day_is_that_of_the_setting(kept: Results) -> None:
    """SM+LN+G as written in the file of the fit and in the rows', by hand: seconds + transfers + rounds."""
    days = explorer.data(kept, [])["slower_days"]
    assert days["gpt2/128/1"].endswith("SM+LN+G as written took 79.01 WAN minutes then and not 49.81.")
    assert days["gpt2/256/1"].endswith(f"took {8702.6015744 / 60:.2f} WAN minutes then and not 121.78.")
    assert f"took {7007.8201304 / 60:.2f} WAN minutes then" in days["pythia-70m/256/1"]
    assert days["pythia-70m/128/1"] == "" and days["gpt2/128/1"][:70] != days["pythia-70m/256/1"][:70]


def test_latencies_of_other_networks_are_not_taken_apart(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-ln-g",))
    change(root / "results/two_party/rows.csv", latency_lan_s="5000.0")
    cost = row(load(root), "sm-ln-g").costs["as_written"]
    assert cost.bytes == 15.3e9 and cost.wire_bytes is None
    assert explorer.latency_minutes(cost, Network(100, 80)) is None


def test_wire_bytes_from_latencies_are_those_of_the_operations(kept: Results) -> None:
    # rows.csv is composed from ops.csv alone; the set-up measured with others differs by some kB.
    variant = TwoPartyParameters(**kept.parameters["two_party"]).variant()
    operations = measured_operations(variant, kept.root, files=("results/two_party/ops.csv",))
    found = 0
    for one in explorer.rows(kept):
        family, context, _ = one.setting.split("/")
        architecture = kept.parameters["runs"][one.run]["architecture"]
        for program, cost in one.costs.items():
            if cost.source == "results/two_party/rows.csv" and cost.how == "composed":
                other = estimate(parse(architecture), published_sizes(family, int(context)), program, operations)
                assert cost.wire_bytes == pytest.approx(other.wire_bytes, rel=1e-6)
                assert cost.bytes == pytest.approx(other.bytes, rel=1e-6)
                found += 1
    assert found >= 20


def test_what_is_not_measured_is_told_with_its_reason(full: Results, kept: Results) -> None:
    missing = row(full, "sm-ln-g-t256").costs["tuned"]
    assert (missing.how, missing.bytes, missing.why) == ("missing", None, "no operation was measured")
    for one in explorer.rows(kept):
        for cost in one.costs.values():
            assert cost.how in ("composed", "estimated", "extrapolated", "missing")
            assert (cost.bytes is None) == (cost.how == "missing")
            assert bool(cost.why) == (cost.how in ("missing", "extrapolated")), cost
            assert bool(cost.source) == (cost.how != "missing")
            # What carries no error is measured; what is extrapolated has no bound.
            assert (cost.bytes_error == 0) == (cost.how == "composed"), cost
            assert cost.how != "extrapolated" or cost.bytes_error is None


def test_interpolated_rounds_have_their_error(kept: Results) -> None:
    """They go into the latency of the network that a reader chooses, as bytes and seconds do."""
    variant = TwoPartyParameters(**kept.parameters["two_party"]).variant()
    operations = measured_operations(variant, kept.root, files=KEPT_FILES)
    estimated = estimate(parse("SM+ScFuFFNi_3"), published_sizes("gpt2", 160), "tuned", operations)
    found = explorer._estimated(kept, estimated)
    assert found.how == "estimated" and found.rounds_error == estimated.rounds_error > 0
    assert explorer._estimated(kept, dataclasses.replace(estimated, rounds_error=math.inf)).rounds_error is None
    script = (made_results.PROJECT / "aero/report/assets/explorer.js").read_text(encoding="utf-8")
    assert "of the rounds ${percent(cost.rounds_error)}" in script


def test_perplexity_is_paired_with_its_own_baseline(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm",), costs=False)
    for seed, base, own in ((1337, 10.0, 11.0), (1338, 20.0, 21.0)):
        made_results.write_run(root / f"runs/sm-ln-g/seed_{seed}", "sm-ln-g", seed, perplexity=base)
        made_results.write_run(root / f"runs/sm-r/seed_{seed}", "sm-r", seed, perplexity=own)
    made_results.write_run(root / "runs/sm-g/seed_1337", "sm-g", 1337, corpus_sha256="cd" * 32)
    results = load(root)
    found = row(results, "sm-r").perplexity
    # 10 % and 5 %: mean 7.5, half width t(1, 0.975) x 2.5 = 12.7062 x 2.5.
    assert found["increase"] == pytest.approx(7.5) and found["seeds"] == 2
    assert (found["low"], found["high"]) == pytest.approx((7.5 - 31.7655, 7.5 + 31.7655), abs=1e-3)
    assert row(results, "sm-ln-g").perplexity["increase"] == 0
    for run, why in (
        ("sm", "training diverged (NaN)"),
        ("sm-g", "not trained like its SM+LN+G: other data, sizes or tokens"),
        ("sm-ln", "not run at scale laptop"),
    ):
        about = row(results, run).perplexity
        assert about["increase"] is None and about["why"] == why


def test_runs_of_another_recipe_are_no_rows(kept: Results) -> None:
    names = {one.run for one in explorer.rows(kept)}
    assert "sm-ln-g" in names and not any(name.startswith("core-") for name in names)
    printed = row(kept, "sm-ln-g").published
    assert (printed["gigabytes"], printed["minutes"], printed["place"]) == (25.32, 8.21, "AERO Table 4")


def test_the_data_survive_the_page(kept: Results, judged: list[Judged], tmp_path: Path, monkeypatch) -> None:
    """Through notebook, exporter and page the same values, and no tag, formula or text of theirs in the PDF."""
    found = explorer.data(kept, judged)
    assert len(found["claims"]) == len(judged)
    root = made_results.project(tmp_path, runs=(), costs=False)
    text = explorer.section(kept, judged).text.replace("</p>", ' and $t = x$ and "$5"</p>', 1)
    (root / "piece.html").write_text(text, encoding="utf-8")
    source = "# %% [markdown]\n# # t\n\n# %%\nfrom IPython.display import HTML\nHTML(filename='piece.html')\n"
    (root / "reports/aero_softmax_only.py").write_text(source, encoding="utf-8")
    body = render.execute(root)
    page = render.compose_html(body.replace('"$5"', ""))
    assert page.count("<math") == 1
    assert json.loads(DATA.search(page).group(1)) == json.loads(json.dumps(found))
    monkeypatch.setattr("typst.compile", lambda path, **_: Path(path).read_bytes())
    printed = render.compose_pdf(body.replace('"$5"', "")).decode()
    assert "Rows side by side" in printed and "bandwidth_mbit" not in printed and "explorer-data" not in printed


def test_embedded_text_cannot_leave_its_element() -> None:
    values = {"a": "</script><b>$x$ & 'y' \u2028", "n": [1.5, None]}
    text = explorer.embedded(values)
    assert not set("<>&$") & set(text) and json.loads(text) == values


def test_the_script_loads_nothing_and_the_page_runs_no_other(tmp_path: Path) -> None:
    page = written(tmp_path, "").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL).group(1)
    assert not re.search(r"https?:|fetch\(|XMLHttp|\bimport\b|innerHTML|eval\(|document\.write|localStorage", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page


@pytest.fixture(scope="module")
def page(kept: Results, judged: list[Judged], tmp_path_factory) -> Iterator[chromium.Page]:
    path = written(tmp_path_factory.mktemp("page"), explorer.section(kept, judged).text)
    with chromium.page() as tab:
        tab.path = path
        yield tab


@pytest.fixture
def fresh(page: chromium.Page) -> chromium.Page:
    for noted in (page.errors, page.warnings, page.requests):
        noted.clear()
    page.look(1024)
    page.open(page.path)
    return page


SHOWN = "explorer.rows().map((line) => [line.row.run, line.program])"


@in_browser
def test_nothing_is_loaded_and_nothing_fails(fresh: chromium.Page) -> None:
    assert fresh.run("document.querySelectorAll('.explorer-live tbody tr').length") > 100
    assert fresh.errors == fresh.warnings == [] and fresh.requests == [fresh.path.as_uri()]
    # The policy holds: what is put into the page later neither loads nor runs.
    fresh.run("document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.org/x.png'}))")
    fresh.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    assert fresh.run("window.ran === undefined") and len(fresh.errors) == 2
    assert fresh.run("!('explorer' in window) || Object.isFrozen(window.explorer)")


@in_browser
def test_latencies_are_pythons(fresh: chromium.Page, kept: Results) -> None:
    networks = {name: Network(**one) for name, one in kept.parameters["two_party"]["networks"].items()}
    networks["odd"] = Network(3.7, 0.1)
    given = {name: {"bandwidth_mbit": one.bandwidth_mbit, "rtt_ms": one.rtt_ms} for name, one in networks.items()}
    found = fresh.run(
        f"Object.entries({json.dumps(given)}).map(([name, network]) => [name, explorer.data.rows.map((row) => "
        "[row.run, Object.entries(row.costs).map(([program, cost]) => [program, explorer.latency(cost, network)])])])"
    )
    checked = 0
    rows = {one.run: one for one in explorer.rows(kept)}
    for name, listed in found:
        for run, programs in listed:
            for program, parts in programs:
                minutes = explorer.latency_minutes(rows[run].costs[program], networks[name])
                assert (parts is None) == (minutes is None)
                if parts is not None:
                    assert parts["seconds"] == pytest.approx(60 * minutes, rel=1e-12)
                    assert math.fsum(parts[key] for key in ("compute", "transfer", "rounds")) == pytest.approx(
                        parts["seconds"], rel=1e-12
                    )
                    checked += 1
    assert checked > 200


@in_browser
def test_the_table_shows_what_the_files_say(fresh: chromium.Page, kept: Results) -> None:
    rows = {one.run: one for one in explorer.rows(kept)}
    wan = Network(**kept.parameters["two_party"]["networks"]["wan"])
    shown = fresh.run(SHOWN)
    lines = fresh.texts(".explorer-live .scroll:not(.claim-list) tbody tr")
    assert len(shown) == len(lines) == 12
    assert [program for _, program in shown[:3]] == ["as_published", "as_written", "tuned"]
    base = rows[shown[0][0]]
    for (run, program), line in zip(shown, lines, strict=True):
        cost = rows[run].costs[program]
        assert f"●{cost.bytes / 1e9:.3f}" in line.replace("\n", "")
        assert f"{explorer.latency_minutes(cost, wan):.2f}" in line and f"{cost.messages:.0f}" in line
        assert f"{base.costs[program].bytes / cost.bytes:.2f}×" in line
        about = rows[run].perplexity
        expected = "baseline" if run == "sm-ln-g" else f"{about['increase']:+.1f} % [{about['low']:+.1f}, "
        assert expected in line
    assert "25.32 GB published" in lines[0] and "8.21 min published" in lines[0]
    assert not any("published" in line for line in lines[1:3])
    assert "a day with a slower machine" in fresh.texts(".explorer-live")[0]
    titles = fresh.run("[...document.querySelectorAll('.explorer-live .num')].map((one) => one.title)")
    assert all(re.match(r"(published|measured at [^:]+): \S", title) for title in titles) and len(titles) > 100


@in_browser
def test_a_network_of_ones_own(fresh: chromium.Page, kept: Results) -> None:
    cost = row(kept, "sm-ln-g").costs["as_published"]
    fresh.write("#explorer-bandwidth", "250")
    fresh.write("#explorer-rtt", "12.5")
    assert fresh.run("document.querySelector('#explorer-network').value") == "own"
    line = fresh.texts(".explorer-live tbody tr")[0]
    assert f"{explorer.latency_minutes(cost, Network(250, 12.5)):.2f}" in line
    # A published latency belongs to the published network alone.
    assert "25.32 GB published" in line and "min published" not in line
    for wrong in ("0", "", "-5"):
        fresh.write("#explorer-bandwidth", wrong)
        assert fresh.texts(".told")[0].startswith("Give a bandwidth above 0")
        assert fresh.run("explorer.rows().every((line) => line.time === null && line.gigabytes > 0)")
        assert fresh.run("document.querySelector('#explorer-bandwidth').getAttribute('aria-invalid')") == "true"
    fresh.choose("#explorer-network", "lan")
    assert fresh.run("document.querySelector('#explorer-bandwidth').value") == "1000"
    assert fresh.texts(".told")[0].endswith("on 1000 Mbit/s and 1 ms.")


@in_browser
def test_rows_programs_and_the_one_they_are_compared_with(fresh: chromium.Page, kept: Results) -> None:
    assert fresh.texts(".slower")[0].startswith("Seconds and minutes as published are of commit")
    fresh.click("fieldset input[value=as_published]")
    lines = fresh.texts(".explorer-live .scroll:not(.claim-list) tbody tr")
    assert "25.32 GB published" in lines[0] and "8.21 min published" in lines[0] and fresh.texts(".slower") == [""]
    fresh.click("fieldset input[value=as_published]")
    fresh.click("fieldset input[value=as_written]")
    assert {program for _, program in fresh.run(SHOWN)} == {"as_published", "tuned"}
    fresh.click("fieldset input[value=as_published]")
    assert {program for _, program in fresh.run(SHOWN)} == {"tuned"}
    fresh.write("#explorer-filter", "scfuffni_6")
    assert fresh.texts(".explorer-live .rows label") == ["SM+ScFuFFNi_6", "EReg(SM(t)+ScFuFFNi_6)"]
    fresh.click(".explorer-live .rows input[value=sm-scfuffni-6]")
    assert ["sm-scfuffni-6", "tuned"] in fresh.run(SHOWN)
    fresh.choose("#explorer-reference", "sm-scfuffni-6")
    saving = fresh.run("explorer.rows().find((line) => line.row.run === 'sm-ln-g').saving")
    own, other = (row(kept, run).costs["tuned"].bytes for run in ("sm-ln-g", "sm-scfuffni-6"))
    assert saving == pytest.approx(other / own, rel=1e-12)
    fresh.write("#explorer-filter", "no such row")
    assert fresh.texts(".explorer-live .rows") == ["No row’s name has this in it."]
    fresh.write("#explorer-filter", "")
    fresh.run("[...document.querySelectorAll('.explorer-live .buttons button')][1].click()")
    assert fresh.run(SHOWN) == [] and fresh.texts(".told")[0] == "Choose at least one row and one program."


@in_browser
def test_extrapolations_are_shown_on_request_only_and_say_so(fresh: chromium.Page, kept: Results) -> None:
    found = [one for one in explorer.rows(kept) if any(cost.how == "extrapolated" for cost in one.costs.values())]
    if not found:
        pytest.skip("every cost is measured or interpolated")
    fresh.choose("#explorer-setting", found[0].setting)
    fresh.run("[...document.querySelectorAll('.explorer-live .buttons button')][0].click()")
    outside = "explorer.rows().filter((line) => line.cost.how === 'extrapolated')"
    assert fresh.run(
        f"{outside}.length > 0 && {outside}.every((line) => line.gigabytes === null && line.time === null)"
    )
    assert "outside what was measured" in fresh.texts(".explorer-live tbody")[0]
    fresh.click("#explorer-extrapolate")
    assert fresh.run(f"{outside}.every((line) => line.gigabytes > 0)")
    assert "extrapolated, no bound" in fresh.texts(".explorer-live tbody")[0]


@in_browser
def test_columns_sort_both_ways_with_the_unknown_last(fresh: chromium.Page) -> None:
    fresh.run("[...document.querySelectorAll('.explorer-live .buttons button')][0].click()")
    first = fresh.run(SHOWN)
    for column, value in (("PPL change", "row.perplexity.increase"), ("communication, GB", "gigabytes")):
        button = f"[...document.querySelectorAll('.sort')].find((one) => one.textContent === '{column}')"
        for direction in ("ascending", "descending", "none"):
            fresh.run(f"{button}.click()")
            assert fresh.run(f"{button}.parentElement.getAttribute('aria-sort')") == direction
            values = fresh.run(f"explorer.rows().map((line) => line.{value})")
            known = [one for one in values if one is not None]
            assert values[: len(known)] == known or direction == "none"
            if direction != "none":
                assert known == sorted(known, reverse=direction == "descending") and len(set(known)) > 5
    assert fresh.run(SHOWN) == first


@in_browser
def test_claims_are_filtered_and_sorted(fresh: chromium.Page, judged: list[Judged]) -> None:
    ids = "explorer.claims().map((claim) => claim.id)"
    everything = [one.claim.id for one in judged]
    assert fresh.run(ids) == everything and fresh.texts(".told")[1] == f"{len(judged)} of {len(judged)} claims"
    fresh.choose("#claims-paper", "aero")
    assert fresh.run(ids) == [one.claim.id for one in judged if one.paper == "aero"]
    boxes = "document.querySelectorAll('.explorer-live form')[1].querySelectorAll('input[type=checkbox]')"
    fresh.run(f"[...{boxes}].filter((one) => one.value !== 'contradicted').forEach((one) => one.click())")
    contradicted = [one.claim.id for one in judged if one.paper == "aero" and one.decision.verdict == "contradicted"]
    assert fresh.run(ids) == contradicted and len(contradicted) > 3
    fresh.write("#claims-text", "LATENCY table")
    few = fresh.run(ids)
    assert 0 < len(few) < len(contradicted) and set(few) < set(contradicted)
    fresh.write("#claims-text", "no such words at all")
    assert fresh.run(ids) == [] and fresh.texts(".told")[1] == "No claim passes this filter."
    fresh.open(fresh.path)
    fresh.run("[...document.querySelectorAll('.claim-list .sort')].find((one) => one.innerText === 'verdict').click()")
    verdicts = fresh.run("explorer.claims().map((claim) => claim.verdict)")
    order = [verdict for verdict, _ in itertools.groupby(verdicts)]
    assert order == [v for v in claims.VERDICTS if v in order] and len(verdicts) == len(judged)


@in_browser
def test_a_keyboard_is_enough(fresh: chromium.Page) -> None:
    """Tab reaches the controls in their order; keys choose; every control has a name and shows where one is."""
    focused = "document.activeElement.id || document.activeElement.value || document.activeElement.textContent"
    seen = []
    for _ in range(14):
        fresh.key("Tab", 9)
        seen.append(fresh.run(focused))
    wanted = ["setting", "network", "bandwidth", "rtt", "reference"]
    assert [name for name in seen if name.startswith("explorer-")][:5] == [f"explorer-{name}" for name in wanted]
    assert seen.index("as_written") < seen.index("tuned") < seen.index("explorer-extrapolate")
    assert seen.index("explorer-filter") < seen.index("choose all shown")
    assert fresh.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    before = fresh.run(SHOWN)
    fresh.run("document.querySelector('.explorer-live .rows input').focus()")
    fresh.key(" ", 32, " ")
    assert len(fresh.run(SHOWN)) == len(before) - 3
    fresh.run("document.querySelector('.sort').focus()")
    fresh.key("Enter", 13, "\r")
    assert fresh.run("document.querySelector('.explorer-live th').getAttribute('aria-sort')") == "ascending"
    assert fresh.run("document.activeElement.className") == "sort"
    nodes = fresh.call("Accessibility.getFullAXTree")["nodes"]
    controls = [n for n in nodes if n["role"]["value"] in ("combobox", "checkbox", "button", "searchbox", "spinbutton")]
    assert len(controls) > 40 and all(one["name"]["value"].strip() for one in controls)


CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return Math.min(...[...document.querySelectorAll('.explorer-live *')].filter((one) => one.innerText).map((one) => {
    const [a, b] = [light(rgb(getComputedStyle(one).color)), light(ground(one))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})()"""


@in_browser
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_and_can_be_read(fresh: chromium.Page, dark: bool) -> None:
    for width in (390, 1024, 1600):
        fresh.look(width, dark=dark)
        assert fresh.overflow() <= 0, width
    fresh.look(390, dark=dark)
    cut = "[...document.querySelectorAll('.explorer-live .scroll')].map((one) => one.scrollWidth - one.clientWidth)"
    assert max(fresh.run(cut)) <= 0
    # 4.5 is what WCAG 2 asks of text (level AA).
    assert fresh.run(CONTRAST) >= 4.5
    assert fresh.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 27)" if dark else "rgb(253, 253, 252)"
    )


VISIBLE = "['.explorer-live', '.explorer-static'].map((one) => document.querySelector(one)?.checkVisibility() ?? null)"


@in_browser
def test_print_and_no_script_have_the_table(fresh: chromium.Page) -> None:
    assert fresh.run(VISIBLE) == [True, False]
    fresh.look(800, media="print")
    assert fresh.run(VISIBLE) == [False, True]
    fresh.look(800)
    fresh.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        fresh.open(fresh.path)
        assert fresh.run(VISIBLE) == [None, True]
        assert "SM+ScFuFFNi_6" in fresh.texts("#explorer-rows tbody")[0].replace("\u200b", "")
    finally:
        fresh.call("Emulation.setScriptExecutionDisabled", value=False)


@in_browser
def test_nothing_measured_is_told(page: chromium.Page, empty: Results, tmp_path: Path) -> None:
    page.errors.clear()
    page.open(written(tmp_path, explorer.section(empty, claims.judge(empty)).text))
    assert page.errors == []
    text = page.texts(".explorer-live tbody")[0]
    assert "not run at scale laptop" in text and "no operation was measured" in text and "NaN" not in text
    assert page.run("explorer.rows().every((line) => line.gigabytes === null && line.time === null)")
