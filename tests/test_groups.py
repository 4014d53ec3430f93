"""The question about groups: its measures, its files, its answers, its page and its hit rate."""

import dataclasses
import io
import json
import os
import sys

import hit_rate
import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import cflkit.groups
from cflkit import clustering, datasets, halves, methods, simulation
from cflkit.divergence import cosine_divergence
from cflkit.groups import NOTES, Answer, EvidenceError, as_evidence, evidence, groups, page, read
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


def seen(kind, look):
    """Make what is known of clients: of all rounds, of one, of those that came, or distances."""
    if look == "distances":  # which do not tell noise from what persists
        return np.stack([cosine_divergence(own) for own in sent(kind, noise=0.5)])
    if look == "one look":
        return sent(kind, noise=0)[0]
    if look == "updates":
        return sent(kind)
    updates = sent(kind, rounds=30)
    gone = np.random.default_rng(1).random(updates.shape[:2]) < 1 / 3
    return np.where(gone[:, :, None], np.nan, updates)


@pytest.mark.parametrize("kind", ["groups", "by degrees", "alike"])
@pytest.mark.parametrize("look", ["updates", "distances", "absent", "one look"])
def test_each_answer_is_given_where_it_is_true(kind, look):
    known = as_evidence(seen(kind, look))
    answer = groups(known)
    assert answer.answer == kind and answer.several == (look != "one look")
    assert bool(answer.notes) == (kind != "groups" or look in ("one look", "distances"))
    mixed = [np.random.default_rng(t).permutation(rows) for t, rows in enumerate(known.values)]
    warned = [NOTES[-1] in a.notes for a in (answer, groups(as_evidence(np.stack(mixed))))]
    assert not warned[0] and warned[1] >= (look == "updates")
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
        looks = [look for _, look in as_evidence(updates).looks(HDBSCAN)]
        fired += looks[-1].agreement == looks[-2].agreement == 1
        assert groups(as_evidence(updates)).answer != "groups"
    assert fired >= 5, "without what is shared, they would be"


def test_a_client_between_two_groups_is_named():
    updates = sent("groups", noise=1.0)
    updates[:, 0] = (updates[:, 0] + updates[:, 1]) / 2
    assert groups(as_evidence(updates)).between == [0]


NAMES = tuple(f"site {client}" for client in range(15))
NUMBERS = tuple(map(str, range(15)))
UPDATES = sent("groups", rounds=3, size=5).astype(np.float32)
APART = np.stack([cosine_divergence(own) for own in UPDATES])
ARRAYS = {
    "npz": {"anything": UPDATES},
    "npz beside others": {"updates": UPDATES, "about": np.array([{"lr": 0.1}])},
    "npz beside labels": {"updates": UPDATES, "labels": np.arange(15)},
    "npz of a watched strategy": {"round": np.arange(3), "clients": NAMES, "divergence": APART},
}


@pytest.mark.parametrize("form", ["npy", "safetensors", *ARRAYS])
def test_a_file_holds_what_was_written(form, tmp_path):
    path = tmp_path / f"it.{form.split()[0]}"
    if form == "npy":
        np.save(path, UPDATES)
    elif form == "safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"updates": UPDATES}, path)
    else:
        np.savez(path, **ARRAYS[form])
    known, watched = read(path), form == "npz of a watched strategy"
    assert as_evidence(UPDATES.astype(np.float16)).values.dtype == np.float32
    assert known.distances == watched and known.names == (NAMES if watched else NUMBERS)
    np.testing.assert_allclose(known.values, APART if watched else UPDATES, rtol=1e-6)


BARE = {"header": False, "index": False}
COUNTED = pandas.RangeIndex(100, 115)  # as pandas counts clients, and columns from 0


TABLES = [
    (None, None, BARE, NUMBERS),
    (None, None, {"index": False}, NUMBERS),
    (NAMES, None, {}, NAMES),
    (pandas.RangeIndex(15, name="client"), list("abcde"), {}, NUMBERS),
    (COUNTED.rename("site"), None, {}, tuple(map(str, COUNTED))),
    (COUNTED.rename("site"), list("abcde"), {}, tuple(map(str, COUNTED))),
]


@pytest.mark.parametrize("index, columns, options, names", TABLES)
def test_a_table_may_have_a_head_and_names(tmp_path, index, columns, options, names):
    pandas.DataFrame(UPDATES[0], index, columns).to_csv(tmp_path / "it.csv", **options)
    known = read(tmp_path / "it.csv")
    assert known.names == names
    np.testing.assert_allclose(known.values[0], UPDATES[0], rtol=1e-6)


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


def written(write, *values, **options):
    """Return the bytes that one of NumPy's functions writes into a file."""
    file = io.BytesIO()
    write(file, *values, **options)
    return file.getvalue()


def claiming(*shape):
    """Return a file of 80 bytes whose head claims another shape."""
    head = {"descr": "<f8", "fortran_order": False, "shape": shape}
    return written(np.lib.format.write_array_header_1_0, head) + b"\0" * 80


PICKLE = written(np.save, np.array([{}]), allow_pickle=True)
TWO = written(np.savez, a=np.ones(3), b=np.ones(3))
UNREADABLE = {
    "broken.npy": b"nothing",
    "broken.safetensors": b"nothing",
    "cut.npz": TWO[: len(TWO) // 2],
    "empty.csv": b"",
    "head.npy": PICKLE[:10] + b"z" + PICKLE[11:],
    "it.docx": b"",
    "large.npy": claiming(10**13, 3),
    "long.npy": claiming(10**30),
    "pickle.npy": PICKLE,
    "renamed.npz": written(np.save, np.ones((5, 9))),
    "two.npz": TWO,
}


def test_files_that_cannot_be_read_end_the_command_in_one_line(tmp_path, refuse, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits-8x8").mkdir()  # not the set of this name
    for name, contents in UNREADABLE.items():
        (tmp_path / name).write_bytes(contents)
    for name in (*UNREADABLE, "missing.csv", "no-record"):
        refuse("groups", name)
    assert "has no folders" in refuse("groups", "digits-8x8")


def test_clients_of_ones_own_data_are_asked_by_training_on_them(tmp_path, printed):
    digits = datasets.load("digits-8x8")
    images, split = shifts.make(digits, "quarter-turn", clients=12, samples=60, seed=3)
    pool = [*map(np.concatenate, zip(split.train, split.test, strict=True))]
    held = images.images[np.concatenate(pool), 0].numpy()
    labels = images.labels[np.concatenate(pool)].numpy()
    owners = np.repeat(np.arange(12), [*map(len, pool)])
    np.savez(tmp_path / "mine.npz", images=held, labels=labels, clients=owners)
    words = "groups", tmp_path / "mine.npz", "--json", "-o", tmp_path / "out"
    answer = json.loads(printed(*words))
    assert answer["answer"] == "groups" and answer["rounds"] == evidence.ROUNDS
    assert adjusted_rand_score(split.clusters, answer["clusters"]) == 1


RECORDS = PROJECT / "data" / "results"


def test_a_record_tells_what_its_method_has_compared():
    rows = sorted(RECORDS.glob("*/rounds.csv"))
    some = next(path.parent for path in rows if "distances" in path.open().readline())
    known = read(some)
    assert known.distances and known.rounds <= 2
    assert read(some.name).values.tolist() == known.values.tolist()
    with_a_dot = next(RECORDS.glob("fedcref-*.*/record.json")).parent.name
    with pytest.raises(EvidenceError, match="has no distances of clients"):
        read(with_a_dot)


def test_too_few_clients_are_refused_before_the_training(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).random((60, 8, 8))
    parts = {"labels": np.arange(60) % 2, "clients": np.arange(60) // 20}
    np.savez(tmp_path / "mine.npz", images=pixels, **parts)
    monkeypatch.setattr(evidence, "Federation", None)  # it is not called
    with pytest.raises(EvidenceError, match="4 are needed"):
        read(tmp_path / "mine.npz")


def test_the_page_needs_no_other_file(tmp_path, printed):
    name = "it.npy" if sys.platform == "darwin" else os.fsdecode(b"not UTF-8: \xff.npy")
    np.save(tmp_path / name, sent("groups"))
    shown = printed("groups", tmp_path / name, "-o", tmp_path / "page")
    assert shown.startswith("groups: clients form groups")
    told = json.loads((tmp_path / "page" / "groups.json").read_text())
    assert told["answer"] == "groups" and told["k"] == 3 and told["rounds_needed"] >= 3
    assert told["cuts"][0]["method"] == "Briggs" and told["cuts"][0]["same"]
    shown = (tmp_path / "page" / "groups.html").read_text()
    assert "http" not in shown and 'src="data:image/png;base64,' in shown
    assert (tmp_path / "page" / "groups.png").read_bytes().startswith(b"\x89PNG")


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
    place, seed = "two angles, 10 clients", hit_rate.SEEDS[0]
    kept = hit_rate.read("groups").set_index(["situation", "seed"]).loc[place, seed]
    [again] = hit_rate.asked(hit_rate.SITUATIONS[place], seed)
    assert kept["answer"] == "groups"
    assert all(kept[name] == again[name] for name in ("truth", "answer", "k", "one look"))


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
    assert cflkit.groups.stability(gamma, labels, cut) == pytest.approx(np.mean(agreed))
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
