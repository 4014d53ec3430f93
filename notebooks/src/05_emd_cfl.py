# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # EMD-CFL

# %%
from cflkit import config, datasets, published, records, shifts, simulation
from cflkit.federation import Federation

# %% tags=["parameters"]
dataset = "digits"  # a name that cflkit.datasets knows
version = "quarter-turn"  # what parts the clients: a name that cflkit.shifts knows
clients = 8  # m, as many in each group; None where the data decide (domains)
samples = None  # training and validation images of a client; None: all there are
published_split = False  # test images dealt as in the authors' code
partition_seed = 0  # who gets which images
model = "emd-cnn-small"  # or "emd-cnn", the paper's (3.3 million parameters), "resnet18" …
weights = None  # or "imagenet": what torchvision's networks start from
optimizer = "sgd"  # or "adam"
lr = 0.01  # learning rate of the clients
momentum = 0.9  # of SGD
weight_decay = 1e-6  # of either optimiser
batch_size = 32  # samples a local step
local_epochs = 3  # passes over a client's data in a round
rounds = 4  # of communication
participants = None  # clients that train in a round; None: all
epsilon = 0.08  # ε: how far the score of a pair may go for the pair to agree
projection = 0.9  # share of the embedding's dimensions that the random projection keeps
sinkhorn = None  # regularisation of Sinkhorn's approximation; None: exact distances
embedded = 512  # the most samples a side that are embedded
clusters = "neighbourhoods"  # or "components"
train_mode = False  # embeddings in training mode, as in the authors' code
mu = 0.01  # FedProx's μ
seed = 0  # initial model, batch orders
precision = "float32"  # or "tf32", "bfloat16": faster and coarser arithmetic

# %%
run = config.EMDRun.of(globals())
run_name = records.run_id("emd-cfl", run)

# %%
images, split = shifts.make(
    datasets.load(run.dataset),
    run.version,
    clients=run.clients,
    samples=run.samples,
    published=run.published_split,
    seed=run.partition_seed,
)
options = run.model_dump(include={"weights", "participants", "seed", "precision"})
federation = Federation(images, split, run.model, run.training(), **options)

# %%
line_up = published.emd_line_up(run)
history = simulation.run(
    line_up, federation, run.rounds, checkpoint=records.checkpoint(run_name), progress=False
)

# %% tags=["report"]
record = records.write(run_name, run, history, federation)
print(f"record    {records.shown(record.folder)}")
