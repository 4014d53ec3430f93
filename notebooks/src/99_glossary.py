# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Glossary and notation
#
# This page explains the symbols, terms, methods and measures of the lessons. Use it beside them. It has four parts:
#
# - [Notation](#notation): the symbols in formulas, with their shapes and units;
# - [Terms](#terms): the vocabulary, in alphabetical order;
# - [Methods](#methods): the abbreviations in the papers' tables, and the names that the kit has for them;
# - [Measures](#measures): the columns of the papers' tables, and what they contain.
#
# A linked number, such as [03](03_ocfl_temperature.ipynb), leads to the notebook that first uses or explains the entry.
# Every term has an anchor: a link to `99_glossary.ipynb#ari` leads to ARI.
#
# The papers have short names here. "The first OCFL paper" and "the extended OCFL paper" are the two papers by Zuziak et
# al. The names "EMD-CFL" and "FedCRef" stand for a paper and also for the method that it proposes.

# %% [markdown]
# <a id="notation"></a>
#
# ## Notation
#
# "Shape" is the shape of an array: $[m, P]$ is a matrix with $m$ rows and $P$ columns. Where a letter has different
# meanings, its row says so, and the last table of this part collects the most important of these letters.
#
# ### Federated training
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $m$ | The number of clients. The OCFL papers also write $n$, and FedCRef writes $N$. | whole number | [01](01_federated_averaging.ipynb) |
# | $i$, $j$ | The numbers of two clients, from 0. | whole numbers | [01](01_federated_averaging.ipynb) |
# | $t$ | A round. Formulas and code count rounds from 0; figures, tables and records count them from 1. | whole number | [01](01_federated_averaging.ipynb) |
# | $n_i$ | The number of training samples of client $i$. | whole number | [01](01_federated_averaging.ipynb) |
# | $n$ | In 01, the sum of all $n_i$. The letter has other meanings in 02, 04, 05 and 06. | whole number | [01](01_federated_averaging.ipynb) |
# | $\theta$ | The trainable parameters of a model, in one vector. In FedCRef's paper, in 06b and in 96, the threshold $\vartheta$ has the same letter. | $[P]$ | [01](01_federated_averaging.ipynb) |
# | $\theta^t$ | The model that clients receive in round $t$. | $[P]$ | [01](01_federated_averaging.ipynb) |
# | $\theta_i^t$ | The model that client $i$ has after its local training in round $t$. | $[P]$ | [01](01_federated_averaging.ipynb) |
# | $f_i(\theta)$ | The mean loss of the model $\theta$ over the training samples of client $i$. | loss | [01](01_federated_averaging.ipynb) |
# | $f(\theta)$ | The mean of all $f_i(\theta)$ with the weights $n_i/n$. Federated averaging minimises it. | loss | [01](01_federated_averaging.ipynb) |
# | $\Delta_i^t$ | The [update](#update) of client $i$ in round $t$: $\theta_i^t - \theta^t$. | $[P]$ | [01](01_federated_averaging.ipynb) |
# | $C$ | The fraction of clients that train in a round of McMahan et al.'s FedAvg. In the lesson, all clients train. | between 0 and 1 | [01b](01b_drift_measured.ipynb) |
# | $\beta_1$ | The momentum of a server that treats the mean update as a gradient. | between 0 and 1 | [01b](01b_drift_measured.ipynb) |
# | $P$ | The number of trainable parameters of a model. | whole number | [03b](03b_ocfl_controls.ipynb) |
#
# ### Data of the clients
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $(x, y)$ | A sample: an image $x$ and its class $y$. | pair | [02b](02b_four_scenarios.ipynb) |
# | $\varphi_c$ | The distribution of classes in the cluster $c$ of clients. The first OCFL paper writes $\varphi_i$ for a whole data-generating distribution. | distribution of $y$ | [02b](02b_four_scenarios.ipynb) |
# | $\alpha$ | In 02, the concentration of a [Dirichlet](#dirichlet-split) distribution. FedCRef and GradCAM have another $\alpha$. | positive number | [02b](02b_four_scenarios.ipynb) |
# | $N$ | In 02, the number of samples in the pool from which a client draws. The letter has other meanings in 06 and 07. | whole number | [02b](02b_four_scenarios.ipynb) |
# | $n$ | In 02, the number of [draws](#draws) of a client. | whole number | [02b](02b_four_scenarios.ipynb) |
# | $k_0$, $k_1$ | The numbers of samples that clients 0 and 1 keep (exercise 2 of 02b). | whole numbers | [02b](02b_four_scenarios.ipynb) |
#
# ### OCFL
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $\gamma_{ij}$ | The cosine distance of the updates of clients $i$ and $j$. | number in $[0, 2]$ | [03](03_ocfl_temperature.ipynb) |
# | $\Gamma$ | The [divergence matrix](#divergence-matrix) with the entries $\gamma_{ij}$. FedCRef's Algorithm 1 writes $\Gamma$ for its graph of local clusters. | $[m, m]$ | [03](03_ocfl_temperature.ipynb) |
# | $p$ | The order of the norm of $\Gamma$. It is 2 in the papers' code and in the lessons. The letter has another meaning in 06. | number from 1 | [03](03_ocfl_temperature.ipynb) |
# | $\lambda$ | The bound that scales the norm of $\Gamma$: $\lambda = (m(m-1)\,2^p)^{1/p}$. The extended OCFL paper calls it the maximal divergence constant. | positive number | [03b](03b_ocfl_controls.ipynb) |
# | $T$, $T(\Gamma)$, $T_t$ | The [temperature](#temperature), and the temperature in round $t$. In 05, $T$ is a transport plan. In Algorithm 1 of the OCFL papers, $T$ is also the last round. | number in $[0, 1]$ | [03](03_ocfl_temperature.ipynb) |
# | $T_{-1}$ | The value that counts as the temperature before the first round. The first OCFL paper prints $-\infty$. The extended paper, its code and the kit have $+\infty$. | $+\infty$ or $-\infty$ | [03b](03b_ocfl_controls.ipynb) |
# | $w$ | The window: the number of rounds in the moving average of the temperature. | whole number from 1 | [03b](03b_ocfl_controls.ipynb) |
# | $\bar T_t$ | The mean of the last $w$ temperatures up to round $t$. | number in $[0, 1]$ | [03b](03b_ocfl_controls.ipynb) |
#
# ### Sattler and Briggs
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $c$, $\lvert c \rvert$ | A cluster of clients, and the number of its members. In 07, $c$ is a class of images. | set, whole number | [02b](02b_four_scenarios.ipynb), [04](04_sattler_and_briggs.ipynb) |
# | $\varepsilon_1$ | Sattler's first threshold. A cluster may split if the norm of its mean update is below $\varepsilon_1$. | length in the units of the parameters | [04](04_sattler_and_briggs.ipynb) |
# | $\varepsilon_2$ | Sattler's second threshold. The largest norm of a member's update must be above $\varepsilon_2$. | length in the units of the parameters | [04](04_sattler_and_briggs.ipynb) |
# | $\bar\Delta^t$ | The mean update in round $t$. | $[P]$ | [04b](04b_an_autopsy.ipynb) |
# | $h$ | The height at which Briggs' rule cuts a [dendrogram](#dendrogram). | cosine distance, in $[0, 2]$ | [04](04_sattler_and_briggs.ipynb) |
# | $n$ | In the part on Briggs, the number of rounds of federated averaging before the clustering. | whole number | [04b](04b_an_autopsy.ipynb) |
# | $s_{\text{in}}$, $s_{\text{out}}$ | The cosine similarity of two updates from one true cluster, and from two true clusters. | numbers in $[-1, 1]$ | [04b](04b_an_autopsy.ipynb) |
# | $\gamma_{max}$ | A noise level of members' updates in Sattler et al.'s separation condition. It is no entry of $\Gamma$, and the kit does not check it. | number | [04b](04b_an_autopsy.ipynb) |
#
# ### EMD-CFL
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $a$, $b$ | Two samples of points, with equal weights on the points of each sample. | $[n_a, d]$, $[n_b, d]$ | [05b](05b_emd_cfl_controls.ipynb) |
# | $n$, $n_a$, $n_b$ | The numbers of points in these samples. | whole numbers | [05b](05b_emd_cfl_controls.ipynb) |
# | $a_{(k)}$ | The $k$-th smallest value of a sample in one dimension. | number | [05b](05b_emd_cfl_controls.ipynb) |
# | $W(a, b)$ | The [earth mover's distance](#earth-movers-distance) of two samples. | units of the cost; in $[0, 2]$ for cosine distances | [05b](05b_emd_cfl_controls.ipynb) |
# | $T$, $T_{ij}$ | In 05, the transport plan: the share of all mass that goes from point $i$ of $a$ to point $j$ of $b$. Elsewhere, $T$ is the temperature. | $[n_a, n_b]$ | [05b](05b_emd_cfl_controls.ipynb) |
# | $c_{ij}$ | The cost per unit of mass from point $i$ to point $j$. In EMD-CFL, it is the cosine distance of two embeddings. | number in $[0, 2]$ | [05b](05b_emd_cfl_controls.ipynb) |
# | $c$, $x$, $A$, $q$ | The costs, the plan written in one row, and the constraints $A x = q$ of the linear programme. | $[n_a n_b]$, $[n_a n_b]$, $[n_a + n_b,\ n_a n_b]$, $[n_a + n_b]$ | [05b](05b_emd_cfl_controls.ipynb) |
# | $D_i$ | The distribution of the embeddings of client $i$. | distribution | [05b](05b_emd_cfl_controls.ipynb) |
# | $h_i$ | The last layer of client $i$'s model, in the theorem of 05b. | function | [05b](05b_emd_cfl_controls.ipynb) |
# | $L$ | In 05, the [Lipschitz constant](#lipschitz-constant) of last layers. | number | [05](05_emd_cfl.ipynb) |
# | $\lambda$ | In 05, the sum of two clients' errors with the one last layer that suits both best. | error | [05](05_emd_cfl.ipynb) |
# | $g_i$ | The model of client $i$ without its last layer. It maps an image to an embedding. | function | [05b](05b_emd_cfl_controls.ipynb) |
# | $X_i^{train}$, $X_i^{val}$ | The training and the validation images of client $i$. | sets of images | [05b](05b_emd_cfl_controls.ipynb) |
# | $R_{ij}$ | The random matrix that clients $i$ and $j$ share, and that the server does not know. | $[k, d]$, where $k$ is 90 % of $d$ by default | [05b](05b_emd_cfl_controls.ipynb) |
# | $r_i$ | The [reference distance](#reference-distance) of client $i$. | units of the cost | [05](05_emd_cfl.ipynb) |
# | $s_{ij}$ | The [score](#score) of clients $i$ and $j$, seen through the model of $i$. It can be negative. | $[m, m]$, units of the cost | [05](05_emd_cfl.ipynb) |
# | $\varepsilon$ | The threshold of EMD-CFL. Two clients agree if both scores are below $\varepsilon$. It is not related to $\varepsilon_1$ and $\varepsilon_2$. | units of the cost | [05](05_emd_cfl.ipynb) |
# | $\mu$ | The strength of FedProx's [proximal term](#proximal-term). | number from 0 | [05b](05b_emd_cfl_controls.ipynb) |
#
# ### FedCRef
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $N$ | In FedCRef's paper, the number of clients; the lessons write $m$. | whole number | [06b](06b_fedcref_controls.ipynb) |
# | $S$ | The number of images that a client holds of each of its classes. | whole number | [96](96_report_fedcref.ipynb) |
# | $K$ | In 06, the number of local clusters that a client forms; the paper writes $K_i$. The paper's "global $K$" is the number of classes in the whole federation. In 07, $K$ is a number of channels. | whole number | [06b](06b_fedcref_controls.ipynb) |
# | $q$, $r$ | In 06, a local cluster of client $i$ and a local cluster of client $j$. The paper writes $q$ and $p$. | whole numbers | [06](06_fedcref.ipynb) |
# | $x_k$, $\hat x_k$ | Image $k$, and its reconstruction by an autoencoder. | pixels in $[0, 1]$ | [06b](06b_fedcref_controls.ipynb) |
# | $e_k$ | The [reconstruction error](#reconstruction-error) of image $k$: the mean squared difference of pixels. The paper leaves the kind of error open. | number in $[0, 1]$ | [06](06_fedcref.ipynb) |
# | $e_k^{\,iq}$, $e_k^{\,jr}$ | The errors of the networks of two local clusters on image $k$ of $q$. The paper writes $E_{jp \to iq}$ for the vector of errors of a network of client $j$ on the images of $q$. | numbers in $[0, 1]$ | [06b](06b_fedcref_controls.ipynb) |
# | $d_k$ | The absolute difference of these two errors. | number in $[0, 1]$ | [06](06_fedcref.ipynb) |
# | $\tilde d_k$ | The difference $d_k$ after min-max scaling over all images $l$ of the local cluster. | number in $[0, 1]$ | [06](06_fedcref.ipynb) |
# | $\vartheta$ | In FedCRef, the largest scaled difference that counts as small. The paper, 06b and 96 write $\theta$, which elsewhere is a vector of parameters. | number in $[0, 1]$ | [06](06_fedcref.ipynb) |
# | $\alpha$ | In FedCRef, the share of images whose difference must be small: 0.75. The package's option `alpha` has it in per cent: 75. | number in $[0, 1]$ | [06](06_fedcref.ipynb) |
# | $\tau$ | The agreement of new and old local clusters from which a client stops refining. Algorithm 1 of the OCFL papers has an unexplained $\tau$. The option `tau` of FedOpt is a third quantity: the adaptivity of Reddi et al. | [ACC](#acc) in $[0, 1]$ | [06b](06b_fedcref_controls.ipynb) |
# | $p$ | In the text on ACC, the dirtiness. In deviation 8, the overlap fraction. | number in $[0, 1]$ | [06b](06b_fedcref_controls.ipynb), [96](96_report_fedcref.ipynb) |
# | $n$ | In deviation 8 of FedCRef, the number of clients that hold a class. | whole number | [96](96_report_fedcref.ipynb) |
#
# ### Lessons 07 to 10, and the ledger
#
# | symbol | meaning | shape or unit | first used in |
# |---|---|---|---|
# | $c$ | In 07, the class that is explained. | class | [07](07_explaining_cluster_models.ipynb) |
# | $K$, $A^k$ | The number of channels of a convolution (07b), and its channel $k$ after the ReLU. | whole number; height × width | [07](07_explaining_cluster_models.ipynb) |
# | $Z$ | The number of positions $(i, j)$ in a channel. | whole number | [07](07_explaining_cluster_models.ipynb) |
# | $y^c$ | The score of class $c$ before softmax. | number | [07](07_explaining_cluster_models.ipynb) |
# | $\alpha_k^c$ | GradCAM's weight of channel $k$ for class $c$: the mean gradient of $y^c$ over the channel. | number | [07](07_explaining_cluster_models.ipynb) |
# | $L^c$ | GradCAM's map for class $c$, before it is enlarged. | height × width, from 0 | [07](07_explaining_cluster_models.ipynb) |
# | $p_c$ | The probability that the model gives to class $c$. | number in $[0, 1]$ | [10](10_privacy_and_clients_that_come_and_go.ipynb) |
# | $N$, $k$ | In the text on noise in 07b, the number of pixels of an image, and the number of pixels changed so far. | whole numbers | [07b](07b_explanations_controls.ipynb) |
# | $h$ | In 08, the height of a bump. | number | [08](08_tutorial_022.ipynb) |
# | $e_y$, $\epsilon$ | In 08b, the vector with a 1 in place $y$, and the noise of a sample. | $[32]$; $[32]$ | [08b](08b_tutorial_022_controls.ipynb) |
# | $\varphi$, $\Phi$ | In 08, the density and the distribution function of the normal distribution. | numbers | [08](08_tutorial_022.ipynb) |
# | $s_{ik}$, $\tau$ | In 08, the share of client $i$ in cluster $k$, and the temperature of these shares. | number in $[0, 1]$; positive number | [08b](08b_tutorial_022_controls.ipynb) |
# | $\theta^{(i)}$ | In 08, the mixture of models of client $i$. | $[P]$ | [08b](08b_tutorial_022_controls.ipynb) |
# | $F_{kl}$, $d_{kl}$ | In 08, the mean loss of model $k$ on the clients of cluster $l$, and the larger excess of two such losses. | losses | [08b](08b_tutorial_022_controls.ipynb) |
# | $k$ | In 09 and 10, the number of clusters, or of models, that a method is told. | whole number | [09](09_a_map_of_the_methods.ipynb) |
# | $\lambda$, $\mu$ | In 09b, weights of [proximal terms](#proximal-term). | numbers from 0 | [09b](09b_catalogue.ipynb) |
# | $M$, $M_{ij}$ | In 09, the [mixing matrix](#mixing-matrix) of a round, and the weight of client $j$'s trained model in the model of client $i$. | $[m, m]$ | [09](09_a_map_of_the_methods.ipynb) |
# | $\tilde\theta_j$ | In 09, the model that client $j$ has just trained. | $[P]$ | [09](09_a_map_of_the_methods.ipynb) |
# | $\pi_k$, $q_k(x)$ | In the exercises of 09, the share of model $k$ at a client, and its [responsibility](#responsibility) for the image $x$. | numbers in $[0, 1]$ | [09](exercises/09_a_map_of_the_methods_exercises.ipynb) |
# | $\varepsilon$, $\delta$ | In 10, the two numbers of [differential privacy](#differential-privacy). | non-negative number; probability | [10](10_privacy_and_clients_that_come_and_go.ipynb), $\delta$ in [10b](10b_privacy_and_change_controls.ipynb) |
# | $C$, $\sigma$ | In 10, the largest norm of an update after clipping, and the noise in units of $C$. | numbers | [10](10_privacy_and_clients_that_come_and_go.ipynb) |
# | $T$, $s$ | In 10, the number of rounds, and the distance $2\sqrt T/\sigma$ of the two worlds, in standard deviations. | whole number; number | [10b](10b_privacy_and_change_controls.ipynb) |
# | $\rho$, $\rho'$ | In 10, the cosine of two updates without noise, and with noise. | numbers in $[-1, 1]$ | [10](10_privacy_and_clients_that_come_and_go.ipynb) |
# | $g$, $\sigma^*$ | In 10b, the gap between the cosines within and between groups, and the noise from which the clusterer no longer sees it. | numbers | [10b](10b_privacy_and_change_controls.ipynb) |
# | $b_c$ | In 10, the bias of the output for class $c$. | number | [10](10_privacy_and_clients_that_come_and_go.ipynb) |
# | $p$, $\bar o$ | In 90, a published number, and our mean over seeds. | as printed | [90](90_ledger.ipynb) |
# | $h$ | Half the width of the 90 % t-interval of our mean. | as printed | [90](90_ledger.ipynb) |
# | $s$, $n$ | In 90, the standard deviation of our seeds, and their number. | as printed; whole number | [90](90_ledger.ipynb) |
# | $t_{0.95,\,n-1}$ | The 95 % quantile of Student's t-distribution with $n - 1$ degrees of freedom. | number | [90](90_ledger.ipynb) |
# | $\delta_1$, $\delta_2$ | The largest distances from $p$ that count for our mean, and for our interval. | as printed | [90](90_ledger.ipynb) |
# | $r$ | In 90, the round in which a method clusters. | whole number from 1 | [90](90_ledger.ipynb) |
# | $H$ | The entropy of a grouping, in the formulas of homogeneity and completeness. | nats | [90](90_ledger.ipynb) |
#
# ### Shapes in the code
#
# Docstrings of `cflkit` write shapes with these letters.
#
# | symbol | meaning |
# |---|---|
# | `m` | the number of clients |
# | `J` | the number of jobs; a job is one model on one client |
# | `P` | the number of trainable parameters of a model |
# | `Q` | the number of [buffer](#batchnorm-buffers-and-counters) values of a model; a model on the server is a row of `P + Q` numbers |
# | `K` | the number of models on the server; in FedCRef, the number of local clusters of a client |
# | `n` | the number of samples of a client, or of a batch |
# | `d` | the number of dimensions of an embedding, or of a sample |
# | `L` | the number of local clusters of all clients together (FedCRef) |
# | `G` | the number of communities (FedCRef) |
# | `M` | the number of models that are compared on a client's samples (FedCRef) |
#
# ### Letters with several meanings
#
# | letter | meanings |
# |---|---|
# | $\theta$ | the parameters of a model; the threshold of FedCRef in its paper, in 06b and in 96 (06 writes $\vartheta$) |
# | $\alpha$ | the concentration of a Dirichlet distribution (02); the share of images that must agree (06); the weights of GradCAM (07) |
# | $T$ | the temperature (03, 04); the transport plan (05); the number of rounds (10); the last round in Algorithm 1 of the OCFL papers |
# | $C$ | the fraction of clients that train (01); the largest norm of an update (10) |
# | $s$ | a score (05); a share of a client in a cluster (08); a distance in standard deviations (10); a standard deviation (90) |
# | $k$ | a rank, or the rows of a random projection (05); a channel (07); a number of clusters (09, 10) |
# | $\lambda$ | the bound of a norm (03b); the joint error of two clients (05); the weight of a proximal term (09b) |
# | $L$ | a Lipschitz constant (05); GradCAM's map (07); the number of local clusters, in code |
# | $A$ | a channel (07); the constraints of a linear programme (05b); a term of the ARI |
# | $h$ | the height of a cut (04); a last layer (05b); the height of a bump (08); half the width of an interval (90) |
# | $p$ | the order of a norm (03); the dirtiness or the overlap fraction (06); with an index, a probability (07); a local cluster in the FedCRef paper; a published number (90) |
# | $K$ | the number of local clusters (06); the number of channels (07); the number of local steps in Algorithm 1 of the OCFL papers |
# | $c$ | a cluster of clients (02, 04); a cost (05); a class (07) |
# | $n$ | all training samples (01); draws (02); rounds before a clustering (04); points of a sample (05); holders of a class (06); clients in the OCFL papers; the number of our seeds (90) |
# | $N$ | the size of a pool (02); the number of clients in FedCRef (06); the number of pixels (07) |
# | $r$ | with an index, a reference distance (05); a local cluster (06); a round (90) |
# | $\gamma$, $\Gamma$ | cosine distances and their matrix (03); $\gamma_{max}$ of Sattler et al. (04); the graph of local clusters in the FedCRef paper |
# | $\varepsilon$ | with an index, Sattler's thresholds (03, 04); without one, the threshold of EMD-CFL (05), or the ε of differential privacy (10) |
# | $\tau$ | FedCRef's threshold of stability (06); the temperature of soft shares (08); the threshold of an attack (10); an unexplained argument in Algorithm 1 of the OCFL papers; the option `tau` of FedOpt |

# %% [markdown]
# <a id="terms"></a>
#
# ## Terms
#
# A name in brackets says to which paper or method a term belongs. "See" gives the notebook that explains the term
# first.
#
# ### A and B
#
# <a id="acc"></a>**ACC** (clustering accuracy). ACC is the share of samples that are right when clusters are matched
# with classes one to one, in the best possible way. The [Hungarian algorithm](#hungarian-algorithm) finds the matching.
# See [06](06_fedcref.ipynb).
#
# <a id="accuracy"></a>**Accuracy.** Accuracy is the share of samples whose predicted class is right. In records of
# FedCRef, the column `accuracy` contains [ACC](#acc). See [01](01_federated_averaging.ipynb).
#
# <a id="active-client"></a>**Active client** (FedCRef). An active client still trains its own networks and refines its
# local clusters. It becomes inactive when a refinement changes few of its samples. See [06b](06b_fedcref_controls.ipynb).
#
# <a id="affinity-propagation"></a>**Affinity propagation.** Affinity propagation is a clusterer (an algorithm that makes clusters)
# that takes similarities and chooses the number of clusters itself. Each cluster has an [exemplar](#exemplar). See
# [03b](03b_ocfl_controls.ipynb).
#
# <a id="agglomerative-clustering"></a>**Agglomerative clustering.** Agglomerative clustering begins with every point
# alone and repeatedly merges the two nearest groups. A threshold, or a number of clusters, says when to stop. See
# [04b](04b_an_autopsy.ipynb).
#
# <a id="ami"></a>**AMI** (adjusted mutual information). AMI measures the agreement of two groupings by their
# mutual information. It is 1 for the same grouping, and 0 on average for random ones. See [90](90_ledger.ipynb), and the
# [formula](#measures).
#
# <a id="ari"></a>**ARI** (adjusted Rand index). ARI measures the agreement of two groupings by pairs of members. It is
# 1 for the same grouping, near 0 for random ones, and negative for worse ones. See [00](00_start_here.ipynb), and the
# [formula](#measures).
#
# <a id="as-intended"></a>**As intended.** A method as intended has the choices of its own authors, or of the rest of
# the paper. Where the intended choice is the kit's own, the table of differences in [04b](04b_an_autopsy.ipynb)
# says so.
#
# <a id="as-published"></a>**As published.** A method as published has the choices of the code behind a paper's numbers,
# errors included. A name such as "Briggs as published" marks it. See [03b](03b_ocfl_controls.ipynb) and
# [04b](04b_an_autopsy.ipynb).
#
# <a id="association"></a>**Association** (FedCRef). An association is an edge between local clusters of two clients. It
# is added when their networks reconstruct the images of both clusters similarly well. See [06](06_fedcref.ipynb).
#
# <a id="autoencoder"></a>**Autoencoder.** An autoencoder is a network that compresses an image to a short code and
# reconstructs the image from it. It needs no labels. See [06](06_fedcref.ipynb).
#
# <a id="backdoor"></a>**Backdoor.** A backdoor is a feature that some clients add to their images so that it predicts
# the class. A model that relies on this feature can be fooled by changing it. See [05](05_emd_cfl.ipynb) and [95](95_report_emd_cfl.ipynb).
#
# <a id="bandwidth"></a>**Bandwidth.** The bandwidth is the radius within which [mean shift](#mean-shift) averages
# points. In the kit, scikit-learn estimates it from the data. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="baseline-image"></a>**Baseline image.** The baseline image has the values that replace absent pixels in
# [insertion](#insertion) and [deletion](#deletion). The default is zero, which is black. See
# [07b](07b_explanations_controls.ipynb).
#
# <a id="baseline-method"></a>**Baseline method.** A baseline method is a method with which a new one is compared. See
# [03b](03b_ocfl_controls.ipynb).
#
# <a id="batchnorm-buffers-and-counters"></a>**BatchNorm buffers and counters.** The buffers of a BatchNorm layer are
# its values that gradients do not train. They are the running means, the running variances and a counter of batches.
# See [04b](04b_an_autopsy.ipynb).
#
# <a id="bipartition"></a>**Bipartition.** A bipartition is a split of one cluster into two. Sattler's method repeats
# it. See [04b](04b_an_autopsy.ipynb).

# %% [markdown]
# ### C
#
# <a id="calibration"></a>**Calibration.** Calibration is the agreement of confidence and accuracy. A calibrated model that
# gives its answers a probability of 0.7 is right for 70 % of such images. See [07b](07b_explanations_controls.ipynb).
#
# <a id="central-test-set"></a>**Central test set.** The central test set has test images of all classes, which belong
# to no client. The OCFL papers call the server "orchestrator", and this set the orchestrator's test set. The shifted
# data of lesson 05 have none. See [01](01_federated_averaging.ipynb) and [02b](02b_four_scenarios.ipynb).
#
# <a id="checkpoint"></a>**Checkpoint.** A checkpoint is a file with the state of an unfinished run. After an
# interruption, the same code can continue from it. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="claim"></a>**Claim.** A claim is a sentence of a lesson about a result, whose truth a cell of the lesson
# evaluates. Its truth is also measured over several seeds.
#
# <a id="client"></a>**Client.** A client is a participant of federated learning that holds data of its own, for
# instance a hospital or an office. See [00](00_start_here.ipynb).
#
# <a id="client-drift"></a>**Client drift.** During local training, each client moves towards the optimum of its own
# data. The mean of the trained models is then not the model that training on all data would give. See
# [01](01_federated_averaging.ipynb).
#
# <a id="cluster"></a>**Cluster** (of clients). A cluster is a group of clients that share a model. A true cluster is a
# group whose data come from one [data-generating process](#data-generating-process). See [00](00_start_here.ipynb).
#
# <a id="clustered-federated-learning"></a>**Clustered federated learning** (CFL). Clustered federated learning finds
# clusters of clients with similar data, and trains one model per cluster. See [00](00_start_here.ipynb).
#
# <a id="clustering-round"></a>**Clustering round.** The clustering round is the round in which a method splits the
# clients, counted from 1. Table 2 of the extended OCFL paper has it, by a rule that is explained [below](#measures).
# See [03b](03b_ocfl_controls.ipynb).
#
# <a id="communication-cost"></a>**Communication cost.** The communication cost is the amount of data that clients
# receive and send. The kit counts bytes per method and round, in `bytes_down` and `bytes_up`. See
# [03b](03b_ocfl_controls.ipynb).
#
# <a id="community"></a>**Community** (FedCRef). A community is a [connected component](#connected-component) of at
# least two local clusters. Each community trains one model by federated averaging. See [06](06_fedcref.ipynb).
#
# <a id="completeness"></a>**Completeness.** Completeness is a measure that is 1 if every true cluster lies within one
# found cluster. A single found cluster therefore has completeness 1. See [90](90_ledger.ipynb), and the
# [formula](#measures).
#
# <a id="concept-shift"></a>**Concept shift.** Under concept shift, the same image has different labels at two clients. See
# [05b](05b_emd_cfl_controls.ipynb) and [08b](08b_tutorial_022_controls.ipynb).
#
# <a id="confidence"></a>**Confidence.** Confidence is the probability that a model gives to the class that is
# explained. See [07](07_explaining_cluster_models.ipynb).
#
# <a id="congruent-clients"></a>**Congruent clients** (Sattler). Clients are congruent if one model is best for all of them,
# and incongruent otherwise. See [04](04_sattler_and_briggs.ipynb).
#
# <a id="connected-component"></a>**Connected component.** In a connected component of a graph, a path of edges joins
# every two nodes. No edge leaves the component. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="cosine-distance"></a>**Cosine distance.** The cosine distance is one minus the cosine of the angle between two
# vectors. It is 0 for the same direction, 1 for a right angle and 2 for opposite directions. See
# [03](03_ocfl_temperature.ipynb).
#
# <a id="critical-difference-diagram"></a>**Critical-difference diagram.** A critical-difference diagram shows the
# average ranks of methods on a line. A bar connects methods whose difference is not significant. See
# [97](97_report_explanations.ipynb).

# %% [markdown]
# ### D to F
#
# <a id="data-generating-process"></a>**Data-generating process** (DGP). A data-generating process is the distribution
# from which samples $(x, y)$ are drawn. The clients of one true cluster draw from the same process. See
# [02b](02b_four_scenarios.ipynb).
#
# <a id="deep-embedded-clustering"></a>**Deep embedded clustering** (DEC). Deep embedded clustering begins with k-means
# on the codes of an autoencoder. The codes and the cluster centres are then trained together. See
# [06b](06b_fedcref_controls.ipynb).
#
# <a id="deletion"></a>**Deletion.** Deletion is a test of a [saliency map](#saliency-map). It replaces pixels by the
# baseline image, the most salient pixels first, and records the probability of the explained class. The score is the
# area under this curve, and a low area is good. See [07](07_explaining_cluster_models.ipynb).
#
# <a id="dendrogram"></a>**Dendrogram.** A dendrogram is a tree of all merges of agglomerative clustering. The height of
# a merge is the distance of the two groups. See [04](04_sattler_and_briggs.ipynb).
#
# <a id="differential-privacy"></a>**Differential privacy.** A mechanism is differentially private if each outcome has
# nearly the same probability, whichever data one client has. The number ε bounds how much these probabilities differ:
# one is at most $e^\varepsilon$ times the other, up to a small probability δ. Here it protects all data of a client (client level). With *local* privacy, each client adds its own noise; with *central*
# privacy, a trusted server adds it to means. See [10](10_privacy_and_clients_that_come_and_go.ipynb).
#
# <a id="dirichlet-split"></a>**Dirichlet split.** A Dirichlet split divides the samples of each class among the
# clients, in shares drawn from a Dirichlet distribution with concentration $\alpha$. A small $\alpha$ gives very
# unequal shares. In the kit, such a split has no true clusters to find. See [02b](02b_four_scenarios.ipynb).
#
# <a id="dirtiness"></a>**Dirtiness** (FedCRef). The dirtiness is the probability that an image lies in a wrong local
# cluster at the start. The experiment moves images on purpose, to control how bad the start is. See
# [06](06_fedcref.ipynb).
#
# <a id="divergence-matrix"></a>**Divergence matrix** ($\Gamma$). The divergence matrix has the cosine distances of all
# pairs of clients' updates. If the clients are sorted by true cluster and the updates tell the clusters apart, these appear as blocks of small values on its diagonal. See
# [03](03_ocfl_temperature.ipynb).
#
# <a id="draws"></a>**Draws.** The number of draws says how many times a client draws a sample from the pool. In the
# OCFL scenarios, clients draw with replacement and drop repeated samples, so that they hold fewer samples than draws.
# See [02](02_when_clients_disagree.ipynb) and [02b](02b_four_scenarios.ipynb).
#
# <a id="drift"></a>**Drift** of a client's data. The data of a client change, so that the client belongs to another group. This
# is not [client drift](#client-drift), which happens in every local training. See
# [10b](10b_privacy_and_change_controls.ipynb). [11](11_clients_that_come_and_go.ipynb) has another scene of it.
#
# <a id="earth-movers-distance"></a>**Earth mover's distance** (EMD). The earth mover's distance is the least cost of
# moving the mass of one sample to the places of another. For equal numbers of points on a line, it is the mean distance
# between points of the same rank. See [05](05_emd_cfl.ipynb).
#
# <a id="embedding"></a>**Embedding.** An embedding is the vector that enters the last layer of a network. It describes
# an image by what the network has learned. See [05](05_emd_cfl.ipynb).
#
# <a id="engine"></a>**Engine.** An engine is a way to run many local trainings at once. The engine `threads` runs
# clients side by side on the cores of a CPU. The engine `stacked` trains many models as one stacked tensor. See
# [06b](06b_fedcref_controls.ipynb).
#
# <a id="exemplar"></a>**Exemplar.** An exemplar is the member that represents a cluster of [affinity
# propagation](#affinity-propagation). See [03b](03b_ocfl_controls.ipynb).
#
# <a id="feature-shift"></a>**Feature shift.** Under feature shift, or covariate shift, clients differ in their images, and every
# image keeps its one right label. See [05](05_emd_cfl.ipynb).
#
# <a id="federated-averaging"></a>**Federated averaging** (FedAvg). In each round of federated averaging, the server
# sends one model to the clients. It then averages the models that they have trained. See [00](00_start_here.ipynb) and
# [01](01_federated_averaging.ipynb).
#
# <a id="federated-learning"></a>**Federated learning.** In federated learning, clients train a model together, and
# their data stay where they are. They exchange models or updates in place of data. See [00](00_start_here.ipynb).
#
# <a id="fedprox"></a>**FedProx.** FedProx is federated averaging in which a [proximal term](#proximal-term) keeps each
# client's model near the model that it received. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="few-shot-clustering"></a>**Few-shot clustering.** In few-shot clustering, the clustering step is repeated a few
# times, for instance after new clients have joined. The OCFL papers write "Few-Shots Clustering", for a server that clusters samples of a large population, and
# updates the centroids each time. Compare [one-shot clustering](#one-shot-clustering). See [03b](03b_ocfl_controls.ipynb) and
# [11](11_clients_that_come_and_go.ipynb).
#
# <a id="fine-tuning"></a>**Fine-tuning.** A client fine-tunes the shared model by training it further on its own data. It
# is a simple way to personalise a model. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="friedman-test"></a>**Friedman test.** The Friedman test ranks the methods in every scenario. Then it tests
# whether the average ranks could differ by chance alone. See [97](97_report_explanations.ipynb).

# %% [markdown]
# ### G to K
#
# <a id="gf1"></a>**GF1.** GF1 is the mean macro-F1 of the clients' models on the [central test set](#central-test-set).
# The G stands for generalisation. See [02](02_when_clients_disagree.ipynb) and [03b](03b_ocfl_controls.ipynb).
#
# <a id="global-dec"></a>**Global DEC.** Global DEC is deep embedded clustering of all images in one place, as a
# comparison for FedCRef. See [06b](06b_fedcref_controls.ipynb).
#
# <a id="gradcam"></a>**GradCAM.** GradCAM makes a saliency map from the channels of a convolution. Each channel has a
# weight: the mean gradient of the class's score with respect to the channel. The map is the weighted sum of the channels, with negative values set to 0. See
# [07](07_explaining_cluster_models.ipynb).
#
# <a id="gradient-and-parameter-bounds"></a>**Gradient and parameter bounds** (EMD-CFL). By the paper's Theorem 2.4 (after Fallah et al., 2020), the distance between
# two clients' expected gradients is at most a constant times the earth mover's distance of their embeddings. By Corollary 2.5, so is the distance between their expected parameters after a round. So methods that compare
# gradients or parameters are related to EMD-CFL, but only in one direction: a small distance of embeddings makes gradients near, and near gradients need not come from near embeddings. See
# [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="hard-and-soft-clustering"></a>**Hard and soft clustering.** In hard clustering, every client belongs to one
# cluster. In soft clustering, a client can belong to several clusters, with weights. Both OCFL papers and EMD-CFL
# use hard clustering of clients. Lesson [08b](08b_tutorial_022_controls.ipynb) compares both.
#
# <a id="hash"></a>**Hash** (of a partition). The hash is a fingerprint of the contents, computed with SHA-256. It
# differs if any index or any true cluster differs. See [02b](02b_four_scenarios.ipynb).
#
# <a id="hdbscan"></a>**HDBSCAN.** HDBSCAN is a clusterer that finds dense groups in a matrix of distances, and chooses
# their number itself. Points outside all groups are [noise](#noise). See [03](03_ocfl_temperature.ipynb).
#
# <a id="holms-correction"></a>**Holm's correction.** Holm's correction raises the p-values of several tests, because
# many tests give some small p-values by chance. The smallest of $n$ p-values is multiplied by $n$, the next by $n - 1$,
# and so on. No corrected value is smaller than the one before. See [97](97_report_explanations.ipynb).
#
# <a id="homogeneity"></a>**Homogeneity.** Homogeneity is a measure that is 1 if every found cluster has members of one
# true cluster only. Clusters of one client therefore have homogeneity 1. See [90](90_ledger.ipynb), and the
# [formula](#measures).
#
# <a id="hungarian-algorithm"></a>**Hungarian algorithm.** The Hungarian algorithm finds the best one-to-one matching
# between two sets. Here it matches clusters with classes. See [06b](06b_fedcref_controls.ipynb).
#
# <a id="iid"></a>**IID** (independent and identically distributed). If the clients are IID, the data of all clients
# come from the same distribution. See [01](01_federated_averaging.ipynb).
#
# <a id="in-cluster-and-out-of-cluster"></a>**In-cluster and out-of-cluster.** In-cluster samples come from the test
# sets of a cluster's own clients. Out-of-cluster samples come from the test sets of all other clients. See
# [07b](07b_explanations_controls.ipynb).
#
# <a id="insertion"></a>**Insertion.** Insertion is a test of a [saliency map](#saliency-map). It starts from the
# baseline image and restores pixels, the most salient pixels first. The score is the area under the curve of the
# explained class's probability, and a high area is good. See [07](07_explaining_cluster_models.ipynb).
#
# <a id="isolated-cluster"></a>**Isolated cluster** (FedCRef). An isolated cluster is a local cluster without any
# association. See [06b](06b_fedcref_controls.ipynb).
#
# <a id="job"></a>**Job.** A job is one model paired with one client, which trains it or evaluates it. `Jobs` in the
# code holds several such pairs. See [01](01_federated_averaging.ipynb) and [02](02_when_clients_disagree.ipynb).
#
# <a id="johnson-lindenstrauss"></a>**Johnson–Lindenstrauss lemma.** The lemma says that a [random
# projection](#random-projection) to fewer dimensions nearly keeps the distances between points, with high probability, if there are not too few dimensions. See
# [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="k-means"></a>**k-means.** k-means is a clusterer that must be told the number of clusters. It puts each point
# into the cluster with the nearest centre, moves each centre to the mean of its points, and repeats both steps. See [03b](03b_ocfl_controls.ipynb).

# %% [markdown]
# ### L to N
#
# <a id="label-skew"></a>**Label skew.** Under label skew, clients have different shares of the classes. The images of one class
# come from the same distribution at all clients. See [03b](03b_ocfl_controls.ipynb) and [08b](08b_tutorial_022_controls.ipynb).
#
# <a id="learning-gap"></a>**Learning gap.** The learning gap is the difference between a model's F1 on a client's own
# test set and on the central test set. The two OCFL papers define it differently, as explained [below](#measures). See
# [03b](03b_ocfl_controls.ipynb).
#
# <a id="ledger"></a>**Ledger.** The ledger is the table of all numbers that the kit has from the papers' tables and figures, with ours where we have run the
# scenario. It says whether a number was reproduced. A *placebo* is the same comparison with our runs of another scenario. See
# [90](90_ledger.ipynb).
#
# <a id="linkage"></a>**Linkage.** The linkage is the rule for the distance of two groups in agglomerative clustering.
# It is the mean distance of their members (average), the largest (complete) or the smallest (single). Ward's linkage
# joins the two groups for which the sum of squared distances of the points from the means of their groups grows least. See [04](04_sattler_and_briggs.ipynb)
# and [08](08_tutorial_022.ipynb).
#
# <a id="lipschitz-constant"></a>**Lipschitz constant.** The Lipschitz constant is the largest factor by which a
# function can multiply the distance of two points. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="local-cluster"></a>**Local cluster** (FedCRef). A local cluster is a set of images of one client. It should
# contain one class, but the method sees no labels. See [06](06_fedcref.ipynb).
#
# <a id="local-epoch"></a>**Local epoch.** A local epoch is one pass of a client over its own training data. See
# [01](01_federated_averaging.ipynb).
#
# <a id="local-training"></a>**Local training.** Local training is what a client does in a round. It takes steps of
# gradient descent on its own data, starting from the model that it received. See [01b](01b_drift_measured.ipynb).
#
# <a id="local-training-as-a-baseline"></a>**Local training as a baseline.** Each client trains alone in all rounds, and
# nothing is sent. The kit's method `local` does this. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="lockstep"></a>**Lockstep.** In lockstep, all methods run round by round together. A local training that several
# methods ask for is run once and shared. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="macro-f1"></a>**Macro-F1.** F1 of a class is the harmonic mean of precision (the share of its predictions that are right) and recall (the share of its samples that are found). Macro-F1 is the mean of F1 over
# classes. Which classes count is a choice, which is explained [below](#measures). See
# [03b](03b_ocfl_controls.ipynb).
#
# <a id="manifest"></a>**Manifest.** The manifest is the file of a [partition](#partition). It has the samples and the
# true cluster of each client, the recipe and the [hash](#hash). See [02b](02b_four_scenarios.ipynb).
#
# <a id="mean-shift"></a>**Mean shift.** Mean shift is a clusterer that moves each point repeatedly to the mean of its
# surroundings. Points that end at the same place form a cluster. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="membership-inference"></a>**Membership inference.** Membership inference is an attack that asks whether a sample
# was among the training samples of a model. See [10b](10b_privacy_and_change_controls.ipynb).
#
# <a id="mixing-matrix"></a>**Mixing matrix.** The mixing matrix of a round has one row per client. Row $i$ has the weights
# with which the trained models of all clients enter the model that client $i$ predicts with. The rows sum to 1. See
# [09](09_a_map_of_the_methods.ipynb).
#
# <a id="moving-average"></a>**Moving average** (OCFL). The extended OCFL paper proposes to watch the mean of the last $w$ temperatures in
# place of a single one, so that a short rise does not fire the trigger. A moving average rises exactly when the temperature is higher than $w$ rounds before. See
# [03b](03b_ocfl_controls.ipynb).
#
# <a id="neighbourhood"></a>**Neighbourhood** (EMD-CFL). The neighbourhood of a client consists of all clients with
# which it agrees. Clients with identical neighbourhoods share a model. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="newcomer"></a>**Newcomer.** A newcomer is a client that joins after the clustering. It is attributed to the
# cluster whose updates have the smallest mean cosine distance to its own. See [03b](03b_ocfl_controls.ipynb) and
# [11](11_clients_that_come_and_go.ipynb).
#
# <a id="noise"></a>**Noise** (HDBSCAN). Noise consists of the clients that belong to no dense group. The kit can put
# them into one cluster together, as the OCFL authors' code does. It can also put each of them into a cluster of its
# own, or into the nearest cluster. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="noise-map"></a>**Noise map.** A noise map is a saliency map of random numbers, as a comparison for GradCAM. See
# [07b](07b_explanations_controls.ipynb).
#
# <a id="non-iid"></a>**Non-IID.** Non-IID is the opposite of [IID](#iid). The data of different clients come from
# different distributions. See [02b](02b_four_scenarios.ipynb).

# %% [markdown]
# ### O to R
#
# <a id="one-shot-clustering"></a>**One-shot clustering.** In one-shot clustering, the clients are clustered once, and
# the clusters do not change afterwards. OCFL, Briggs' method, PACFL and FedClust do this, for instance, and EMD-CFL if all clients train in every
# round. See [03](03_ocfl_temperature.ipynb).
#
# <a id="oracle"></a>**Oracle.** An oracle is a baseline method that is given the true clusters. It shows what perfect
# clustering would achieve. See [03](03_ocfl_temperature.ipynb).
#
# <a id="out-of-distribution"></a>**Out-of-distribution.** An image is out-of-distribution for a model if it is unlike the
# data that the model was trained on. For a cluster model, an example is an image of a class that no client of the cluster holds.
# See [07b](07b_explanations_controls.ipynb).
#
# <a id="overlap-and-balance"></a>**Overlap and balance.** Overlap and balance are the two switches of the OCFL
# scenarios. Overlap says whether true clusters share classes. Balance says whether classes are equally likely and
# clusters equally large. See [02](02_when_clients_disagree.ipynb).
#
# <a id="own-test-set"></a>**Own test set.** A client's own test set contains the client's test samples. In the OCFL
# scenarios, they are 30 % of the client's samples. Another client of the same cluster may train on some of them. See
# [02](02_when_clients_disagree.ipynb).
#
# <a id="paper-scale"></a>**Paper's scale.** A run at the paper's scale has the network, the data and the local training of the paper. Most of ours end when the clusters are final. Compare [reduced scale](#reduced-scale). See [90](90_ledger.ipynb).
#
# <a id="partial-participation"></a>**Partial participation.** With partial participation, only some clients train in
# each round. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="partition"></a>**Partition.** A partition says which samples each client holds, and which true cluster each
# client belongs to. See [02](02_when_clients_disagree.ipynb).
#
# <a id="perfect-associations"></a>**Perfect associations** (FedCRef). A run of FedCRef with perfect associations is given the
# true ones. The paper takes its ACC as an upper bound. In a few of our runs, FedCRef ends slightly above it. See [06b](06b_fedcref_controls.ipynb).
#
# <a id="perceptron"></a>**Perceptron** (multilayer perceptron, MLP). Here, a perceptron is a network of fully connected layers with one
# hidden layer of 64 units. See [00](00_start_here.ipynb).
#
# <a id="pf1"></a>**PF1.** PF1 is the mean macro-F1 of the clients' models on the clients' [own test
# sets](#own-test-set). The P stands for personalisation. See [02](02_when_clients_disagree.ipynb) and [03b](03b_ocfl_controls.ipynb).
#
# <a id="post-processing"></a>**Post-processing.** Whatever is computed from what a client has sent, without asking it again, has the same guarantee of
# [differential privacy](#differential-privacy). So a server that adds up old messages costs no privacy. See [10](10_privacy_and_clients_that_come_and_go.ipynb).
#
# <a id="protocol"></a>**Protocol.** A protocol is the rule by which a published number is computed from the rounds of a
# run. It is not always what the column's name says. See [90](90_ledger.ipynb).
#
# <a id="proximal-term"></a>**Proximal term.** A proximal term is a penalty that is added to the loss and grows with the
# distance from a given model. In FedProx, it is $\frac{\mu}{2}\lVert\theta - \theta^t\rVert^2$. See
# [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="random-projection"></a>**Random projection.** A random projection is the product of vectors with a random
# matrix that has fewer rows than columns. It reduces the number of dimensions and nearly keeps distances. See
# [05](05_emd_cfl.ipynb).
#
# <a id="reconstruction-error"></a>**Reconstruction error.** The reconstruction error says how much an autoencoder's
# output differs from its input. In the kit, it is the mean squared difference of pixels. See [06](06_fedcref.ipynb).
#
# <a id="record"></a>**Record.** A record is a folder with the parameters, the measures of every round and the
# circumstances of one run. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="reduced-scale"></a>**Reduced scale.** A run at the reduced scale is a smaller run of a paper's scenario, for
# two cores. It shows whether a mechanism works, and it does not replace the paper's experiment. See
# [03b](03b_ocfl_controls.ipynb) and [90](90_ledger.ipynb).
#
# <a id="reference-distance"></a>**Reference distance** (EMD-CFL). The reference distance is the earth mover's distance
# between a client's own training and validation embeddings. It estimates the distance of two samples from one
# distribution. See [05](05_emd_cfl.ipynb).
#
# <a id="refinement"></a>**Refinement** (FedCRef). In a refinement, a client sorts its images into local clusters again.
# It uses its own networks and those of the communities. See [06](06_fedcref.ipynb).
#
# <a id="responsibility"></a>**Responsibility** (FedEM). The responsibility of a model for a sample is the probability that
# the sample belongs to the model, given the sample's loss under each model and the models' shares at the client. The responsibilities of all models sum to 1. See
# [09b](09b_catalogue.ipynb).
#
# <a id="round"></a>**Round.** A round is one cycle of federated training. The server sends models, clients train, and
# the server averages. The EMD-CFL paper calls it a global epoch, and the OCFL papers also write "iteration". An
# iteration of FedCRef contains many rounds. See [00](00_start_here.ipynb) and [01](01_federated_averaging.ipynb).

# %% [markdown]
# ### S to W
#
# <a id="saliency-map"></a>**Saliency map.** A saliency map has one number per pixel, which says how important the pixel
# is for a model's answer. See [07](07_explaining_cluster_models.ipynb).
#
# <a id="scenario"></a>**Scenario.** A scenario is one experiment of a paper, for instance a data set, a number of
# clients, an overlap and a balance. See [02](02_when_clients_disagree.ipynb).
#
# <a id="score"></a>**Score** (EMD-CFL). The score of a pair of clients is the earth mover's distance of their
# embeddings minus the [reference distance](#reference-distance). It is near 0 for clients with similar data. See
# [05](05_emd_cfl.ipynb).
#
# <a id="secure-aggregation"></a>**Secure aggregation.** With secure aggregation, a server learns only the sum of the
# clients' updates, and no single one. Methods that compare single updates do not work with it as they are. See
# [10b](10b_privacy_and_change_controls.ipynb).
#
# <a id="seed"></a>**Seed.** A seed is the number from which random choices are derived. The same seed, with the same
# code on the same machine, gives the same run. The partition has a seed of its own in most lessons. See
# [00](00_start_here.ipynb).
#
# <a id="server"></a>**Server.** The server is the coordinator of federated learning. It sends models to clients, and
# averages what they send back. See [00](00_start_here.ipynb).
#
# <a id="signature"></a>**Signature** (Tutorial 022). A signature is what a client sends for the clustering: the gradient
# of its loss, the loss itself, or its model after local training. See [08](08_tutorial_022.ipynb).
#
# <a id="silhouette"></a>**Silhouette.** The silhouette is a measure of a clustering that needs no labels. It compares a
# point's distance to its own cluster with its distance to the nearest other cluster. See [06b](06b_fedcref_controls.ipynb).
#
# <a id="sinkhorn-regularisation"></a>**Sinkhorn regularisation.** Sinkhorn regularisation adds an entropy term to the
# problem of the earth mover's distance. The solution is then approximate, and for large samples it is found faster. See
# [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="temperature"></a>**Temperature** (OCFL). The temperature is a norm of the divergence matrix, divided by an
# upper bound. It is 0 when all updates have the same direction. See [03](03_ocfl_temperature.ipynb).
#
# <a id="trigger"></a>**Trigger** (OCFL). The trigger is the rule that decides when to cluster. It fires in the first
# round whose temperature is higher than the temperature before. See [03b](03b_ocfl_controls.ipynb).
#
# <a id="update"></a>**Update.** An update is the model after local training minus the model before. In the kit, it
# contains trainable parameters only, unless an option adds BatchNorm's buffers. See [01](01_federated_averaging.ipynb)
# and [03](03_ocfl_temperature.ipynb).
#
# <a id="validation-set"></a>**Validation set.** The validation set has images that a client holds back from its
# training images. EMD-CFL needs them for the reference distance and the scores. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="warm-up"></a>**Warm-up** (Tutorial 022). The warm-up consists of the rounds of federated averaging before the
# clustering. See [08](08_tutorial_022.ipynb).
#
# <a id="wasserstein-distance"></a>**Wasserstein distance.** The Wasserstein distances are a family of distances between
# distributions. If the cost is a metric, the [earth mover's distance](#earth-movers-distance) is the Wasserstein distance of
# order 1, and its symbol is $W$. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="worst-accuracy"></a>**Worst accuracy.** The worst accuracy is the smallest accuracy of all clients. The mean
# accuracy can be high while one client is served badly. See [05b](05b_emd_cfl_controls.ipynb).
#
# <a id="wrong-association"></a>**Wrong association** (FedCRef). A wrong association joins local clusters that stand for
# different classes. See [06](06_fedcref.ipynb).

# %% [markdown]
# <a id="methods"></a>
#
# ## Methods and their names in the papers' tables
#
# "Name in the kit" is the name for `methods.make`, with the name in the kit's figures and tables in brackets. "OCFL" as
# a source means both OCFL papers. Where a paper gives no long form of an abbreviation, the second column has the title
# of the paper that proposed the method, in italics.
#
# ### Methods that the kit has
#
# | abbreviation | full name or title | name in the kit | idea | source |
# |---|---|---|---|---|
# | <a id="fedavg"></a>FedAvg | federated averaging | `fedavg` (FedAvg) | The server averages the models that all clients have trained. | McMahan et al., AISTATS 2017; in tables of EMD-CFL |
# | <a id="fedavg-ft"></a>FedAvg-FT | *Salvaging federated learning by local adaptation*; *FedAvg with fine tuning* | `fedavg-ft` (FedAvg-FT) | Federated averaging, after which each client trains the common model once more on its own data, and predicts with the result. | Yu et al., 2020; Collins et al., NeurIPS 2022 |
# | <a id="bnc"></a>BNC | baseline, no clustering | `fedavg` with `weighting="equal"` (FedAvg) | All clients stay in one cluster, as in federated averaging. | OCFL |
# | <a id="fedopt"></a>FedOpt | *Adaptive federated optimization* | `fedopt` (FedOpt) | The server treats the mean update as a gradient, and applies an optimiser to it. The OCFL papers name FedOpt as their basis, with a server learning rate of 1. | Reddi et al., ICLR 2021 |
# | FedProx | *Federated optimization in heterogeneous networks* | `fedprox` (FedProx) | A penalty keeps each client's model near the model that it received. | Li et al., MLSys 2020; in tables of EMD-CFL |
# | <a id="scl"></a>SCL | *Clustered federated learning: model-agnostic distributed multitask optimization under privacy constraints* | `sattler` (Sattler) | A cluster is split in two when its mean update is small and some member's update is large. | Sattler et al., IEEE TNNLS 2021; in tables of OCFL |
# | <a id="cfl"></a>CFL | clustered federated learning | `sattler` (CFL) | In EMD-CFL's tables, CFL is Sattler et al.'s method. Elsewhere, CFL is the name of the whole field. | Sattler et al., IEEE TNNLS 2021; in tables of EMD-CFL |
# | <a id="bcl"></a>BCL | *Federated learning with hierarchical clustering of local updates to improve training on non-IID data*; its authors write FL+HC | `briggs` (Briggs) | After some rounds of federated averaging, one cut of a dendrogram of the updates gives the clusters. The printed numbers come from "Briggs as published". | Briggs et al., IJCNN 2020; in tables of OCFL |
# | <a id="ocfl"></a>OCFL | one-shot clustered federated learning | `ocfl` | All clients are clustered once, in the first round in which the temperature rises. | OCFL |
# | <a id="ocfl-km"></a>OCFL-KM | OCFL with k-means | `ocfl` with `clusterer="kmeans"` (OCFL-KM) | k-means on the rows of the divergence matrix is told the true number of clusters. | OCFL |
# | <a id="ocfl-aff"></a>OCFL-AFF | OCFL with affinity propagation | `ocfl` with `clusterer="affinity"` (OCFL-AFF) | Affinity propagation takes the negative divergence matrix as similarities. The printed numbers come from "OCFL-AFF as published". | OCFL |
# | <a id="ocfl-ms"></a>OCFL-MS | OCFL with mean shift | `ocfl` with `clusterer="meanshift"` (OCFL-MS) | Mean shift works on the rows of the divergence matrix. | OCFL |
# | <a id="ocfl-hdb"></a>OCFL-HDB, OCFL-HDBS, OCFL-HDBSCAN | OCFL with HDBSCAN | `ocfl` with `clusterer="hdbscan"` (OCFL-HDB) | HDBSCAN works on the distances of the divergence matrix. | OCFL |
# | <a id="emd-cfl"></a>EMD-CFL | clustered federated learning by the earth mover's distance | `emd-cfl` (EMD-CFL) | Clients are clustered once, by the earth mover's distances between their embeddings. | EMD-CFL |
# | Oracle | oracle baseline of EMD-CFL | `emd-cfl-oracle` (Oracle) | The true clusters replace the distances of EMD-CFL. | EMD-CFL |
# | <a id="ifca"></a>IFCA | iterative federated clustering algorithm | `ifca` (IFCA) | Each client tries all cluster models in every round, and trains the one with the smallest loss on its data. | Ghosh et al., NeurIPS 2020; in tables of EMD-CFL |
# | <a id="pacfl"></a>PACFL | *Efficient distribution similarity identification in clustered federated learning via principal angles between client data subspaces* | `pacfl` (PACFL) | Before training, clients are clustered by angles between the main directions of their pixels. | Vahidian et al., AAAI 2023; in tables of EMD-CFL |
# | <a id="flexcfl"></a>FlexCFL | *Flexible clustered federated learning for client-level data distribution shift* | `flexcfl` (FlexCFL) | Clients are clustered by the cosine similarities of their updates with the main directions of all updates. | Duan et al., IEEE TPDS 2022; in tables of EMD-CFL |
# | <a id="fesem"></a>FeSEM | *Multi-center federated learning: clients clustering for better personalization* | `fesem` (FeSEM) | Each client belongs to the cluster whose centre is nearest to its parameters, and each centre is the mean of its members. | Long et al., World Wide Web 2023; in tables of EMD-CFL |
# | <a id="fedclust"></a>FedClust | *FedClust: Optimizing federated learning on non-IID data through weight-driven client clustering* | `fedclust` (FedClust) | After a short training, clients are clustered once by the distances of part of their parameters. | Islam et al., 2024; in tables of EMD-CFL |
# | <a id="cfl-gp"></a>CFL-GP, printed CFLGP | *Clustered federated learning via gradient-based partitioning* | `cfl-gp` (CFLGP) | The server accumulates the gradients of each client, and clusters them again at intervals. | Kim et al., ICML 2024; in tables of EMD-CFL |
# | <a id="fedem"></a>FedEM | *Federated multi-task learning under a mixture of distributions* | `fedem` (FedEM) | Each client predicts with a weighted mixture of shared models, and expectation maximisation finds the weights (soft). | Marfoq et al., NeurIPS 2021; in tables of EMD-CFL |
# | <a id="fedrc"></a>FedRC | *FedRC: Tackling diverse distribution shifts challenge in federated learning by robust clustering* | `fedrc` (FedRC) | A mixture of models as in FedEM, whose weights are corrected for the frequencies of classes (soft). | Guo et al., ICML 2024; in tables of EMD-CFL |
# | <a id="fedsoft"></a>FedSoft | *FedSoft: Soft clustered federated learning with proximal local updating* | `fedsoft` (FedSoft) | Each client trains a model of its own, which proximal terms keep near several cluster models (soft). | Ruan and Joe-Wong, AAAI 2022; in tables of EMD-CFL |
# | <a id="fedce"></a>FedCE | *FedCE: Personalized federated learning method based on clustering ensembles* | `fedce` (FedCE) | Each client has a degree of membership in every cluster, from the losses of the cluster models (soft). | Cai et al., ACM Multimedia 2023; in tables of EMD-CFL |
# | <a id="pfedgraph"></a>pFedGraph | *Personalized federated learning with inferred collaboration graphs* | `pfedgraph` (pFedGraph) | Each client has a model of its own: a mean of all models, in which similar clients weigh more (no clusters). | Ye et al., ICML 2023; in tables of EMD-CFL |
# | <a id="fedsac"></a>FedSaC | *Balancing similarity and complementarity for federated learning* | `fedsac` (FedSaC) | As pFedGraph, but clients whose features complement each other also weigh more (no clusters). | Yan et al., ICML 2024; in tables of EMD-CFL |
# | <a id="scaffold"></a>SCAFFOLD | *SCAFFOLD: Stochastic controlled averaging for federated learning* | `scaffold` (SCAFFOLD) | One model for all clients. A correction of each local step keeps clients from drifting apart. | Karimireddy et al., ICML 2020 |
# | <a id="ditto"></a>Ditto | *Ditto: Fair and robust federated learning through personalization* | `ditto` (Ditto) | Beside the model of federated averaging, each client trains a personal model that is pulled to it. | Li et al., ICML 2021 |
# | <a id="fedrep"></a>FedRep | *Exploiting shared representations for personalized federated learning* | `fedrep` (FedRep) | Clients share all layers but the last one, which each client trains for itself. | Collins et al., ICML 2021 |
# | <a id="stocfl"></a>StoCFL | *Stochastic clustered federated learning* | `stocfl` (StoCFL) | Each client begins as its own cluster. In any round, clusters of participants merge if their clients move a common first model in similar directions. With all clients in each round, the kit's version gives the clusters and models of the authors' code in a test. | Zeng et al., 2023 |
# | <a id="clove"></a>CLoVE | *CLoVE: Personalized federated learning through clustering of loss vector embeddings* | `clove` (CLoVE) | Each client tells its mean loss with each of k models. In every round, k-means clusters these vectors, and each cluster gets another model. With all clients in each round and as many starts of k-means, the kit's version gives the clusters and models of the authors' code in a test. | Bhatia et al., 2025 |
# | <a id="feddrift"></a>FedDrift | *Federated learning under distributed concept drift* | `feddrift` (FedDrift) | At the beginning of a time step, a client whose loss has risen gets a model of its own. Two clusters merge if the model of each is nearly as good for the other's clients as their own model is. | Jothimurugesan et al., AISTATS 2023 |
# | <a id="flux"></a>FLUX | *FLUX: Efficient descriptor-driven clustered federated learning under arbitrary distribution shifts* | `flux` (FLUX) | In the fifth round, clients send means and deviations of their embeddings, of all samples and of each class. DBSCAN clusters them, with a radius that it takes from the distances themselves. | Fenoglio et al., NeurIPS 2025 |
# | <a id="fedcref"></a>FedCRef | federated cluster-wise refinement | `fedcref` (FedCRef) | Autoencoders of local clusters are compared between clients. Models of communities then refine the local clusters. | FedCRef |
# | Perfect associations | upper bound of FedCRef | `fedcref` with `associations="true"` (Perfect associations) | FedCRef is given the true associations. | FedCRef |
# | Global DEC | deep embedded clustering of all data in one place | no method; `sample_clustering.DEC` (Global DEC) | One clusterer sees the images of all clients. | Xie et al., ICML 2016; in tables of FedCRef |
# | – | *Clustered federated learning*, Tutorial 022 of unbitrium | `signatures` (Signatures) | After a warm-up, clients are clustered once by the gradients of their losses. The server is told the number of clusters. | Tutorial 022 |
# | – | – | `oracle` (oracle) | The true clusters are given from round 1. It is a comparison of the kit for OCFL, and no table of a paper has it. | the kit |
# | – | – | `ocfl-open`, `ocfl-replicated` (OCFL-replicated) | OCFL for clients that come and go; and OCFL that clusters when the sums of odd and of even rounds show the same clusters. No table of a paper has them. | the kit |
# | – | – | `local` (local) | Each client trains alone. It is a comparison of the kit, and no table of a paper has it. | the kit |
# | – | – | `fedcref` with `associations="none"` (Alone) | Clients refine their local clusters with their own networks only. It is a comparison of the kit, and no table of a paper has it. | the kit |
#
# The FedCRef paper mentions K-Fed, SR-FCA and UIFCA, but its tables have none of them. Of these, the kit has
# the server's part of k-FED ([06b](06b_fedcref_controls.ipynb#beside-k-fed)).
#
# <a id="where-the-field-moves"></a>**Where the field moves.** Some recent methods compare clients before any training, by what a large pretrained model makes of their images (for example FMCL, [arXiv 2604.27510](https://arxiv.org/abs/2604.27510)).
# And where large language models are tuned, a cluster shares a small adapter, and not a whole model (for example FedLEASE, [arXiv 2509.15087](https://arxiv.org/abs/2509.15087)). The kit has neither.
# A survey with a taxonomy of clustered federated learning is Ben Ali et al. ([arXiv 2501.17512](https://arxiv.org/abs/2501.17512)). The same group compared two methods over kinds of skew ([arXiv 2410.14212](https://arxiv.org/abs/2410.14212)).

# %% [markdown]
# <a id="measures"></a>
#
# ## Measures in the papers' tables
#
# "Name in the kit" is a column of `rounds.csv` in a record. The summary in `record.json` has the same names for the
# last round, and the prefix `mean_` for the mean over all rounds.
#
# ### OCFL
#
# | in the paper | name in the kit | what the printed numbers are |
# |---|---|---|
# | <a id="rand"></a>RAND | `ari` | The **adjusted** Rand index, as the mean over rounds 1 to 50. The captions say Rand index. A figure of the first paper says adjusted. |
# | AMI | `ami` | Adjusted mutual information, as the mean over rounds 1 to 50. In the rows of OCFL-HDB, it is the ARI again. |
# | <a id="com"></a>COM | `homogeneity` | **Homogeneity**, as the mean over rounds 1 to 50. The name stands for completeness, but the authors' code exchanges the arguments. |
# | dash in RAND, AMI and COM | – | All clients stayed in one cluster from the first round to the last. |
# | clustering round (Table 2) | `clustering_round` in the summary | The round in which the method clustered; for SCL, the round of its last split. The kit's summary has the first round that ends with more than one cluster. |
# | PF1 | `pf1`, `mean_pf1` | The mean over clients and over all rounds of macro-F1 on own test sets. |
# | GF1 | `gf1`, `mean_gf1` | The mean over clients and over rounds of macro-F1 on the central test set. The authors' code measures it before the aggregation of a round, so that each value belongs to the round before. The mean leaves out the first value, that of the initial model. The kit measures after the aggregation, so the ledger leaves out its last round. |
# | DIST (first paper) | not stored | $\lvert \text{PF1} - \text{GF1} \rvert$, the difference of the two means. |
# | LG, learning gap (extended paper) | `learning_gap` | The absolute difference of a model's scores on the client's own test set and on the central test set, client by client. In the kit, the score is macro-F1, and the gap is the mean over clients. |
# | AUC of insertion and deletion (Figures 6 and 7) | `insertion`, `deletion` | The area under the curve, as the mean over the images of a cluster. The figures show boxes over clusters. The ledger has the mean over the clusters of a run, which the summary calls `insertion_in-cluster` and so on. |
# | average rank in critical-difference diagrams | `stats.compare` | The mean rank over scenarios. Figure 8 gives rank 1 to the *highest* deletion, although a low deletion is good. |
#
# The rounds before the clustering count in the means of RAND, AMI and COM. They score 0 in all three. A method that
# clusters in round $r$ can therefore reach $(51 - r)/50$ at most. Rounds after the fiftieth do not count, although some
# runs of the papers are longer.
#
# ### EMD-CFL
#
# | in the paper | name in the kit | what the printed numbers are |
# |---|---|---|
# | Avg Acc | `accuracy` | The mean accuracy of the clients' models on own test sets, in per cent, at the end. In the kit, accuracies lie between 0 and 1. |
# | Worst Acc | `worst_accuracy` | The smallest accuracy of all clients, in per cent, at the end. |
# | Clean Acc | `clean_accuracy` | The mean accuracy of the target clients on their unchanged test images, in per cent, at the end. |
# | Backdoor Acc | `backdoor_accuracy` | The mean accuracy of the target clients on test images whose backdoor feature was manipulated, in per cent, at the end. |
# | ARI | `ari` | The adjusted Rand index at the end. A dash stands for methods without hard clusters. |
# | Hours | not stored per method | The duration of the training. A record of the kit has the minutes of the whole run. |
# | Hypothesis Only, Full Model (Table 9) | `linear_layers_within` and `_overall`, `parameters_within` and `_overall` | The mean distance between clients' parameters after the first round, within the clusters found and over all pairs. By the text, the hypothesis is the last layer. By the size of the printed distances on MNIST, it must be all linear layers there ([report 95](95_report_emd_cfl.ipynb)). The distances of the last layer alone are `last_layer_within` and `_overall`. |
#
# ### FedCRef
#
# | in the paper | name in the kit | what the printed numbers are |
# |---|---|---|
# | ACC init | `accuracy_start` in the summary | The mean over clients of [ACC](#acc) for the first local clusters. |
# | ACC End | `accuracy` | The mean over clients of ACC after the last iteration. |
# | Improvement (%) | computed from these two | $100\,(\text{ACC End} - \text{ACC init}) / \text{ACC init}$. |
# | Comm. Found (K), K Found | `communities` | The number of communities. For Global DEC, it is the number of clusters that was chosen. |
# | Wrong Ass. (%) | `wrong` | The kit and the authors' code count the share of associations between clusters of different classes. The paper's text counts local clusters in the wrong group. |
# | Isolated Cl. Start → End | `isolated_start`, `isolated` | The number of isolated clusters. At the start, all local clusters count as isolated. |
#
# ### Formulas
#
# **ARI.** Let $n_{ab}$ be the number of members that are in true cluster $a$ and in found cluster $b$. Let $n_a$ and
# $n_b$ be the sizes of these clusters, and $n$ the number of all members. With $S = \sum_{ab} \binom{n_{ab}}{2}$, $A =
# \sum_a \binom{n_a}{2}$, $B = \sum_b \binom{n_b}{2}$ and $E = AB / \binom{n}{2}$:
#
# $$\text{ARI} = \frac{S - E}{\frac12 (A + B) - E}.$$
#
# **AMI, homogeneity and completeness.** Let $U$ be the true grouping and $V$ the found one, $H$ the entropy and $I$ the
# mutual information. The expectation $\mathbb E[I]$ is over random groupings with the same sizes of clusters:
#
# $$\text{AMI} = \frac{I(U, V) - \mathbb E[I]}{\frac12 (H(U) + H(V)) - \mathbb E[I]}, \qquad
# \text{homogeneity} = 1 - \frac{H(U \mid V)}{H(U)}, \qquad
# \text{completeness} = 1 - \frac{H(V \mid U)}{H(V)}.$$
#
# Homogeneity and completeness are 1 where the denominator is 0. Some values to compare with, for a truth of several
# clusters:
#
# | found grouping | ARI | AMI | homogeneity | completeness |
# |---|---|---|---|---|
# | the true clusters | 1 | 1 | 1 | 1 |
# | all members in one cluster | 0 | 0 | 0 | 1 |
# | every member alone | 0 | 0 | 1 | below 1 |
#
# **ACC.** Let $y_i$ be the class of sample $i$, $z_i$ its cluster and $n$ the number of samples. The maximum is over
# all one-to-one maps $\pi$ from clusters to classes. A cluster without a class counts as wrong:
#
# $$\text{ACC} = \frac1n \max_\pi \,\bigl\lvert \{ i : \pi(z_i) = y_i \} \bigr\rvert .$$
#
# **Macro-F1.** For each class $k$, let $h_k$ be the number of its samples that are predicted right. Let $l_k$ be the
# number of samples with label $k$, and $a_k$ the number of samples with prediction $k$:
#
# $$F_k = \frac{2 h_k}{l_k + a_k}, \qquad \text{macro-F1} = \text{mean of } F_k \text{ over all classes } k \text{ with } l_k + a_k > 0 .$$
#
# The mean is over the classes that occur among the labels **or** the predictions, as in the OCFL authors' code.
# Predicting a class that the client does not have therefore adds a class with $F_k = 0$. The function is
# `cflkit.federation.f1_and_accuracy`.
#
# **Insertion and deletion.** Let $p_0, \dots, p_s$ be the probabilities of the explained class after $0, \dots, s$
# steps. The area is $\frac1s \sum_{k=1}^{s} \frac12 (p_{k-1} + p_k)$, and lies between 0 and 1. A map without
# information has the same expected area for insertion and deletion, if the step divides the number of pixels.

# %% [markdown]
# **Previous:** [98 What is *reproduced* worth?](98_what_is_reproduced_worth.ipynb) · **Back to the start:**
# [00 Start here](00_start_here.ipynb)
