// @ts-check
/**
 * The worker: the clients and the server, which train while the page stays smooth. The page sends
 * `start`, `step` or `split`, and gets one answer for each. `stop`, and each new start, ends a split's training.
 *
 * One model, clients alone and OCFL begin alike and see the same batches. The one model goes on
 * after OCFL has split, so that each round has its arrows, and a split by hand is possible in any.
 *
 * @typedef {import("./engine.js").Vector} Vector
 * @typedef {{round: number, gamma: number[][], temperature: number, points: number[][],
 *   ocfl: number[] | null, fired: boolean, one: number, alone: number, groups: number,
 *   hand: number | null, ms: number}} Round  with the mean accuracies of each way
 * @typedef {{from: number, labels: number[], accuracies: number[]}} Hand  from a round on
 */
import { accuracy, aggregate, averaged, cosineDivergence, localUpdates, setup, split, star, temperature } from "./engine.js";
import { batchOrders, initialModel, makeClients } from "./scenes.js";

const TRAINING = { batch: 16, rate: 0.05, momentum: 0.9 };

/** @param {import("./scenes.js").Digits} digits @param {import("./scenes.js").Setting} setting */
function federation(digits, setting) {
  const clients = makeClients(digits, setting), everyone = clients.map((_, i) => i);
  const together = everyone.map(() => 0), initial = initialModel(setting.seed);
  const ocfl = setup(initial, clients.length);
  /** @type {import("./engine.js").Server | null} The split by hand */
  let hand = null;
  /** @type {Vector[]} The one model before each round */
  const history = [initial];
  let alone = everyone.map(() => initial);
  /** @type {number[][] | undefined} */
  let points;

  /** @param {number} t @param {Vector[]} models @param {number[]} labels */
  function moved(t, models, labels) {
    const orders = clients.map(({ train }, i) => batchOrders(train.labels.length, setting.epochs, setting.seed, i, t));
    return localUpdates(models, labels, clients, orders, TRAINING);
  }

  /** @param {Vector[]} models @param {number[]} labels */
  function mean(models, labels) {
    return clients.reduce((sum, client, i) => sum + accuracy(models[labels[i]], client.test), 0) / clients.length;
  }

  /** @returns {Round} */
  function step() {
    const began = performance.now(), t = history.length - 1, one = [history[t]];
    const updates = moved(t, one, together), gamma = cosineDivergence(updates);
    points = star(gamma, points);
    alone = averaged(alone, t ? moved(t, alone, everyone) : updates, everyone);
    const waited = !ocfl.clustered;
    aggregate(ocfl, waited ? updates : moved(t, ocfl.models, ocfl.labels));
    if (hand) hand.models = averaged(hand.models, moved(t, hand.models, hand.labels), hand.labels);
    const after = averaged(one, updates, together), single = mean(after, together);
    history.push(after[0]);
    return {
      round: t + 1,
      gamma,
      points,
      temperature: temperature(gamma),
      ocfl: ocfl.clustered ? ocfl.labels : null,
      fired: waited && ocfl.clustered,
      one: single,
      alone: mean(alone, everyone),
      groups: ocfl.clustered ? mean(ocfl.models, ocfl.labels) : single,
      hand: hand && mean(hand.models, hand.labels),
      ms: performance.now() - began,
    };
  }

  /**
   * Split the one model in a round, as OCFL would if it fired there, and train to the present round.
   * @param {number} from @returns {Generator<number, Hand>}  the rounds that are reached, and in the end the split
   */
  function* byHand(from) {
    const own = setup(history[from - 1], clients.length), accuracies = [];
    for (let t = from - 1; t < history.length - 1; t++) {
      const updates = moved(t, own.models, own.labels);
      if (!own.clustered) split(own, cosineDivergence(updates));
      own.models = averaged(own.models, updates, own.labels);
      accuracies.push(mean(own.models, own.labels));
      yield t + 1;
    }
    hand = own;
    return { from, labels: own.labels, accuracies };
  }

  return { step, byHand };
}

/** @type {ReturnType<typeof federation>} */
let running;
/** @type {import("./scenes.js").Digits} */
let digits;
let tasks = 0; // the number of the last long task; what stops it counts as one, too

/** Run a long task in pieces, between which other messages are heard. @param {number} id @param {Generator<number, any>} task */
async function pursue(id, task) {
  const mine = ++tasks;
  for (let next = task.next(); mine === tasks; next = task.next()) {
    if (next.done) return self.postMessage({ id, answer: next.value });
    self.postMessage({ id, progress: next.value });
    await new Promise((resolve) => setTimeout(resolve));
  }
  self.postMessage({ id, answer: null });
}

self.onmessage = ({ data: { kind, id, value } }) => {
  if (kind === "digits") digits = value;
  if (kind === "start") running = federation(digits, value);
  if (kind === "start" || kind === "stop") tasks++;
  if (kind === "split") pursue(id, running.byHand(value));
  if (kind === "start" || kind === "step") self.postMessage({ id, answer: running.step() });
};
