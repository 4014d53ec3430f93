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
from scipy.spatial.distance import pdist

from cflkit import clustering, datasets, methods, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import shifts

PLAY = Path(__file__).parent.parent / "notebooks" / "src" / "play"
sys.path.insert(0, str(PLAY))
import browser  # noqa: E402
import build  # noqa: E402

mini_racer = pytest.importorskip(
    "py_mini_racer", reason="no JavaScript engine: pip install mini-racer"
)


@pytest.fixture(scope="module")
def javascript():
    """Return a function that calls a function of the page's modules, with V8."""
    context = mini_racer.MiniRacer()
    context.eval(build.script("engine.js", "scenes.js"))

    def call(expression, **values):
        names, given = ", ".join(values), json.dumps([*values.values()])
        return json.loads(context.eval(f"JSON.stringify((({names}) => {expression})(...{given}))"))

    return call


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
    for row, clusters, accuracy in zip(
        found["rows"], table["clusters"], table["accuracy"], strict=True
    ):
        assert clusters == "|".join(map(str, row["labels"]))
        assert np.mean(row["accuracies"]) == pytest.approx(accuracy, abs=1e-9)


def some_matrices(count, seed):
    """Make cosine distances of 2 to 32 clients in up to four groups; most are rounded."""
    rng = np.random.default_rng(seed)
    for steps in (None, 20, 8, 4):
        for _ in range(count // 4):
            m, groups, d = (int(rng.integers(*bounds)) for bounds in ((2, 33), (1, 5), (2, 9)))
            centres = rng.normal(size=(groups, d)) * rng.uniform(0, 4)
            gamma = cosine_divergence(
                centres[rng.integers(groups, size=m)] + rng.normal(size=(m, d))
            )
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
    updates = np.random.default_rng(0).normal(size=(9, 30)) + np.repeat(
        np.eye(3, 30) * 20, 3, axis=0
    )
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
    packed = json.loads(build.digits())
    found = javascript("Array.from(unpacked(packed).pixels)", packed=packed)
    assert found == images.flatten().tolist()
    for turns in range(4):
        turned = shifts.rotated(90 * turns)(images[:9], DIGITS.labels[:9]).flatten(1).tolist()
        given = images[:9].flatten(1).tolist()
        assert turned == javascript(
            "images.map((image) => quarterTurns(image, turns))", images=given, turns=turns
        )


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
    context = mini_racer.MiniRacer()
    context.eval("var self = {}, performance = { now: () => 0 };")
    context.eval(build.script("engine.js", "scenes.js", "worker.js"))
    context.eval(f"const packed = unpacked({build.digits()}), {{ groups }} = SCENES.steps;")
    rows = []
    for seed in range(140, 160):
        setting = f"{{ groups, clients: 20, images: 40, epochs: 0, rule: 'halves', seed: {seed} }}"
        counted = context.eval(
            f"""(() => {{
              const {{ step, byHand }} = federation(packed, {setting});
              const rounds = Array.from({{ length: 40 }}, step);
              const fired = rounds.find((one) => one.fired);
              const truth = `${{rounds[0].seen.map((_, i) => Math.floor(i / 5))}}`;
              const {{ accuracies }} = [...(function* () {{ yield yield* byHand(1); }})()].at(-1);
              const gain = Math.round(100 * rounds[39].groups) - Math.round(100 * accuracies[39]);
              const single = rounds.filter(({{ two }}) => `${{two.single}}` === truth).length;
              return JSON.stringify([fired.round, `${{fired.labels}}` === truth, single, gain]);
            }})()"""
        )
        rows.append(json.loads(counted))
    fired, right, single, gain = (np.array(column) for column in zip(*rows, strict=True))
    told = build.page()
    assert (
        f"in rounds {min(fired)} to {max(fired)}, and it found the true groups in {sum(right)}"
        in told
    )
    assert f"its models read {min(gain)} to {max(gain)} points more" in told
    assert sum(single) == 0


def test_the_page_is_built_small_and_loads_nothing():
    built = build.PAGE.read_text(encoding="utf-8")
    assert built == build.page(), "python notebooks/src/play/build.py"
    assert len(built.encode()) <= 400_000
    assert "default-src 'none'" in built
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+|@import|url\(|<link|\bsrc=", built) == []


def test_no_name_is_defined_twice():
    text = build.script("engine.js", "scenes.js", "worker.js", "charts.js", "view.js")
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", text, flags=re.M)
    assert len(names) == len(set(names)) > 40


def faults(events):
    """Return what went wrong in a page."""
    return [e for e in events if e["method"] in {"Runtime.exceptionThrown", "Log.entryAdded"}]


in_chromium = pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium on this machine")
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


def in_browser(address, act):
    """Open the page with an address, let ``act`` use it, and return what ``act`` returns."""

    async def use():
        async with browser.opened(f"{build.PAGE.as_uri()}#{address}") as tab:
            await tab.until(READY)
            seen = await act(tab)
            assert faults(tab.events) == []
            return seen, tab.events

    return asyncio.run(use())


@pytest.mark.slow
@in_chromium
def test_no_haste_leaves_it_stuck_and_no_address_stops_it():
    async def press(tab):
        assert "clients=7, seed=1e9, own=" in await tab.evaluate("element('notice').textContent")
        assert await tab.evaluate("[run.clients.length, run.setting.images]") == [20, 20]
        for hands in HASTE:
            await tab.evaluate(hands)
            await tab.until(f"{READY} && !run.splitting && !run.pending")
            await tab.evaluate("playing || element('play').click(); then = run.rounds.length")
            await tab.until("run.rounds.length > then || run.rounds.some(({ fired }) => fired)")
            await tab.evaluate("playing && element('play').click()")

    in_browser("clients=7&seed=1e9&images=20&own", press)


@pytest.mark.slow
@in_chromium
def test_no_words_lie_on_others_at_the_split_of_any_scene():
    async def play(tab):
        for scene in await tab.evaluate("Object.keys(SCENES)"):
            await tab.evaluate(f"{CHOOSE.format(scene)}; play()")
            await tab.until("run.rounds.some(({ fired }) => fired) || run.rounds.length === 12")
            assert await tab.evaluate(OVERLAPS) == []

    in_browser("clients=8&images=10&epochs=1", play)


@pytest.mark.slow
@in_chromium
def test_settings_are_in_the_address_and_a_long_split_can_be_stopped():
    async def change(tab):
        turn = "element('groups').querySelector('.turn').click()"
        assert await tab.evaluate(f"{turn}; element('scene').selectedOptions[0].text") == (
            "Your own groups"
        )
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

    in_browser("scene=classes&clients=8&images=10&epochs=1", change)


@pytest.mark.slow
@in_chromium
def test_two_offices_light_up_and_their_angle_is_their_cell():
    async def point(tab):
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

    in_browser("clients=8&images=10&epochs=1", point)


@pytest.mark.slow
@in_chromium
def test_it_says_what_to_press_where_no_script_runs(tmp_path):
    inside = html.escape(build.page())
    frame = f'<iframe sandbox="allow-same-origin" srcdoc="{inside}"></iframe>'
    (tmp_path / "lab.html").write_text(frame, encoding="utf-8")

    async def read():
        async with browser.opened((tmp_path / "lab.html").as_uri()) as tab:
            words = "document.querySelector('iframe')?.contentDocument?.body?.innerText"
            await tab.until(words)
            return await tab.evaluate(words)

    assert "Trust HTML" in asyncio.run(read())


def test_each_link_of_the_file_leads_to_a_part_of_it():
    text = build.page()
    links, pages = re.findall(r'href="([^"]*)"(?: data-page="([^"$]+)")?', text), build.PAGE.parent
    assert {link for link, _ in links} == {"#lessons"}
    assert 'id="lessons"' in text
    assert all((pages / f"{page}.ipynb").exists() for _, page in links if page)


@pytest.mark.slow
@in_chromium
def test_it_plays_to_its_split_in_a_browser():
    async def play(tab):
        await tab.look(390, 844, calm=True)
        await tab.until("run.rounds.some((round) => round.fired)")
        return await tab.evaluate(
            """(() => {
              element("play").click();
              const arrows = [...document.querySelectorAll("#star .shaft")];
              return {
                labels: run.rounds.find((round) => round.fired).labels,
                width: document.documentElement.scrollWidth,
                clusters: new Set(arrows.map((arrow) => arrow.getAttribute("stroke"))).size,
              };
            })()"""
        )

    choices = "scene=two&clients=8&images=20&epochs=2&seed=5&play=8"
    seen, events = in_browser(choices, play)
    asked = {
        e["params"]["request"]["url"] for e in events if e["method"].endswith("requestWillBeSent")
    }
    assert all(address.startswith(("file:", "blob:", "data:")) for address in asked)
    assert seen["width"] <= 390
    assert seen["clusters"] == max(seen["labels"]) + 1 > 1
