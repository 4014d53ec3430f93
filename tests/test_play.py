"""The page that trains computes what the package computes, and is one file without a network."""

import asyncio
import html
import json
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import cumulative_trapezoid
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score, completeness_score, homogeneity_score

from cflkit import clustering, datasets, methods, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, LocalTraining
from cflkit.methods import emd_cfl, fedcref
from cflkit.methods.fedcref_measures import wrong_share
from cflkit.partition import shifts
from cflkit.reproduce.papers.emd_cfl import working_range

PLAY = Path(__file__).parent.parent / "notebooks" / "src" / "play"
NOTEBOOKS, EXPLORERS = PLAY.parents[1], PLAY / "explorers"
sys.path.insert(0, str(PLAY))
import browser  # noqa: E402
import build  # noqa: E402


def engine(script):
    """Return a function that evaluates an expression after a script, with V8."""
    missing = "no JavaScript engine: pip install mini-racer"
    context = pytest.importorskip("py_mini_racer", reason=missing).MiniRacer()
    context.eval(script)

    def call(expression, **values):
        names, given = ", ".join(values), json.dumps([*values.values()])
        return json.loads(context.eval(f"JSON.stringify((({names}) => {expression})(...{given}))"))

    return call


@pytest.fixture(scope="module")
def javascript():
    """Return a function that calls a function of the page's modules."""
    return engine(build.script("engine.js", "scenes.js"))


@pytest.fixture(scope="module")
def js():
    """Return a function that calls a function of the explorers."""
    return engine(build.script("explorers/maths.js"))


DIGITS = datasets.load("digits-8x8")
RUN = """{
  const vector = (values) => Float64Array.from(values);
  const samples = ([inputs, labels]) => ({ inputs: vector(inputs.flat()), labels });
  const own = clients.map(([train, test]) => ({ train: samples(train), test: samples(test) }));
  const server = setup(vector(initial), own.length), rows = [];
  for (const round of orders) {
    aggregate(server, localUpdates(server.models, server.labels, own, round, training));
    const { models, labels } = server;
    rows.push({ labels, accuracies: own.map(({ test }, i) => accuracy(models[labels[i]], test)) });
  }
  return { rows, temperatures: server.temperatures };
}"""


def packed(federation, client, split):
    """Return a client's inputs and labels as lists."""
    inputs, labels = federation.inputs(federation.data.index(split, client))
    return inputs.flatten(1).double().tolist(), labels.tolist()


def positions(federation, client, round):
    """Return a client's batches of a round, joined, as positions among its own images."""
    own, batches = federation.partition.train[client], federation.batches(client, round)
    return [np.searchsorted(own, batch.numpy()).tolist() for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["four", "two", "base"])
def test_a_run_has_the_packages_temperatures_clusters_and_accuracies(javascript, version):
    # The package computes in float32, and the page in float64
    rounds, everyone = 6, range(20)
    images, split = shifts.make(DIGITS, version, clients=20, samples=40, seed=0)
    training = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
    federation = Federation(images, split, "perceptron", training, seed=0, device="cpu")
    history = simulation.run({"": methods.make("ocfl")}, federation, rounds, progress=False)
    table = history.table()
    found = javascript(
        RUN,
        initial=federation.initial().tolist(),
        clients=[[packed(federation, c, part) for part in ("train", "test")] for c in everyone],
        orders=[[positions(federation, c, t) for c in everyone] for t in range(rounds)],
        training={"batch": 16, "rate": 0.05, "momentum": 0.9},
    )
    temperatures = table["temperature"].dropna()
    assert len(found["temperatures"]) == len(temperatures) < rounds, "it fires in both"
    np.testing.assert_allclose(found["temperatures"], temperatures, atol=1e-5, rtol=0)
    labels = ["|".join(map(str, row["labels"])) for row in found["rows"]]
    assert labels == table["clusters"].tolist()
    accuracies = [np.mean(row["accuracies"]) for row in found["rows"]]
    np.testing.assert_allclose(accuracies, table["accuracy"], atol=1e-9, rtol=0)


def some_matrices(count, seed):
    """Make cosine distances of 2 to 32 clients in up to four groups; most are rounded."""
    rng = np.random.default_rng(seed)
    for steps in (None, 20, 8, 4):
        for _ in range(count // 4):
            m, groups, d = (int(rng.integers(*bounds)) for bounds in ((2, 33), (1, 5), (2, 9)))
            centres = rng.normal(size=(groups, d)) * rng.uniform(0, 4)
            points = centres[rng.integers(groups, size=m)] + rng.normal(size=(m, d))
            gamma = cosine_divergence(points)
            yield gamma if steps is None else np.round(gamma * steps) / steps


@pytest.mark.slow
def test_its_hdbscan_is_the_packages_on_500_matrices(javascript, monkeypatch):
    # Equally long edges are merged in the order in which numpy sorts them, which differs between
    # machines, and can change the clusters. The page's order is the stable one
    monkeypatch.setattr(np, "argsort", partial(np.argsort, kind="stable"))
    matrices = list(some_matrices(500, seed=0))
    found = javascript("matrices.map(hdbscan)", matrices=[gamma.tolist() for gamma in matrices])
    clusterer = clustering.make("hdbscan")
    assert found == [clusterer.fit_predict(gamma).tolist() for gamma in matrices]
    assert {1, 2, 3, 4} <= {max(labels) + 1 for labels in found}


@pytest.mark.parametrize("seed", range(3))
def test_its_lamp_is_on_when_the_packages_clusters_of_both_sums_agree(javascript, seed):
    rng, rounds, clusterer = np.random.default_rng(seed), 12, clustering.make("hdbscan")
    groups = [np.repeat(rng.normal(size=(k, 4810)), 12 // k, axis=0) for k in (3, 2)]
    updates = groups[0] + 7 * rng.normal(size=(rounds, 12, 4810))
    updates[8:] += 60 * groups[1]  # later, other groups matter
    found = javascript(
        """{
          const kept = halves(12), vectors = (round) => round.map((one) => Float64Array.from(one));
          return updates.map((round) => replicate(kept, vectors(round)));
        }""",
        updates=updates.tolist(),
    )
    lamps = [False]
    for t, row in enumerate(found):
        gammas = [cosine_divergence(updates[half : t + 1 : 2].sum(axis=0)) for half in (0, 1)]
        odd, even = (clusterer.fit_predict(gamma).tolist() for gamma in gammas)
        np.testing.assert_allclose(row["gammas"], gammas, atol=1e-9)
        lamps.append(t > 0 and odd == even and max(odd) > 0)
        assert row["found"] == [odd, even]
        assert (row["alike"], row["fires"]) == (lamps[-1], lamps[-2] and lamps[-1])
    turned = [t for t in range(rounds) if lamps[t] != lamps[t + 1]]
    assert len(turned) >= 3, "on, off, and on again"


def test_the_star_has_the_distances_of_the_two_main_directions(javascript):
    updates = np.random.default_rng(0).normal(size=(9, 30))
    updates += np.repeat(np.eye(3, 30) * 20, 3, axis=0)
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    expected = left[:, :2] * values[:2]
    gamma = cosine_divergence(updates).tolist()
    first = javascript("star(gamma)", gamma=gamma)
    turned = javascript("star(gamma, before)", gamma=gamma, before=[[-y, x] for x, y in first])
    np.testing.assert_allclose(pdist(first), pdist(expected), atol=1e-6)
    np.testing.assert_allclose(turned, [[-y, x] for x, y in first], atol=1e-6)


def test_the_page_has_the_digits_and_turns_them_as_the_package(javascript):
    images = torch.cat([DIGITS.images, DIGITS.test_images])
    found = javascript("Array.from(unpacked(all).pixels)", all=json.loads(build.digits()))
    assert found == images.flatten().tolist()
    turn = "images.map((image) => quarterTurns(image, turns))"
    given = images[:9].flatten(1).tolist()
    for turns in range(4):
        turned = shifts.rotated(90 * turns)(images[:9], DIGITS.labels[:9]).flatten(1).tolist()
        assert turned == javascript(turn, images=given, turns=turns)


def test_its_clients_share_no_training_image_and_have_their_groups_classes(javascript):
    found = javascript(
        """makeClients(unpacked(packed), { ...setting, groups: SCENES.classes.groups }).map(
          ({ group, train, test }) => ({ group, labels: [...train.labels], test: [...test.labels],
            images: train.labels.map((_, n) => `${train.inputs.slice(64 * n, 64 * n + 64)}`) }))""",
        setting={"clients": 20, "images": 40, "epochs": 1, "seed": 3},
        packed=json.loads(build.digits()),
    )
    groups = [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for client in found:
        assert len(client["labels"]) == 40
        assert set(client["labels"]) == set(client["test"]) == set(groups[client["group"]])
    images = [image for client in found for image in client["images"]]
    assert len(set(images)) > len(images) - 5, "but for images that the digits have twice"


@pytest.mark.nightly
def test_what_the_page_says_of_twenty_draws_is_counted():
    script = "var self = {}, performance = { now: () => 0 };\n"
    script += build.script("engine.js", "scenes.js", "worker.js")
    script += f"\nconst packed = unpacked({build.digits()}), {{ groups }} = SCENES.steps;"
    count, rows = engine(script), []
    for seed in range(140, 160):
        setting = f"{{ groups, clients: 20, images: 40, epochs: 0, rule: 'halves', seed: {seed} }}"
        counted = f"""{{
              const {{ step, byHand }} = federation(packed, {setting});
              const rounds = Array.from({{ length: 40 }}, step);
              const fired = rounds.find((one) => one.fired);
              const truth = `${{rounds[0].seen.map((_, i) => Math.floor(i / 5))}}`;
              const {{ accuracies }} = [...(function* () {{ yield yield* byHand(1); }})()].at(-1);
              const gain = Math.round(100 * rounds[39].groups) - Math.round(100 * accuracies[39]);
              const single = rounds.filter(({{ two }}) => `${{two.single}}` === truth).length;
              return [fired.round, `${{fired.labels}}` === truth, single, gain];
            }}"""
        rows.append(count(counted))
    fired, right, single, gain = (np.array(column) for column in zip(*rows, strict=True))
    told, span = build.page(), f"in rounds {min(fired)} to {max(fired)}"
    assert f"{span}, and it found the true groups in {sum(right)}" in told
    assert f"its models read {min(gain)} to {max(gain)} points more" in told
    assert sum(single) == 0


def test_the_page_is_built_small_and_loads_nothing_and_its_links_lead_somewhere():
    built = build.PAGE.read_text(encoding="utf-8")
    assert built == build.page(), "python notebooks/src/play/build.py"
    assert len(built.encode()) <= 400_000
    assert (EXPLORERS / "data.json").stat().st_size <= 100_000
    assert "default-src 'none'" in built
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+|@import|url\(|<link|\bsrc=", built) == []
    links = re.findall(r'href="([^"]*)"(?: data-page="([^"$]+)")?', built)
    assert {link for link, _ in links} == {"#lessons"} and 'id="lessons"' in built
    lessons = re.findall(r'lesson: "(\w+)"', built) + [page for _, page in links if page]
    assert len(lessons) >= 9 and all((NOTEBOOKS / f"{name}.ipynb").exists() for name in lessons)


def test_no_name_is_defined_twice():
    text = build.script("engine.js", "scenes.js", "worker.js", "charts.js", "view.js")
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", text, flags=re.M)
    assert len(names) == len(set(names)) > 40


def in_chromium(test):
    """Run a test where there is Chromium, which takes seconds."""
    skip = pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium on this machine")
    return pytest.mark.slow(skip(test))


READY = "typeof run === 'object' && run.rounds.length > 0"
# What a hand can press before the page has answered the press before
HASTE = (
    "document.querySelector('[data-try]').click(); element('draw').click()",
    "element('play').click(); element('restart').click()",
    "element('play').click(); element('play').click(); element('play').click()",
    "element('step').click(); element('split').click(); element('draw').click()",
    "element('restart').click(); element('review').oninput(); pointAt([0, 1])",
    "element('split').click(); element('split').click(); element('step').click()",
    "element('restart').click(); matchMedia('(prefers-color-scheme: dark)').onchange?.()",
    "location.hash = 'lessons'; history.back()",
    "element('split').click(); element('scene').value = 'steps'; element('scene').onchange()",
)
OVERLAPS = """(() => {
  const texts = [...document.querySelectorAll("svg text.name")];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const apart = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) <= 2
    || Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) <= 3;
  return boxes.flatMap(([one, a], k) =>
    boxes.slice(k + 1).filter(([, b]) => !apart(a, b)).map(([other]) => `${one} on ${other}`));
})()"""
CHOOSE = "element('scene').value = '{}'; element('scene').onchange()"


def in_browser(address):
    """Make a test of a coroutine, which uses the page at an address."""

    def test_of(act):
        async def use():
            async with browser.opened(f"{build.PAGE.as_uri()}#{address}") as tab:
                await tab.until(READY)
                await act(tab)
                wrong = {"Runtime.exceptionThrown", "Log.entryAdded"}
                assert [event for event in tab.events if event["method"] in wrong] == []

        def run():
            asyncio.run(use())

        return in_chromium(run)

    return test_of


@in_browser("clients=7&seed=1e9&images=20&own")
async def test_no_haste_leaves_it_stuck_and_no_address_stops_it(tab):
    assert "clients=7, seed=1e9, own=" in await tab.evaluate("element('notice').textContent")
    assert await tab.evaluate("[run.clients.length, run.setting.images]") == [20, 20]
    for hands in HASTE:
        await tab.evaluate(hands)
        await tab.until(f"{READY} && !run.splitting && !run.pending")
        await tab.evaluate("playing || element('play').click(); then = run.rounds.length")
        await tab.until("run.rounds.length > then || run.rounds.some(({ fired }) => fired)")
        await tab.evaluate("playing && element('play').click()")


@in_browser("scene=two&clients=8&images=10&epochs=1&play=8")
async def test_no_words_lie_on_others_at_the_split_of_any_scene_and_a_phone_has_room(tab):
    await tab.until("run.rounds.length > 1")  # as the address says
    for scene in await tab.evaluate("Object.keys(SCENES)"):
        await tab.look(1440, 900, calm=True)
        await tab.evaluate(f"{CHOOSE.format(scene)}; play()")
        await tab.until("run.rounds.some(({ fired }) => fired) || run.rounds.length === 12")
        assert await tab.evaluate(OVERLAPS) == []
        await tab.look(390, 844, calm=True)
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
        shafts = "[...document.querySelectorAll('#star .shaft')]"
        colours = await tab.evaluate(f"{shafts}.map((arrow) => arrow.getAttribute('stroke'))")
        clusters = "new Set(run.rounds.find(({ fired }) => fired)?.labels ?? [0]).size"
        assert len(set(colours)) == await tab.evaluate(clusters)


@in_browser("scene=classes&clients=8&images=10&epochs=1")
async def test_settings_are_in_the_address_and_a_long_split_can_be_stopped(tab):
    turn = "element('groups').querySelector('.turn').click()"
    scene = await tab.evaluate(f"{turn}; element('scene').selectedOptions[0].text")
    assert scene == "Your own groups"
    shared = await tab.evaluate("location.hash")
    assert await tab.evaluate(f"{CHOOSE.format('four')}; groups[0].turns") == 0
    await tab.evaluate(f"location.hash = '{shared}'")
    await tab.until(f"{READY} && groups[0].turns === 1 && groups[0].classes.length === 4")
    for _ in range(11):
        await tab.evaluate("step()")
    await tab.evaluate("show(1); const went = splitByHand(); splitByHand(); went")
    assert await tab.evaluate("[run.hand, element('play').disabled]") == [None, False]
    await tab.evaluate("show(1); splitByHand()")
    await tab.until("run.score")
    # A split in a round ends as the score says, and the server's as its own
    assert await tab.evaluate("run.hand.accuracies[11] === run.score.ends[0]")
    fired = "run.rounds.find((round) => round.fired).round"
    assert await tab.evaluate(f"run.score.ends[{fired} - 1] === run.rounds[11].groups")
    assert await tab.evaluate(OVERLAPS) == []
    told = await tab.evaluate("element('state').textContent")
    assert re.search(r"you (\d+) .*, OCFL \d+ .*, best \d+ .*round 1 gives \1:", told)


@in_browser("clients=8&images=10&epochs=1")
async def test_two_offices_light_up_and_their_angle_is_their_cell(tab):
    await tab.evaluate(
        """for (const client of [2, 6])
          document.querySelector(`.badge[data-client="${client}"] rect`).dispatchEvent(
            new PointerEvent("pointerdown", { bubbles: true }))"""
    )
    lit = await tab.evaluate("[...document.querySelectorAll('.lit')].map((e) => e.tagName)")
    assert sorted(lit) == ["BUTTON", "BUTTON", "g", "g", "path", "path"]
    assert await tab.evaluate("document.querySelectorAll('.cells .band').length") == 4
    gamma = await tab.evaluate("run.rounds[0].gamma[2][6]")
    angle = np.degrees(np.arccos(1 - gamma))
    told = await tab.evaluate("element('pair').textContent")
    assert f"Bonn and Delft pull {round(angle)}° apart" in told
    assert f"1 − cos {angle:.1f}° ≈ {gamma:.2f}" in told


@in_chromium
def test_it_says_what_to_press_where_no_script_runs(tmp_path):
    frame = f'<iframe sandbox="allow-same-origin" srcdoc="{html.escape(build.page())}"></iframe>'
    (tmp_path / "lab.html").write_text(frame, encoding="utf-8")

    async def read():
        async with browser.opened((tmp_path / "lab.html").as_uri()) as tab:
            words = "document.querySelector('iframe')?.contentDocument?.body?.innerText"
            await tab.until(words)
            return await tab.evaluate(words)

    assert "Trust HTML" in asyncio.run(read())


# --- The explorers: each slider's whole range, beside what the package computes -------------------


DATA = json.loads((EXPLORERS / "data.json").read_text(encoding="utf-8"))


def square(above):
    """Make the symmetric matrix of what is above its diagonal."""
    return squareform(np.array(above) * DATA["unit"])


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
    gamma, cuts = square(above), steps(0.05, 1.1, 0.01)
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
    eps = np.array(steps(0.02, 2.1, 0.04))
    for rate in DATA["older_rules"]["sattler"]["rates"]:
        norms = np.array(rate["norms"]) * DATA["unit"]
        mean, longest = norms.T[:, :, None, None]
        met = (mean < eps[:, None]) & (longest > eps)
        first = np.where(met.any(axis=0), met.argmax(axis=0), -1)
        split = "eps.map((one) => eps.map((other) => firstSplit(norms, one, other)))"
        assert js(split, eps=eps.tolist(), norms=norms.tolist()) == first.tolist()
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
    far, thetas = square(DATA["fedcref"]["far"]), steps(0.15, 0.75, 0.005)
    given = {"far": far.tolist(), "owner": owner.tolist(), "classes": classes.tolist()}
    for theta in thetas:
        found = js("counted(classes, associated(far, owner, theta))", theta=theta, **given)
        found["edges"] = js("associated(far, owner, theta)", theta=theta, **given)
        edges = (far <= theta) & (owner[:, None] != owner)  # as `FedCRef.associated`
        assert found["edges"] == np.argwhere(np.triu(edges)).tolist()
        communities, isolated = fedcref.communities_of(edges)
        assert (found["communities"], found["isolated"]) == (len(communities), isolated)
        wrong = wrong_share(edges, classes) * len(found["edges"])
        assert found["wrong"] == pytest.approx(wrong)


def test_agreement_and_exact_clusters_of_random_groupings(js):
    random = np.random.default_rng(0)
    for m in (2, 5, 20):
        for _ in range(15):
            truth, found = random.integers(0, random.integers(1, m + 1), (2, m))
            names, ari = {"truth": truth.tolist(), "found": found.tolist()}, "ari(truth, found)"
            assert js(ari, **names) == pytest.approx(adjusted_rand_score(truth, found))
            alike = (truth[:, None] == truth) == (found[:, None] == found)
            whole = np.where(alike.all(axis=1), truth, -1).tolist()
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
        areas = cumulative_trapezoid(curve, initial=0) / (len(curve) - 1)
        ours = js("curve.map((_, k) => area(curve, k + 1))", curve=curve.tolist())
        np.testing.assert_allclose(ours, areas)


def test_the_numbers_are_those_that_the_lessons_print(js):
    older, truth = printed("04_sattler_and_briggs"), DATA["older_rules"]["truth"]
    for round in (3, 20):
        gamma = square(DATA["older_rules"]["briggs"]["rounds"][round - 1]).tolist()
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


@in_browser("")
async def test_every_control_of_every_explorer_changes_its_picture_and_its_sentence(tab):
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
    await tab.look(390, 844, calm=True)
    drawn = "document.querySelectorAll('.explorer .picture svg').length >= 6"
    await tab.until(f"scrollBy(0, 800), {drawn}")  # drawn as the reader comes near
    x, y = await tab.evaluate(handle)
    for kind, up in (("mousePressed", 0), ("mouseMoved", 60), ("mouseReleased", 60)):
        event = {"type": kind, "x": x, "y": y - up, "button": "left", "clickCount": 1}
        await tab.call("Input.dispatchMouseEvent", **event)
    cut = float(await tab.evaluate("document.querySelector('.explorer input').value"))
    assert cut == pytest.approx(DATA["older_rules"]["briggs"]["cut"] + 1.1 * 60 / 270, abs=0.02)
    moved = await tab.evaluate(move)
    assert len(moved) >= 13 and all(fits for *_, fits in moved), moved
    [methods] = [told for _, kind, told, _, _ in moved if kind == "select-one"]
    assert methods == len(DATA["mixing"]["methods"]), "each has a sentence of its own"
    ranges = [(name, told, drawn) for name, kind, told, drawn, _ in moved if kind == "range"]
    assert all(drawn == 2 for _, _, drawn in ranges), ranges
    framed = ranges.pop()  # the row that is framed changes the bars alone
    assert framed[0] == "09_mixing" and all(told == 2 for _, told, _ in ranges), ranges
