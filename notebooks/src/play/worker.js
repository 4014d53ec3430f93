// @ts-check
/**
 * The worker: the clients and the server, which train while the page stays smooth. The page sends
 * `start`, `step`, `split` or `score`, and gets one answer for each. `stop`, and each new start, ends
 * a training that takes long.
 *
 * One model, clients alone and the server with its rule begin alike and see the same batches. The one
 * model goes on after the split, so that each round has its arrows, and a split by hand is possible in any.
 *
 * @typedef {import("./engine.js").Vector} Vector
 * @typedef {{gammas: number[][][], found: number[][], alike: boolean, single: number[]}} Two  the two halves
 *   of the rounds so far, and the clusters of this round alone
 * @typedef {{round: number, gamma: number[][], temperature: number, points: number[][], seen: number[],
 *   labels: number[] | null, fired: boolean, one: number, alone: number, groups: number,
 *   hand: number | null, two: Two | null, ms: number}} Round  with what a split would find now (`seen`),
 *   the server's clusters, and the mean accuracies of each way
 * @typedef {{from: number, labels: number[], accuracies: number[]}} Hand  from a round on
 * @typedef {{ends: number[], rise: {round: number, end: number} | null}} Score  the accuracy in the last round for a
 *   split in each, and for one at the first rise, which looks at that round alone
 */
import {
  accuracy, added, aggregate, averaged, cosineDivergence, halves, hdbscan, localUpdates, replicate, rises, setup, split, star, temperature,
} from "./engine.js";
import { BATCH, batchOrders, initialModel, makeClients } from "./scenes.js";

/** @param {import("./scenes.js").Digits} digits @param {import("./scenes.js").Setting} setting */
function federation(digits, setting) {
  const { epochs, seed } = setting, training = { batch: BATCH, rate: epochs ? 0.05 : 0.5, momentum: 0.9 };
  const clients = makeClients(digits, setting), everyone = clients.map((_, i) => i);
  const together = everyone.map(() => 0), initial = initialModel(seed);
  const server = setup(initial, clients.length), kept = setting.rule === "halves" ? halves(clients.length) : null;
  /** @type {import("./engine.js").Server | null} The split by hand */
  let hand = null;
  /** @type {Vector[]} The one model before each round */
  const history = [initial];
  /** @type {Round[]} */
  const rounds = [];
  let alone = everyone.map(() => initial);

  /** @param {number} t @param {Vector[]} models @param {number[]} labels */
  function moved(t, models, labels) {
    const orders = clients.map(({ train }, i) => batchOrders(train.labels.length, epochs, seed, i, t));
    return localUpdates(models, labels, clients, orders, training);
  }

  /** @param {Vector[]} models @param {number[]} labels */
  function mean(models, labels) {
    return clients.reduce((sum, client, i) => sum + accuracy(models[labels[i]], client.test), 0) / clients.length;
  }

  /** @returns {Round} */
  function step() {
    const began = performance.now(), t = history.length - 1, one = [history[t]], waited = !server.clustered;
    const updates = moved(t, one, together), single = cosineDivergence(updates);
    const both = kept && replicate(kept, updates);
    // What the server has: this round's updates, or the sums of all rounds so far
    const gamma = kept ? cosineDivergence(added(kept.sums[0], kept.sums[1])) : single;
    alone = averaged(alone, t ? moved(t, alone, everyone) : updates, everyone);
    const theirs = waited ? updates : moved(t, server.models, server.labels);
    if (!kept) aggregate(server, theirs);
    else {
      if (waited && both?.fires) split(server, gamma);
      server.models = averaged(server.models, theirs, server.labels);
    }
    if (hand) hand.models = averaged(hand.models, moved(t, hand.models, hand.labels), hand.labels);
    const after = averaged(one, updates, together), common = mean(after, together);
    history.push(after[0]);
    /** @type {Round} */
    const round = {
      round: t + 1,
      gamma,
      points: star(gamma, rounds[t - 1]?.points),
      temperature: temperature(single),
      seen: hdbscan(gamma),
      labels: server.clustered ? server.labels : null,
      fired: waited && server.clustered,
      one: common,
      alone: mean(alone, everyone),
      groups: server.clustered ? mean(server.models, server.labels) : common,
      hand: hand && mean(hand.models, hand.labels),
      two: both && { ...both, single: hdbscan(single) },
      ms: performance.now() - began,
    };
    rounds.push(round);
    return round;
  }

  /** Train the models of clusters from a round on. @param {number} from @param {number[]} labels @param {number} until */
  function* trained(from, labels, until) {
    let models = Array(Math.max(...labels) + 1).fill(history[from - 1]);
    for (let t = from - 1; t < until; t++) {
      models = averaged(models, moved(t, models, labels), labels);
      yield models;
    }
  }

  /**
   * Split the one model in a round, as the server would if its rule fired there, and train to the present round.
   * @param {number} from @returns {Generator<number, Hand>}  the rounds that are reached, and in the end the split
   */
  function* byHand(from) {
    const labels = rounds[from - 1].seen, own = setup(initial, clients.length), accuracies = [];
    for (const models of trained(from, labels, rounds.length)) {
      own.models = models;
      yield accuracies.push(mean(models, labels)) + from - 1;
    }
    hand = { ...own, labels, clustered: true };
    return { from, labels, accuracies };
  }

  /**
   * Find out what a split in each of the first rounds would have given in the end.
   * @param {number} last
   * @returns {Generator<number[], Score>}  what is known until now, and in the end all
   */
  function* score(last) {
    /** @type {number[]} */
    const ends = [];
    /** @param {number} from @param {number[]} labels @returns {Generator<number[], number>} */
    function* end(from, labels) {
      let models = [initial];
      for (models of trained(from, labels, last)) yield ends;
      return mean(models, labels);
    }
    for (let from = 1; from <= last; from++) ends.push(yield* end(from, rounds[from - 1].seen));
    const rise = rounds.slice(0, last).find((_, t) => t && rises([rounds[t - 1].temperature, rounds[t].temperature]));
    if (!rise?.two) return { ends, rise: rise ? { round: rise.round, end: ends[rise.round - 1] } : null };
    return { ends, rise: { round: rise.round, end: yield* end(rise.round, rise.two.single) } };
  }

  return { step, byHand, score };
}

/** @type {ReturnType<typeof federation>} */
let running;
/** @type {import("./scenes.js").Digits} */
let digits;
let tasks = 0; // the number of the last long task; what stops it counts as one, too

/** Run a long task in pieces, between which other messages are heard. @param {number} id @param {Generator<any, any>} task */
async function pursue(id, task) {
  const mine = ++tasks;
  let told = performance.now();
  for (let next = task.next(); mine === tasks; next = task.next()) {
    if (next.done) return self.postMessage({ id, answer: next.value });
    if (performance.now() - told < 30) continue;
    self.postMessage({ id, progress: next.value });
    await new Promise((resolve) => setTimeout(resolve));
    told = performance.now();
  }
  self.postMessage({ id, answer: null });
}

self.onmessage = ({ data: { kind, id, value } }) => {
  if (kind === "digits") digits = value;
  if (kind === "start") running = federation(digits, value);
  if (kind === "start" || kind === "stop") tasks++;
  if (kind === "split") pursue(id, running.byHand(value));
  if (kind === "score") pursue(id, running.score(value));
  if (kind === "start" || kind === "step") self.postMessage({ id, answer: running.step() });
};
