// @ts-check
/**
 * OCFL on a perceptron: the mathematics of the page, in the order of Algorithm 1 of the extended
 * paper (M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustering for federated learning
 * under clustering-agnostic assumption), and nothing else. `tests/test_play.py` holds each part to
 * the package, which computes the same.
 *
 * @typedef {Float64Array} Vector
 * @typedef {{inputs: Vector, labels: ArrayLike<number>}} Samples  n images, 64 values each, in [0, 1]
 * @typedef {{train: Samples, test: Samples}} Client
 * @typedef {{batch: number, rate: number, momentum: number}} Training
 * @typedef {{models: Vector[], labels: number[], temperatures: number[], clustered: boolean}} Server
 * @typedef {{left: number, right: number, distance: number, size: number}} Merge
 */

// --- The network: 64 pixels, 64 hidden units with ReLU, 10 classes --------------------------------

export const PIXELS = 64;
export const HIDDEN = 64;
export const CLASSES = 10;
// Where each part of a model begins, which is one vector in torch's order: W₁, b₁, W₂, b₂
const BIAS_1 = HIDDEN * PIXELS;
const WEIGHT_2 = BIAS_1 + HIDDEN;
const BIAS_2 = WEIGHT_2 + CLASSES * HIDDEN;
export const PARAMETERS = BIAS_2 + CLASSES;

/**
 * Compute the hidden units and the class scores of one image, which begins at `at`.
 * @param {Vector} theta @param {Vector} inputs @param {number} at
 * @param {Vector} hidden @param {Vector} scores
 */
function forward(theta, inputs, at, hidden, scores) {
  for (let h = 0; h < HIDDEN; h++) {
    let sum = theta[BIAS_1 + h];
    for (let p = 0, w = h * PIXELS; p < PIXELS; p++) sum += theta[w + p] * inputs[at + p];
    hidden[h] = sum > 0 ? sum : 0;
  }
  for (let c = 0; c < CLASSES; c++) {
    let sum = theta[BIAS_2 + c];
    for (let h = 0, w = WEIGHT_2 + c * HIDDEN; h < HIDDEN; h++) sum += theta[w + h] * hidden[h];
    scores[c] = sum;
  }
}

/**
 * Add the gradient of one image's cross-entropy, times `share`, to `gradient`.
 * @param {Vector} theta @param {Samples} samples @param {number} n @param {number} share
 * @param {Vector} gradient @param {Vector} hidden @param {Vector} scores
 */
function addGradient(theta, samples, n, share, gradient, hidden, scores) {
  const { inputs, labels } = samples, at = n * PIXELS;
  forward(theta, inputs, at, hidden, scores);
  const most = Math.max(...scores);
  let total = 0;
  for (let c = 0; c < CLASSES; c++) total += scores[c] = Math.exp(scores[c] - most);
  for (let c = 0; c < CLASSES; c++) {
    const error = share * (scores[c] / total - (c === labels[n] ? 1 : 0));
    scores[c] = error;
    gradient[BIAS_2 + c] += error;
    for (let h = 0, w = WEIGHT_2 + c * HIDDEN; h < HIDDEN; h++) gradient[w + h] += error * hidden[h];
  }
  for (let h = 0; h < HIDDEN; h++) {
    if (hidden[h] <= 0) continue;
    let error = 0;
    for (let c = 0; c < CLASSES; c++) error += scores[c] * theta[WEIGHT_2 + c * HIDDEN + h];
    gradient[BIAS_1 + h] += error;
    for (let p = 0, w = h * PIXELS; p < PIXELS; p++) gradient[w + p] += error * inputs[at + p];
  }
}

/**
 * Count the images that a model reads correctly, as a share of all.
 * @param {Vector} theta @param {Samples} samples
 */
export function accuracy(theta, samples) {
  const hidden = new Float64Array(HIDDEN), scores = new Float64Array(CLASSES);
  let right = 0;
  for (let n = 0; n < samples.labels.length; n++) {
    forward(theta, samples.inputs, n * PIXELS, hidden, scores);
    if (scores.indexOf(Math.max(...scores)) === samples.labels[n]) right++;
  }
  return right / samples.labels.length;
}

// --- Lines 8 to 13: clients train, and send their updates -----------------------------------------

/**
 * Train a model on a client's images by stochastic gradient descent with momentum.
 * @param {Vector} theta  the model that the client received, which is not changed
 * @param {Samples} samples
 * @param {number[][]} orders  the order of the images in each local epoch
 * @param {Training} training
 * @returns {Vector}  the trained model
 */
export function train(theta, samples, orders, training) {
  const model = theta.slice(), gradient = new Float64Array(PARAMETERS);
  const speed = new Float64Array(PARAMETERS);
  const hidden = new Float64Array(HIDDEN), scores = new Float64Array(CLASSES);
  for (const order of orders) {
    for (let start = 0; start < order.length; start += training.batch) {
      const batch = order.slice(start, start + training.batch);
      gradient.fill(0);
      for (const n of batch) addGradient(model, samples, n, 1 / batch.length, gradient, hidden, scores);
      for (let k = 0; k < PARAMETERS; k++) {
        speed[k] = training.momentum * speed[k] + gradient[k];
        model[k] -= training.rate * speed[k];
      }
    }
  }
  return model;
}

/**
 * Compute each client's update: the model of its cluster after its training, minus before.
 * @param {Vector[]} models @param {number[]} labels @param {Client[]} clients
 * @param {number[][][]} orders  of each client @param {Training} training
 * @returns {Vector[]}
 */
export function localUpdates(models, labels, clients, orders, training) {
  return clients.map((client, i) => {
    const before = models[labels[i]];
    return train(before, client.train, orders[i], training).map((value, k) => value - before[k]);
  });
}

// --- Lines 14 to 22: the temperature, and the clusters --------------------------------------------

/**
 * Compute Γ, the cosine distances of all pairs of updates (line 16).
 * @param {Vector[]} updates
 * @returns {number[][]}
 */
export function cosineDivergence(updates) {
  const dot = (/** @type {Vector} */ a, /** @type {Vector} */ b) => {
    let sum = 0;
    for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
    return sum;
  };
  const norms = updates.map((update) => Math.sqrt(dot(update, update)) || 1);
  return updates.map((a, i) =>
    updates.map((b, j) => {
      const distance = 1 - dot(a, b) / (norms[i] * norms[j]);
      return i === j ? 0 : Math.min(Math.max(distance, 0), 2);
    }),
  );
}

/**
 * Compute the temperature: the norm of Γ by the largest that it could have (line 17).
 * @param {number[][]} gamma
 */
export function temperature(gamma) {
  const m = gamma.length;
  const squares = gamma.flat().reduce((sum, distance) => sum + distance * distance, 0);
  return m < 2 ? 0 : Math.sqrt(squares / (4 * m * (m - 1)));
}

/**
 * Whether the temperature rose in the last round (line 20).
 * @param {number[]} temperatures
 */
export function rises(temperatures) {
  const [before, now] = temperatures.slice(-2);
  return now > before;
}

/** @returns {Server} @param {Vector} initial @param {number} clients */
export function setup(initial, clients) {
  return { models: [initial], labels: Array(clients).fill(0), temperatures: [], clustered: false };
}

/**
 * Run lines 14 to 28, after all clients have trained the models of their clusters.
 * @param {Server} server @param {Vector[]} updates
 */
export function aggregate(server, updates) {
  if (!server.clustered) {
    const gamma = cosineDivergence(updates);
    server.temperatures.push(temperature(gamma));
    if (rises(server.temperatures)) split(server, gamma);
  }
  server.models = averaged(server.models, updates, server.labels);
}

/**
 * Give each cluster a copy of the one model (lines 21 and 22).
 * @param {Server} server @param {number[][]} gamma
 */
export function split(server, gamma) {
  server.labels = hdbscan(gamma);
  server.models = Array(Math.max(...server.labels) + 1).fill(server.models[0]);
  server.clustered = true;
}

/**
 * Add to each model the mean update of its own clients (lines 25 to 28).
 * @param {Vector[]} models @param {Vector[]} updates @param {number[]} labels
 */
export function averaged(models, updates, labels) {
  return models.map((model, cluster) => {
    const own = updates.filter((_, i) => labels[i] === cluster);
    return model.map((value, k) => value + own.reduce((sum, u) => sum + u[k], 0) / own.length);
  });
}

// --- Another rule, ours: add up what clients send, and split when two halves of the rounds agree ----

/**
 * What each client has sent in the odd rounds and in the even rounds, as two sums, and how often
 * running both gave the same clusters. That sums show more than one round is the idea of CFL-GP
 * (H. Kim, H. Kim, G. de Veciana: Clustered federated learning via gradient-based partitioning, ICML 2024).
 * @typedef {{rounds: number, sums: Vector[][], agreements: number}} Halves
 * @param {number} clients @returns {Halves}
 */
export function halves(clients) {
  const nothing = () => Array.from({ length: clients }, () => new Float64Array(PARAMETERS));
  return { rounds: 0, sums: [nothing(), nothing()], agreements: 0 };
}

/** Add vectors, client by client. @param {Vector[]} one @param {Vector[]} other */
export function added(one, other) {
  return one.map((vector, i) => vector.map((value, k) => value + other[i][k]));
}

/**
 * Add a round's updates to its half, and cluster both halves.
 * @param {Halves} kept @param {Vector[]} updates
 * @returns {{gammas: number[][][], found: number[][], alike: boolean, fires: boolean}}  whether both give the same clusters, more
 *   than one, and whether they did so twice running
 */
export function replicate(kept, updates) {
  const half = kept.rounds++ % 2;
  kept.sums[half] = added(kept.sums[half], updates);
  const gammas = kept.sums.map(cosineDivergence), found = gammas.map(hdbscan);
  const alike = kept.rounds > 1 && Math.max(...found[0]) > 0 && `${found[0]}` === `${found[1]}`;
  // A round changes one of the halves only, so that two agreements running are on the same clusters
  kept.agreements = alike ? kept.agreements + 1 : 0;
  return { gammas, found, alike, fires: kept.agreements > 1 };
}

// --- The clusterer: HDBSCAN (R. J. G. B. Campello, D. Moulavi, J. Sander, PAKDD 2013) -------------

/**
 * Find clusters of at least 20 % of the clients. What is left over is one more cluster.
 * @param {number[][]} gamma
 * @returns {number[]}  the cluster of each client, numbered in order of first appearance
 */
export function hdbscan(gamma) {
  const m = gamma.length, smallest = Math.max(2, Math.round(0.2 * m));
  if (m < 2 * smallest) return Array(m).fill(0);
  return numbered(stablest(singleLinkage(mutualReachability(gamma, smallest - 1)), m, smallest));
}

/**
 * Replace a distance by the radius of either client's neighbourhood, where that is larger.
 * @param {number[][]} gamma @param {number} neighbours
 */
function mutualReachability(gamma, neighbours) {
  const radius = gamma.map((row) => row.slice().sort((a, b) => a - b)[neighbours]);
  return gamma.map((row, i) => row.map((distance, j) => Math.max(distance, radius[i], radius[j])));
}

/**
 * Merge the two nearest groups until one is left, along a minimum spanning tree (Prim).
 * @param {number[][]} reach
 * @returns {Merge[]}  in which client i is i, and the result of merge k is m + k
 */
function singleLinkage(reach) {
  const m = reach.length, nearest = Array(m).fill(Infinity), from = Array(m).fill(0);
  const outside = new Set(reach.keys()), edges = [];
  for (let current = 0; outside.delete(current) && outside.size; ) {
    let next = -1;
    for (const j of outside) {
      if (reach[current][j] < nearest[j]) [nearest[j], from[j]] = [reach[current][j], current];
      if (next < 0 || nearest[j] < nearest[next]) next = j;
    }
    edges.push({ a: from[next], b: next, distance: nearest[next] });
    current = next;
  }
  edges.sort((one, other) => one.distance - other.distance);
  const group = [...reach.keys()], sizes = Array(m).fill(1);
  return edges.map(({ a, b, distance }, k) => {
    const left = group[a], right = group[b], size = sizes[left] + sizes[right];
    group.forEach((g, i) => { if (g === left || g === right) group[i] = m + k; });
    sizes.push(size);
    return { left, right, distance, size };
  });
}

/**
 * Follow the merges from the whole down to the clients, and keep the clusters that last longest.
 *
 * A cluster splits where both parts are large enough. Otherwise its small parts leave it. Its
 * stability is how long its clients stay in it, in units of λ = 1 / distance.
 * @param {Merge[]} merges @param {number} m @param {number} smallest
 * @returns {number[]}  −1 for clients without a cluster
 */
function stablest(merges, m, smallest) {
  const clusters = [{ parent: -1, birth: 0, stability: 0, kept: false }];
  const home = Array(m).fill(0);
  const size = (/** @type {number} */ node) => (node < m ? 1 : merges[node - m].size);
  /** @returns {number[]} @param {number} node */
  const members = (node) =>
    node < m ? [node] : [...members(merges[node - m].left), ...members(merges[node - m].right)];
  const queue = [[2 * m - 2, 0]];
  for (const [node, own] of queue) {
    const { left, right, distance } = merges[node - m], lambda = 1 / distance;
    const parts = [left, right], cluster = clusters[own];
    const large = parts.filter((part) => size(part) >= smallest);
    for (const part of parts) {
      for (let n = 0; n < (large.length === 2 ? 1 : 0); n++) {
        cluster.stability += (lambda - cluster.birth) * size(part);
        queue.push([part, clusters.length]);
        clusters.push({ parent: own, birth: lambda, stability: 0, kept: false });
      }
      if (large.includes(part)) continue;
      for (const client of members(part)) {
        cluster.stability += lambda - cluster.birth;
        home[client] = own;
      }
    }
    if (large.length === 1) queue.push([large[0], own]);
  }
  for (let c = clusters.length - 1; c > 0; c--) {
    // Rounded to 32 bits as in the package hdbscan, which decides where both are equal
    const parts = clusters.filter((other) => other.parent === c);
    const below = parts.reduce((sum, part) => Math.fround(sum + part.stability), 0);
    clusters[c].kept = !(below > clusters[c].stability);
    if (!clusters[c].kept) clusters[c].stability = below;
  }
  // The outermost cluster that is kept, but never that of all clients
  return home.map((own) => {
    let found = -1;
    for (let c = own; c > 0; c = clusters[c].parent) if (clusters[c].kept) found = c;
    return found;
  });
}

/** Number groups from 0 in order of first appearance. @param {number[]} labels */
export function numbered(labels) {
  const seen = [...new Set(labels)];
  return labels.map((label) => seen.indexOf(label));
}

// --- The picture: updates of length 1, seen along the direction that all share --------------------

/**
 * Compute the two principal coordinates of the directions, which Γ alone determines.
 * @param {number[][]} gamma
 * @param {number[][]} [before]  the coordinates of the round before, near which these are turned
 * @returns {number[][]}  [m, 2]; clients at right angles are √2 apart if both coordinates show it
 */
export function star(gamma, before) {
  const m = gamma.length, mean = gamma.map((row) => row.reduce((a, b) => a + b) / m);
  const all = mean.reduce((a, b) => a + b) / m;
  const inner = gamma.map((row, i) => row.map((distance, j) => mean[i] + mean[j] - all - distance));
  const dot = (/** @type {number[]} */ a, /** @type {number[]} */ b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const image = (/** @type {number[]} */ v) => inner.map((row) => dot(row, v));
  const scaled = (/** @type {number[]} */ v) => v.map((x) => x / (Math.sqrt(dot(v, v)) || 1));
  // The plane of the two largest eigenvalues, by repeated multiplication
  let first = gamma.map((_, i) => (before ? before[i][0] : Math.cos(2 * i * i)));
  let second = gamma.map((_, i) => (before ? before[i][1] : Math.cos(3 * i * i + 1)));
  for (let turn = 0; turn < 300; turn++) {
    first = scaled(image(first));
    const next = image(second), along = dot(next, first);
    second = scaled(next.map((x, i) => x - along * first[i]));
  }
  // The inner products in this plane, as the product of a triangle with itself (Cholesky)
  const width = Math.sqrt(Math.max(0, dot(first, image(first)))), slant = dot(second, image(first)) / (width || 1);
  const height = Math.sqrt(Math.max(0, dot(second, image(second)) - slant * slant));
  const points = first.map((x, i) => [x * width + second[i] * slant, second[i] * height]);
  return before ? turned(points, before) : points;
}

/**
 * Turn or mirror points so that they come closest to others: a picture that does not jump.
 * @param {number[][]} points @param {number[][]} others
 */
function turned(points, others) {
  const candidates = [1, -1].map((sign) => {
    let cos = 0, sin = 0;
    points.forEach(([x, y], i) => {
      const [u, v] = others[i];
      cos += x * u + sign * y * v;
      sin += x * v - sign * y * u;
    });
    const length = Math.hypot(cos, sin) || 1;
    return { sign, length, cos: cos / length, sin: sin / length };
  });
  const { sign, cos, sin } = candidates[0].length >= candidates[1].length ? candidates[0] : candidates[1];
  return points.map(([x, y]) => [cos * x - sin * sign * y, sin * x + cos * sign * y]);
}
