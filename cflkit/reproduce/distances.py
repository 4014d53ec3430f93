"""EMD-CFL with the distances between trained parameters that Table 9 of its paper has."""

import torch
from torch import Tensor

from cflkit.divergence import pairwise
from cflkit.federation import Conversation
from cflkit.methods.emd_cfl_variants import EMDCFLVariant
from cflkit.simulation.mixing import trainings


class MeasuredEMDCFL(EMDCFLVariant):
    """EMD-CFL that also compares the models of the round in which all clients train first."""

    def round(self, t: int) -> Conversation[None]:
        """Run a round of EMD-CFL; the first one adds distances to the scalars."""
        if not bool(self.scores.isnan().all()):
            yield from super().round(t)
            return
        trained = yield from trainings(super().round(t))
        if trained is not None and len(trained[0]) == self.server.clients:
            self.scalars |= self.parameter_distances(trained[0])

    def parameter_distances(self, trained: Tensor) -> dict[str, float]:
        """Compute whether models that start from one model end nearer within clusters (Table 9).

        Parameters
        ----------
        trained : Tensor
            ``[m, P + Q]``, the models that all clients have trained from the same model.

        Returns
        -------
        dict of str to float
            Mean Euclidean distances over pairs of clients, for the last layer, for all linear
            layers and for all parameters: over the pairs within the clusters found (NaN if there
            are none), and over all pairs.
        """
        first, second = torch.triu_indices(len(trained), len(trained), offset=1)
        within = self.labels[first] == self.labels[second]
        linear = self.server.places(self.server.linear_layers)
        parts = {
            "last_layer": trained[:, self.server.last_layer().to(trained.device)],
            "linear_layers": trained[:, linear.to(trained.device)],
            "parameters": trained[:, : self.server.parameters],
        }
        measures = {}
        for name, part in parts.items():
            distances = torch.from_numpy(pairwise(part, "euclidean"))[first, second]
            measures[f"{name}_within"] = float(distances[within].mean())
            measures[f"{name}_overall"] = float(distances.mean())
        return measures
