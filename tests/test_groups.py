"""The question about groups: its measures, its files, its answers, its page and its hit rate."""

import dataclasses
import json
import os
import sys

import hit_rate
import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from cflkit import clustering, datasets, halves, methods, simulation
from cflkit.__main__ import main
from cflkit.divergence import cosine_divergence
from cflkit.groups import (
    Answer,
    Evidence,
    EvidenceError,
    as_evidence,
    evidence,
    groups,
    page,
    read,
    stability,
)
from cflkit.partition import shifts
from cflkit.reproduce.records import PROJECT

HDBSCAN = clustering.make("hdbscan")


def sent(kind, rounds=8, clients=15, size=2000, noise=3.0, seed=0):
    """Make updates [R, m, P] of clients with three groups, that are alike, or differ by degrees."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((clients, size))
    if kind == "groups":
        own = 0.5 * own + rng.standard_normal((3, size))[np.arange(clients) % 3]
    elif kind == "by degrees":
        own = rng.standard_normal((clients, 2)) @ rng.standard_normal((2, size))
    common = 2 * rng.standard_normal((rounds, 1, size))
    return common + own + noise * rng.standard_normal((rounds, clients, size))


def test_what_is_shared_is_that_without_noise():
    groups_of = np.arange(15) % 3
    updates = sent("groups", rounds=40)
    found = halves.compare(*(torch.tensor(updates[h::2].sum(0)) for h in (0, 1)), HDBSCAN)
    clear = sent("groups", rounds=1, noise=0.0)[0]
    clear -= clear.mean(axis=0)
    same = [clear[i] @ clear[j] for i in range(15) for j in range(15) if i != j and i % 3 == j % 3]
    apart = [clear[i] @ clear[j] for i in range(15) for j in range(15) if i != j]
    own = np.mean([row @ row for row in clear])
    assert (found.labels == groups_of).all() and found.agreement == 1
    assert found.shared == pytest.approx(np.mean(same) / own, abs=0.04)
    assert found.scatter == pytest.approx(np.std(apart) / own, abs=0.04)
    whole = cosine_divergence(updates.sum(axis=0))
    np.testing.assert_allclose(found.divergence, whole, atol=1e-12)


def away(updates):
    """Let clients be absent at random, a third of the time."""
    gone = np.random.default_rng(1).random(updates.shape[:2]) < 1 / 3
    return np.where(gone[:, :, None], np.nan, updates)


@pytest.mark.parametrize("kind", ["groups", "by degrees", "alike"])
@pytest.mark.parametrize("look", ["updates", "distances", "absent", "one look"])
def test_each_answer_is_given_where_it_is_true(kind, look):
    updates = sent(
        kind, rounds=30 if look == "absent" else 8, noise=3.0 if look != "one look" else 0
    )
    if look == "distances":  # which do not tell noise from what persists
        updates = np.stack([cosine_divergence(own) for own in sent(kind, noise=0.5)])
    known = as_evidence({"absent": away(updates), "one look": updates[0]}.get(look, updates))
    answer = groups(known)
    assert answer.answer == kind
    assert answer.several == (look != "one look") and bool(answer.notes) == (
        kind != "groups" or look in ("one look", "distances")
    )
    if kind == "groups":
        assert answer.clusters == [client % 3 for client in range(15)] and answer.k == 3
        assert look == "one look" or 3 <= answer.rounds_needed <= known.rounds
        assert answer.stability > 0.9 and answer.between == []
    else:
        assert answer.k == 1 and answer.rounds_needed is None


def test_peculiarities_of_few_clients_are_no_groups():
    rng = np.random.default_rng(0)
    fired = 0
    for _ in range(20):  # nearly the same in each round, so that any clustering replicates
        updates = rng.standard_normal((1, 8, 60)) + 0.1 * rng.standard_normal((6, 8, 60))
        looks = [look for _, look in Evidence(updates, distances=False).looks(HDBSCAN)]
        fired += looks[-1].agreement == looks[-2].agreement == 1
        assert groups(as_evidence(updates)).answer != "groups"
    assert fired >= 5, "without what is shared, they would be"


def test_a_client_between_two_groups_is_named():
    updates = sent("groups", noise=1.0)
    updates[:, 0] = (updates[:, 0] + updates[:, 1]) / 2
    assert groups(as_evidence(updates)).between == [0]


NAMES = [f"site {client}" for client in range(15)]


@pytest.mark.parametrize("form", ["npy", "npz", "watched", "csv", "indexed", "safetensors"])
def test_a_file_holds_what_was_written(form, tmp_path):
    updates = sent("groups", rounds=3, size=16).astype(np.float32)
    path, expected, names = tmp_path / f"it.{form}", updates, tuple(map(str, range(15)))
    if form == "npy":
        np.save(path, updates)
    elif form == "npz":
        np.savez(path, anything=updates)
    elif form == "watched":
        path, names = tmp_path / "it.npz", tuple(NAMES)
        expected = np.stack([cosine_divergence(own) for own in updates])
        np.savez(path, round=np.arange(3), clients=NAMES, divergence=expected)
    elif form == "safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"updates": updates}, path)
    else:
        pandas = pytest.importorskip("pandas")
        path, expected = tmp_path / "it.csv", updates[:1]
        named = form == "indexed"
        names = tuple(NAMES) if named else names
        table = pandas.DataFrame(updates[0], index=NAMES)
        table.to_csv(path, index=named, header=named)
    known = read(path)
    assert known.names == names and known.distances == (form == "watched")
    np.testing.assert_allclose(known.values, expected, rtol=1e-6)


MISTAKES = [
    (np.ones((3, 9)), "4 are needed"),
    (np.full((6, 9), np.inf), "infinite"),
    (np.ones(5), "the shape"),
    (np.array([["a"] * 5] * 5), "numbers"),
    (np.where(np.eye(6, 9) > 0, np.nan, 1), "give an absent client NaN everywhere"),
    (np.where(np.arange(6)[:, None] == 1, np.nan, np.ones((2, 6, 9))), "never there"),
    (np.where(np.arange(3)[:, None, None] == 1, np.nan, np.ones((3, 6, 9))), "no client was there"),
]


@pytest.mark.parametrize("values, reason", MISTAKES)
def test_what_cannot_be_used_is_refused_with_a_reason(values, reason):
    with pytest.raises(EvidenceError, match=reason):
        as_evidence(values)


def test_files_that_cannot_be_read_end_the_command_in_one_line(tmp_path, refuse):
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(3))
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    with (tmp_path / "renamed.npz").open("wb") as file:
        np.save(file, np.ones((5, 9)))
    for name, shape in (("long", (10**30,)), ("large", (10**13, 3))):
        described = {"descr": "<f8", "fortran_order": False, "shape": shape}
        with (tmp_path / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, described)
            file.write(b"\0" * 80)
    header = bytearray((tmp_path / "pickle.npy").read_bytes())
    header[10] ^= 1  # the brace of its dictionary
    (tmp_path / "header.npy").write_bytes(header)
    whole = (tmp_path / "two.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    (tmp_path / "empty.csv").write_bytes(b"")
    absent = [tmp_path / name for name in ("missing.csv", "it.docx", "no-record")]
    for path in (*tmp_path.iterdir(), *absent):
        refuse("groups", path)


def test_clients_of_ones_own_data_are_asked_by_training_on_them(tmp_path, capsys):
    digits = datasets.load("digits-8x8")
    images, split = shifts.make(digits, "quarter-turn", clients=12, samples=60, seed=3)
    pool = [*map(np.concatenate, zip(split.train, split.test, strict=True))]
    held = images.images[np.concatenate(pool), 0].numpy()
    labels = images.labels[np.concatenate(pool)].numpy()
    owners = np.repeat(np.arange(12), [*map(len, pool)])
    np.savez(tmp_path / "mine.npz", images=held, labels=labels, clients=owners)
    assert main(["groups", str(tmp_path / "mine.npz"), "--json", "-o", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] == "groups" and answer["rounds"] == evidence.ROUNDS
    assert adjusted_rand_score(split.clusters, answer["clusters"]) == 1


def test_a_record_tells_what_its_method_has_compared():
    records = PROJECT / "data" / "results"
    rows = records.glob("*/rounds.csv")
    some = next(path.parent for path in sorted(rows) if "distances" in path.open().readline())
    known = read(some)
    assert known.distances and known.rounds <= 2
    assert read(some.name).values.tolist() == known.values.tolist()


def test_the_id_of_a_record_may_have_a_dot():
    places = (PROJECT / "data" / "results").glob("fedcref-*.*/record.json")
    with pytest.raises(EvidenceError, match="has no distances of clients"):
        read(next(places).parent.name)


@pytest.mark.parametrize("columns", [list("abcde"), range(5)])
def test_a_tables_index_may_have_a_name(tmp_path, columns):
    pandas = pytest.importorskip("pandas")
    updates = sent("groups", rounds=1, size=5)[0]
    table = pandas.DataFrame(updates, columns=columns).rename_axis("client")
    table.to_csv(tmp_path / "it.csv")
    np.testing.assert_allclose(read(tmp_path / "it.csv").values[0], updates)


@pytest.mark.parametrize("name, options", [("site", {}), (None, {"index": False})])
def test_columns_that_pandas_has_counted_are_no_client(tmp_path, name, options):
    pandas = pytest.importorskip("pandas")
    updates = sent("groups", rounds=1, size=5)[0]
    index = pandas.RangeIndex(100, 100 + len(updates), name=name)
    pandas.DataFrame(updates, index=index).to_csv(tmp_path / "it.csv", **options)
    np.testing.assert_allclose(read(tmp_path / "it.csv").values[0], updates)


def test_too_few_clients_are_refused_before_the_training(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).random((60, 8, 8))
    parts = {"labels": np.arange(60) % 2, "clients": np.arange(60) // 20}
    np.savez(tmp_path / "mine.npz", images=pixels, **parts)
    monkeypatch.setattr(evidence, "Federation", None)  # it is not called
    with pytest.raises(EvidenceError, match="4 are needed"):
        read(tmp_path / "mine.npz")


def test_other_arrays_beside_updates_do_not_matter(tmp_path):
    updates = sent("groups", rounds=3, size=5)
    np.savez(tmp_path / "it.npz", updates=updates, about=np.array([{"lr": 0.1}]))
    np.testing.assert_allclose(read(tmp_path / "it.npz").values, updates)


def test_a_folder_may_be_called_like_a_set_of_the_kit(tmp_path, monkeypatch):
    (tmp_path / "digits-8x8").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(datasets.DatasetError, match="has no folders"):
        read("digits-8x8")


@pytest.mark.skipif(sys.platform == "darwin", reason="has no such names")
def test_a_name_that_is_not_utf_8_has_a_page(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.npy")
    np.save(path, sent("groups", size=9))
    assert main(["groups", str(path), "-o", str(tmp_path / "out")]) == 0


def test_the_page_needs_no_other_file_and_its_cuts_hold(tmp_path, capsys):
    np.save(tmp_path / "it.npy", sent("groups"))
    assert main(["groups", str(tmp_path / "it.npy"), "-o", str(tmp_path / "page")]) == 0
    assert capsys.readouterr().out.startswith("groups: clients form groups")
    told = json.loads((tmp_path / "page" / "groups.json").read_text())
    assert told["answer"] == "groups" and told["k"] == 3 and told["rounds_needed"] >= 3
    shown = (tmp_path / "page" / "groups.html").read_text()
    assert "http" not in shown and 'src="data:image/png;base64,' in shown
    assert (tmp_path / "page" / "groups.png").read_bytes().startswith(b"\x89PNG")
    [cosine, *_] = told["cuts"]
    for threshold, count in ((cosine["low"], 2), (cosine["high"], 2)):
        gamma = cosine_divergence(sent("groups").sum(axis=0))
        for nudge in (1 - 1e-6, 1 + 1e-6):
            cut = AgglomerativeClustering(
                None, metric="precomputed", linkage="average", distance_threshold=threshold * nudge
            )
            inside = (nudge > 1) == (threshold == cosine["low"])
            assert (cut.fit(gamma).n_clusters_ == 3) == inside, count
    assert cosine["same"] and cosine["method"] == "Briggs"


@pytest.mark.slow
def test_the_method_splits_when_the_tool_first_says_groups():
    """Two ways to the same rule: the method in a run, and the tool that reads its updates."""
    home = hit_rate.SITUATIONS["four angles, 20 clients"].federation(301)
    method = methods.make("ocfl-replicated")
    [history] = simulation.run({"it": method}, home, 6, progress=False).summary().values()
    updates = torch.stack([*hit_rate.watched(home, 6)]).numpy()
    answer = groups(as_evidence(updates))
    assert history["clustering_round"] == answer.rounds_needed and history["ari"] == 1
    assert method.labels.tolist() == answer.clusters
    assert not method.sums.untyped_storage().nbytes(), "the sums are given up, with their memory"


def test_halves_of_samples_are_disjoint_and_together_all():
    home = hit_rate.SITUATIONS["IID, 8 clients"].federation(301)
    method = methods.make("ocfl-replicated", split="samples")
    method.setup(home.server, home.initial())
    even, odd = (method.broadcast(t).columns["subset"] for t in (0, 1))
    for client, (one, other) in enumerate(zip(even, odd, strict=True)):
        both = torch.cat([one, other]).sort().values
        assert both.tolist() == [*range(home.num_samples(client))]
        assert abs(len(one) - len(other)) <= 1


@pytest.mark.parametrize("name", hit_rate.TABLES)
def test_each_draw_is_counted_once_and_no_seed_is_left_out(name):
    _, situations, seeds, columns = hit_rate.TABLES[name]
    rows = hit_rate.read(name)
    assert list(rows) == ["situation", "seed", *columns.split(",")]
    draws = rows[["situation", "seed"]].drop_duplicates()
    counted = seeds[: draws["seed"].nunique()]  # seed after seed, so that none is chosen
    assert draws.values.tolist() == [[place, seed] for seed in counted for place in situations]
    assert not rows.duplicated([*rows.columns[:2], *({"method"} & {*rows})]).any()


def test_the_page_has_the_committed_counts():
    text = (PROJECT / "notebooks" / "are_there_groups.md").read_text(encoding="utf-8")
    assert hit_rate.filled(text) == text


@pytest.mark.slow
def test_a_counted_draw_comes_out_again():
    rows = hit_rate.read("groups").set_index(["situation", "seed"])
    kept = rows.loc["two angles, 10 clients", 160]
    [again] = hit_rate.asked(hit_rate.SITUATIONS["two angles, 10 clients"], 160)
    assert [again[name] for name in ("answer", "k", "one look")] == [
        *kept[["answer", "k", "one look"]]
    ]
    assert hit_rate.SEEDS[0] == 160 and (kept["truth"], kept["answer"]) == ("groups", "groups")


def test_halves_must_agree_on_the_groups_of_the_round_before():
    labels = np.array([0, 0, 1, 1])
    now = halves.Halves(np.zeros((4, 4)), labels, agreement=1.0, shared=1.0, scatter=0.0)
    assert halves.replicated(now, 1 - labels), "numbers of groups do not matter"
    assert not any(halves.replicated(now, other) for other in (None, np.array([0, 1, 0, 1])))
    for less in ({"agreement": 0.89}, {"shared": 0.19}):
        assert not halves.replicated(dataclasses.replace(now, **less), labels)
    far, cut = 1 - np.eye(11), clustering.make("kmeans", n_clusters=2)
    least = [halves.compare_matrices(own, own, cut).least for own in (far[:10, :10], far)]
    assert least == [halves.SHARED, -1]


def test_stability_is_the_mean_agreement_without_each_client_in_turn():
    gamma = cosine_divergence(sent("by degrees", rounds=1, clients=9)[0])
    cut = clustering.make("kmeans", n_clusters=3)
    labels, agreed = cut.fit_predict(gamma), []
    for client in range(9):
        less = np.delete(np.delete(gamma, client, 0), client, 1)
        agreed.append(adjusted_rand_score(np.delete(labels, client), cut.fit_predict(less)))
    assert stability(gamma, labels, cut) == pytest.approx(np.mean(agreed))
    assert np.mean(agreed) < 0.99


def test_each_cut_has_the_heights_of_its_methods_linkage():
    places = np.array([0.0, 1, 3, 7])
    far = np.abs(np.subtract.outer(places, places))
    answer = Answer("groups", "", 2, [0, 0, 0, 1], 1, None, 1.0, 1.0, 1.0, [], [], far)
    ends = {"Briggs": (2.5, 17 / 3), "FedClust": (3, 7), "StoCFL": (2, 4), "PACFL": (2.5, 5.25)}
    for own in page.cuts(as_evidence(far), answer):
        assert (own.low, own.high) == pytest.approx(ends[own.method.split()[0].strip(",")])
    moved = page.cuts(as_evidence(np.c_[places, np.ones(4), np.zeros(4)]), answer)
    for own, name in zip(moved[1:4], ("Briggs", "FedClust", "StoCFL"), strict=True):
        assert (own.low, own.high) == pytest.approx(ends[name])
    assert (moved[4].low, moved[5].high) == pytest.approx((np.hypot(2.75, 1), np.hypot(7, 1)))
