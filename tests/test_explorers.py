"""What the explorers of the page compute is what the package computes, over each slider's range."""

import asyncio
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, completeness_score, homogeneity_score

from cflkit import clustering
from cflkit.methods import emd_cfl, fedcref
from cflkit.methods.fedcref_measures import wrong_share
from cflkit.reproduce.papers.emd_cfl import working_range

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
EXPLORERS = NOTEBOOKS / "src" / "play" / "explorers"
sys.path.insert(0, str(EXPLORERS.parent))
import browser  # noqa: E402

DATA = json.loads((EXPLORERS / "data.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def js():
    """Evaluate an expression in which the functions of ``maths.js`` and the given names are."""
    mini_racer = pytest.importorskip(
        "py_mini_racer", reason="no JavaScript: pip install mini-racer"
    )
    engine = mini_racer.MiniRacer()
    source = (EXPLORERS / "maths.js").read_text(encoding="utf-8")
    engine.eval(re.sub(r"^export ", "", source, flags=re.M))

    def evaluate(expression, **names):
        call = f"(({', '.join(names)}) => {expression})(...{json.dumps([*names.values()])})"
        return json.loads(engine.eval(f"JSON.stringify({call})"))

    return evaluate


def square(above, m):
    """Make the symmetric matrix of what is above its diagonal."""
    matrix = np.zeros((m, m))
    matrix[np.triu_indices(m, 1)] = np.array(above) * DATA["unit"]
    return matrix + matrix.T


def steps(low, high, step):
    return [round(low + step * k, 6) for k in range(round((high - low) / step) + 1)]


def printed(lesson):
    """Return what the cells of a committed lesson print, or show as text."""
    cells = json.loads((NOTEBOOKS / f"{lesson}.ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [one for cell in cells for one in cell.get("outputs", ())]
    texts = (one.get("text") or one.get("data", {}).get("text/plain", ()) for one in outputs)
    return "".join(line for text in texts for line in text)


def same(truth, found):
    return adjusted_rand_score(truth, found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("round", [0, 1, 2, 5, 10, 19])
def test_each_cut_leaves_the_clusters_of_the_package(js, round):
    truth, above = DATA["older_rules"]["truth"], DATA["older_rules"]["briggs"]["rounds"][round]
    gamma, cuts = square(above, 20), steps(0.05, 1.1, 0.01)
    assert np.array_equal(js("square(above, 20, unit)", above=above, unit=DATA["unit"]), gamma)
    joins = js("linkage(gamma)", gamma=gamma.tolist())
    assert np.allclose([one["height"] for one in joins], clustering.merge_heights(gamma))
    ours = js("cuts.map((cut) => cutAt(joins, cut))", cuts=cuts, joins=joins)
    theirs = [clustering.make("agglomerative", threshold=cut).fit_predict(gamma) for cut in cuts]
    assert ours == [labels.tolist() for labels in theirs]
    low, high = js("rightHeights(joins, truth)", joins=joins, truth=truth) or (9, 9)
    assert [low < cut <= high for cut in cuts] == [same(truth, labels) for labels in theirs]
    order = js("leaves(joins)", joins=joins)  # in which each cluster must be in one piece
    assert sorted(order) == list(range(20))
    places = np.argsort(order)
    for labels in theirs:
        assert all(np.ptp(places[labels == k]) < (labels == k).sum() for k in set(labels.tolist()))


def test_sattlers_first_split_is_the_first_round_that_meets_both_conditions(js):
    for rate in DATA["older_rules"]["sattler"]["rates"]:
        norms = np.array(rate["norms"]) * DATA["unit"]
        eps = steps(0.02, 2.1, 0.04)
        ours = js(
            "eps.map((one) => eps.map((other) => firstSplit(norms, one, other)))",
            eps=eps,
            norms=norms.tolist(),
        )
        mean, longest = norms.T
        for one, row in zip(eps, ours, strict=True):
            for other, first in zip(eps, row, strict=True):
                met = np.flatnonzero((mean < one) & (longest > other))
                assert first == (met[0] if len(met) else -1)
        assert all(set(halves) == {"0", "1"} and len(halves) == 20 for halves in rate["halves"])


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["poisoned", "quarter-turn", "four"])
def test_each_epsilon_joins_the_clients_of_the_package(js, scene):
    truth = DATA["emd_cfl"]["scenes"][scene]["truth"]
    scores = np.array(DATA["emd_cfl"]["scenes"][scene]["scores"]) * DATA["unit"]
    pair = js("larger(scores)", scores=scores.tolist())
    epsilons = steps(0, 0.3, 0.002)
    ours = js("epsilons.map((one) => neighbourhoods(pair, one))", epsilons=epsilons, pair=pair)
    near = [emd_cfl.agreements(scores, epsilon) for epsilon in epsilons]
    theirs = [emd_cfl.neighbourhoods_of(agree)[0].tolist() for agree in near]
    assert ours == theirs
    low, high = js("workingRange(pair, truth)", pair=pair, truth=truth)
    assert (low, high) == working_range(scores, truth)
    assert [low < one <= high for one in epsilons] == [same(truth, labels) for labels in theirs]


def test_each_threshold_associates_the_piles_of_the_package(js):
    owner, classes = (np.array(DATA["fedcref"][name]) for name in ("owner", "classes"))
    far, thetas = square(DATA["fedcref"]["far"], len(owner)), steps(0.15, 0.75, 0.005)
    ours = js(
        "thetas.map((theta) => { const edges = associated(far, owner, theta);"
        " return { edges, ...counted(classes, edges) }; })",
        thetas=thetas,
        far=far.tolist(),
        owner=owner.tolist(),
        classes=classes.tolist(),
    )
    for theta, found in zip(thetas, ours, strict=True):
        edges = (far <= theta) & (owner[:, None] != owner)  # as `FedCRef.associated`
        assert found["edges"] == np.argwhere(np.triu(edges)).tolist()
        communities, isolated = fedcref.communities_of(edges)
        assert (found["communities"], found["isolated"]) == (len(communities), isolated)
        share = found["wrong"] / max(1, len(found["edges"]))
        assert share == pytest.approx(wrong_share(edges, classes))


def test_agreement_and_exact_clusters_of_random_groupings(js):
    random = np.random.default_rng(0)
    for m in (2, 5, 20):
        for _ in range(15):
            truth, found = random.integers(0, random.integers(1, m + 1), (2, m)).tolist()
            names = {"truth": truth, "found": found}
            assert js("ari(truth, found)", **names) == pytest.approx(
                adjusted_rand_score(truth, found)
            )
            groups = [np.flatnonzero(np.array(truth) == g).tolist() for g in truth]
            clusters = [np.flatnonzero(np.array(found) == k).tolist() for k in found]
            whole = [t if a == b else -1 for t, a, b in zip(truth, groups, clusters, strict=True)]
            assert js("exact(truth, found)", **names) == whole
            wrong = js("faults(truth, found)", **names)
            assert wrong["merged"] == (homogeneity_score(truth, found) < 1 - 1e-9)
            assert wrong["splintered"] == (completeness_score(truth, found) < 1 - 1e-9)


def test_mixing_matrices_have_rows_of_one_and_foreign_shares_as_in_the_lesson(js):
    truth = np.array(DATA["mixing"]["truth"])
    for method in DATA["mixing"]["methods"]:
        for place in method["rounds"]:
            folded = DATA["mixing"]["squares"][place]
            matrix = np.array(js("unfold(folded)", folded=folded))
            assert matrix.shape == (20, 20) and np.allclose(matrix.sum(axis=1), 1, atol=0.01)
            share = 1 - (matrix * (truth[:, None] == truth)).sum(axis=1).mean()
            ours = js("foreign(matrix, truth)", matrix=matrix.tolist(), truth=truth.tolist())
            assert ours == pytest.approx(share, abs=0.01)


def test_the_area_of_an_insertion_curve_is_that_of_the_trapezoids(js):
    for one in DATA["insertion"]["maps"]:
        curve = np.array(one["curve"]) * DATA["unit"]
        assert sorted(one["order"]) == list(range(784))
        for points in range(1, len(curve) + 1):
            area = np.trapezoid(curve[:points]) / (len(curve) - 1)
            ours = js("area(curve, points)", curve=curve.tolist(), points=points)
            assert ours == pytest.approx(area)


def test_the_numbers_are_those_that_the_lessons_print(js):
    older, truth = printed("04_sattler_and_briggs"), DATA["older_rules"]["truth"]
    for round in (3, 20):
        gamma = square(DATA["older_rules"]["briggs"]["rounds"][round - 1], 20).tolist()
        low, high = js("rightHeights(linkage(gamma), truth)", gamma=gamma, truth=truth)
        assert f"round {round:2d}: right from {low:.2f} to {high:.2f}" in older
    table = printed("09_a_map_of_the_methods")
    for method in DATA["mixing"]["methods"][:6]:
        accuracy = f"{method['accuracy'][-1] * DATA['unit']:.2f}"
        assert re.search(rf"^{method['name']} +{accuracy} ", table, flags=re.M)


def test_the_squares_are_of_all_methods_of_the_catalogue_and_each_has_its_sentence():
    shown = [method["name"] for method in DATA["mixing"]["methods"]]
    told = (EXPLORERS / "09_mixing.js").read_text(encoding="utf-8").partition("export")[0]
    assert sorted(re.findall(r'^    "?([\w-]+)"?: "', told, flags=re.M)) == sorted(shown)
    listed = re.findall(r"^(\S+) +0\.\d{3} .* \d+\.\d$", printed("09b_catalogue"), flags=re.M)
    assert sorted(name.replace("OCFL-HDB", "OCFL") for name in listed) == sorted(shown)


def test_the_data_are_small_and_the_lessons_of_the_links_exist():
    assert (EXPLORERS / "data.json").stat().st_size <= 100_000
    for module in EXPLORERS.glob("[0-9]*.js"):
        [lesson] = re.findall(r'lesson: "(\w+)"', module.read_text(encoding="utf-8"))
        assert (NOTEBOOKS / f"{lesson}.ipynb").exists()


@pytest.mark.slow
@pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium on this machine")
def test_every_control_of_every_explorer_changes_its_picture_and_its_sentence():
    move = """[...document.querySelectorAll(".explorer")].flatMap((explorer) =>
      [...explorer.querySelectorAll("input, select")].map((input) => {
        const told = new Set(), drawn = new Set();
        const values = { range: [input.min, input.max], radio: [input.value] }[input.type];
        for (const value of values ?? [...input].map((option) => option.value)) {
          if (input.type === "radio") input.click(); else input.value = value;
          input.dispatchEvent(new Event("change", { bubbles: true }));
          input.dispatchEvent(new Event("input", { bubbles: true }));
          told.add(explorer.querySelector(".state").textContent);
          drawn.add(explorer.querySelector(".picture").innerHTML);
        }
        return [explorer.id, input.type, told.size, drawn.size,
          document.documentElement.scrollWidth <= innerWidth];
      }))"""
    handle = """(() => { const place = document.querySelector("[data-handle=cut]");
      place.scrollIntoView({ block: "center" });
      const box = place.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2]; })()"""

    async def use():
        async with browser.opened(browser.PAGE.as_uri()) as tab:
            await tab.look(390, 844, calm=True)
            drawn = "document.querySelectorAll('.explorer .picture svg').length >= 6"
            await tab.until(f"scrollBy(0, 800), {drawn}")  # drawn as the reader comes near
            x, y = await tab.evaluate(handle)
            for kind, up in (("mousePressed", 0), ("mouseMoved", 60), ("mouseReleased", 60)):
                event = {"type": kind, "x": x, "y": y - up, "button": "left", "clickCount": 1}
                await tab.call("Input.dispatchMouseEvent", **event)
            cut = await tab.evaluate("document.querySelector('.explorer input').value")
            return float(cut), await tab.evaluate(move), tab.events

    cut, moved, events = asyncio.run(use())
    assert cut == pytest.approx(DATA["older_rules"]["briggs"]["cut"] + 1.1 * 60 / 270, abs=0.02)
    faults = {"Runtime.exceptionThrown", "Log.entryAdded"}
    assert [event for event in events if event["method"] in faults] == []
    assert len(moved) >= 13 and all(fits for *_, fits in moved), moved
    [methods] = [told for _, kind, told, _, _ in moved if kind == "select-one"]
    assert methods == len(DATA["mixing"]["methods"]), "each has a sentence of its own"
    ranges = [(name, told, drawn) for name, kind, told, drawn, _ in moved if kind == "range"]
    assert all(drawn == 2 for _, _, drawn in ranges), ranges
    framed = ranges.pop()  # the row that is framed changes the bars alone
    assert framed[0] == "09_mixing" and all(told == 2 for _, told, _ in ranges), ranges
