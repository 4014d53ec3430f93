"""Clipping, noise, and the ε that they give."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import first_jobs
from scipy import stats

from cflkit import methods, simulation
from cflkit.federation import Jobs, LocalTraining, Privacy
from cflkit.federation.privacy import epsilon


def test_long_updates_are_shortened_and_short_ones_stay():
    models = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    jobs = Jobs(models, torch.tensor([0, 1, 1]), torch.arange(3))
    trained = torch.tensor([[4.0, 5.0], [0.3, 0.4], [0.0, 0.0]])
    Privacy(clip=2.5, noise=0.0)(trained, jobs, 0, reported=True)
    torch.testing.assert_close(trained, torch.tensor([[2.5, 3.0], [0.3, 0.4], [0.0, 0.0]]))


OTHERS = {"client": 1, "round": 1, "model": 1, "seed": 1, "subset": [torch.arange(3)]}
OTHERS |= {"weights": [torch.rand(5)], "anchor": [torch.zeros(4000)]}
OTHERS |= {"training": LocalTraining(penalty="proximal", strength=0.1)}


@pytest.mark.parametrize("name", OTHERS)
def test_noise_is_independent_for_other_trainings_and_seeds(name):
    def noise(client=0, round=0, model=0, seed=0, **more):
        models = torch.full((1, 4000), float(model))
        trained = models.clone()
        jobs = Jobs(models, torch.tensor([0]), torch.tensor([client]), **more)
        Privacy(clip=1.0, noise=1.0, seed=seed)(trained, jobs, round, reported=True)
        return (trained - models)[0].numpy()

    other = noise(**{name: OTHERS[name]})
    np.testing.assert_array_equal(noise(), noise(), "the same again")
    assert abs(np.corrcoef(noise(), other)[0, 1]) < 0.06


def test_methods_in_lockstep_get_the_same_noise(federate):
    """FedAvg and OCFL before its clustering ask for the same trainings."""
    federation = federate("linear").with_hooks(Privacy(0.5, 0.1))
    lines = {"FedAvg": methods.make("fedavg", weighting="equal"), "OCFL": methods.make("ocfl")}
    history = simulation.run(lines, federation, 1, progress=False)
    assert torch.equal(lines["FedAvg"].models, lines["OCFL"].models)
    assert history.trained == federation.clients


@pytest.mark.parametrize("engine", ["threads", "stacked"])
def test_what_clients_send_has_the_bound_and_the_noise(federate, engine):
    usual = federate("linear", engine=engine)
    private = usual.with_hooks(Privacy(clip=0.5, noise=0.2))
    jobs = first_jobs(usual)
    plain, sent = usual.train(jobs, 0) - jobs.models, private.train(jobs, 0) - jobs.models
    shortened = plain * (0.5 / plain.norm(dim=1, keepdim=True)).clamp(max=1)
    assert (plain.norm(dim=1) > 0.5).any(), "the bound does something"
    noise = (sent - shortened) / (0.5 * 0.2)
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    assert noise.numel() == usual.clients * usual.parameters


@pytest.mark.slow
def test_models_that_stay_at_their_clients_have_no_noise(federate):
    """FedAvg begins with the same trainings, but its clients report them."""

    def after_a_round(*hooks):
        lines = {name: methods.make(name) for name in ("fedavg", "local", "ditto")}
        federation = federate("linear").with_hooks(*hooks)
        return lines, simulation.run(lines, federation, 1, progress=False)

    plain, _ = after_a_round()
    private, history = after_a_round(Privacy(0.1, 1.0))
    assert torch.equal(private["local"].models, plain["local"].models)
    assert torch.equal(private["ditto"].personal, plain["ditto"].personal)
    assert not torch.equal(private["fedavg"].models, plain["fedavg"].models)
    assert not torch.equal(private["ditto"].models, plain["ditto"].models)
    # FedAvg and Ditto share the common training; what is reported and what is kept differ
    assert history.trained == history.requested - 6


@pytest.mark.parametrize(
    "name, options",
    [("ifca", {"k": 2}), ("fedsac", {}), ("pacfl", {}), ("signatures", {}), ("flux", {})],
)
def test_methods_that_ever_ask_for_more_than_models_are_refused_at_once(federate, name, options):
    """The error names the methods that ask, and no others."""
    federation = federate("linear").with_hooks(Privacy(1.0, 1.0))
    federation.train = None  # it is not called
    line_up = {"FedAvg": methods.make("fedavg"), "mine": methods.make(name, **options)}
    with pytest.raises(ValueError, match=r"^mine: what is asked .* federation without privacy"):
        simulation.run(line_up, federation, 12, progress=False)


def test_federations_with_privacy_answer_no_other_requests(federate):
    federation = federate("linear").with_hooks(Privacy(1.0, 1.0))
    jobs = first_jobs(federation, [0])
    for asked in (federation.losses, federation.embed, partial(federation.ask, partial(print))):
        with pytest.raises(ValueError, match="have no noise, and would tell about the clients'"):
            asked(jobs)


def test_networks_with_buffers_are_refused(federate, normalised):
    with pytest.raises(ValueError, match="has buffers"):
        federate(normalised).with_hooks(Privacy(1.0, 1.0))


# --- ε --------------------------------------------------------------------------------------------


NODES, WEIGHTS = np.polynomial.legendre.leggauss(300)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 30), st.integers(1, 50), st.floats(1e-8, 1e-2))
def test_epsilon_is_where_the_mass_above_the_ratio_is_delta(noise, trainings, delta):
    """By its definition: δ is the mass by which N(s, 1) exceeds e^ε times N(0, 1)."""
    found = epsilon(noise, trainings, delta)
    signal = 2 * np.sqrt(trainings) / noise
    # N(s, 1) exceeds e^ε N(0, 1) to the right of this point
    edge = found / signal + signal / 2
    x = edge + (NODES + 1) * 10  # the mass beyond is below 1e-20
    ratio = np.exp(np.minimum(found + stats.norm.logpdf(x), 700))
    mass = (10 * WEIGHTS * np.clip(stats.norm.pdf(x - signal) - ratio, 0, None)).sum()
    if found > 0:
        assert mass == pytest.approx(delta, rel=1e-4, abs=1e-12)
    else:
        assert mass <= delta


def test_epsilon_of_known_cases():
    # Gaussian differential privacy with μ = 1 is (ε, δ) = (1, 0.1269) (Dong et al., Corollary 1)
    assert epsilon(2.0, 1, 0.12693673750664397) == pytest.approx(1.0)
    assert (epsilon(0.0, 1), epsilon(1.0, 0), epsilon(1e9, 1)) == (np.inf, 0.0, 0.0)
    assert 1e20 < epsilon(1e-9, 1000) < np.inf, "no overflow"


@pytest.mark.parametrize("given", [(np.nan, 1), (-1.0, 1), (1.0, -1), (1.0, 1, 0.0), (1.0, 1, 1.0)])
def test_epsilon_refuses_what_is_out_of_bounds(given):
    with pytest.raises(ValueError, match="needs noise"):
        epsilon(*given)
